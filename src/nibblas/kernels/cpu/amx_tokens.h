// Tokens as AMX reads them: tiles of 16 pairs of values along K by 16 tokens, which one dot-product
// instruction multiplies with a tile of weight rows.
//
//     [tiles of 16 tokens][K / 32][parts][16 pairs][columns][2 values]        bfloat16, K padded to
//     128
//
// NVFP4 and bfloat16 tokens have one part. float16 tokens have two, a bfloat16 of the upper 8
// significant bits and one of the lower 3, whose sum is the token exactly.
//
// AMX takes subnormal operands and results as zero. Tokens with values that are not finite, or
// beyond [2^-109, 2^91) in magnitude, are marked, are zero here, and are left to the vector
// kernels, which round as IEEE 754 says. All others give multiples of 2^-126, and no sum of K <
// 2^24 of their products overflows.
#pragma once

#include "bf16_tiles.h"
#include "group.h"

namespace nibblas::cpu {

// Up to 32 words from value k of a 16-bit token on, zero past the end of K.
static inline __m512i load_words(const Group& group, i64 token, i64 k) {
  const u8* from = group.x + token * group.x_row_bytes + k * 2;
  if (k + kTileK <= group.k) return load_64_bytes(from);
  return _mm512_maskz_loadu_epi16(_bzhi_u32(~u32{0}, static_cast<u32>(group.k - k)), from);
}

// Whether a token must be marked.
static inline bool is_extreme(const Group& group, i64 token) {
  if (group.x_type == NIBBLAS_E2M1X2) return false;
  const bool bf16 = group.x_type == NIBBLAS_BFLOAT16;
  // Bits of the least magnitude that is not zero, and of the first that is too large.
  const i16 least = static_cast<i16>(bf16 ? (127 - 109) << 7 : 1);
  const i16 above = static_cast<i16>(bf16 ? (127 + 91) << 7 : 0x7C00);
  const __m512i range = _mm512_set1_epi16(static_cast<i16>(above - least));
  __mmask32 extreme = 0;
  for (i64 k = 0; k < group.k; k += kTileK) {
    const __m512i magnitude =
        _mm512_and_si512(load_words(group, token, k), _mm512_set1_epi16(0x7FFF));
    const __m512i distance = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(least));
    extreme |=
        _mm512_test_epi16_mask(magnitude, magnitude) & _mm512_cmpge_epu16_mask(distance, range);
  }
  return extreme != 0;
}

class AmxTokens {
 public:
  explicit AmxTokens(const Group& group)
      : group_(group),
        columns(group.tokens >= kTileSize ? kTileSize : round_up(group.tokens, 4)),
        parts(group.x_type == NIBBLAS_FLOAT16 ? 2 : 1),
        k_tiles(ceil_div(group.k, kStepK) * kStepTiles),
        token_tiles(ceil_div(group.tokens, kTileSize)) {}

  i64 tile_bytes() const { return kTileSize * row_bytes(); }
  i64 row_bytes() const { return columns * 4; }
  i64 bytes() const { return marks_at() + group_.tokens; }

  const u8* tile(const u8* prepared, i64 token_tile, i64 k_tile) const {
    return prepared + (token_tile * k_tiles + k_tile) * parts * tile_bytes();
  }
  // 1 where the vector kernels must compute the token.
  const u8* marks(const u8* prepared) const { return prepared + marks_at(); }

  // Tokens [begin, end) of one tile.
  void prepare(i64 begin, i64 end, u8* prepared) const {
    u8* marks = prepared + marks_at();
    for (i64 t = begin; t < end; ++t) marks[t] = is_extreme(group_, t);
    u8* to = prepared + begin / kTileSize * k_tiles * parts * tile_bytes();
    for (i64 k = 0; k < k_tiles * kTileK; k += kTileK, to += parts * tile_bytes()) {
      __m512i rows[2][kTileSize];
      for (i64 t = 0; t < kTileSize; ++t) {
        rows[0][t] = rows[1][t] = _mm512_setzero_si512();
        if (begin + t < end && k < group_.k && marks[begin + t] == 0) {
          load_values(begin + t, k, rows[0][t], rows[1][t]);
        }
      }
      for (i64 part = 0; part < parts; ++part) {
        transpose(rows[part]);
        const __mmask16 used = static_cast<__mmask16>((1u << columns) - 1);
        for (i64 pair = 0; pair < kTileSize; ++pair) {
          _mm512_mask_storeu_epi32(to + part * tile_bytes() + pair * row_bytes(), used,
                                   rows[part][pair]);
        }
      }
    }
  }

 private:
  const Group& group_;

 public:
  const i64 columns;
  const i64 parts;
  const i64 k_tiles;
  const i64 token_tiles;

 private:
  i64 marks_at() const { return token_tiles * k_tiles * parts * tile_bytes(); }

  const u8* row(i64 token) const { return group_.x + token * group_.x_row_bytes; }

  // 32 values from k on, in tile order.
  void load_values(i64 token, i64 k, __m512i& first, __m512i& second) const {
    switch (group_.x_type) {
      case NIBBLAS_BFLOAT16:
        first = _mm512_permutexvar_epi16(load_64_bytes(kOrderOfHalves.of),
                                         load_words(group_, token, k));
        return;
      case NIBBLAS_FLOAT16:
        return split(load_words(group_, token, k), first, second);
      default:
        first = load_codes(token, k);
    }
  }

  static void split(__m512i words, __m512i& upper, __m512i& lower) {
    const __m512 a = _mm512_cvtph_ps(_mm512_castsi512_si256(words));
    const __m512 b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(words, 1));
    const __m512i mask = _mm512_set1_epi32(static_cast<i32>(0xFFFF0000));
    const __m512i a_bits = _mm512_castps_si512(a), b_bits = _mm512_castps_si512(b);
    const __m512 a_upper = _mm512_castsi512_ps(_mm512_and_si512(a_bits, mask));
    const __m512 b_upper = _mm512_castsi512_ps(_mm512_and_si512(b_bits, mask));
    // The upper halves of 32 floats, in tile order.
    const __m512i order = load_64_bytes(kOrderOfFloats.of);
    upper = _mm512_permutex2var_epi16(a_bits, order, b_bits);
    lower = _mm512_permutex2var_epi16(_mm512_castps_si512(_mm512_sub_ps(a, a_upper)), order,
                                      _mm512_castps_si512(_mm512_sub_ps(b, b_upper)));
  }

  __m512i load_codes(i64 token, i64 k) const {
    const i64 blocks = min_of(group_.k - k, kTileK) / kScaleBlock;
    u8 packed[kTileK / 2] = {}, scales[4] = {};
    __builtin_memcpy(packed, row(token) + k / 2, static_cast<std::size_t>(blocks * 8));
    // Scales come in fours, of which this is the first or the second half.
    const i64 before = k / kScaleBlock % 4;
    copy_scales(group_.x_scales, token, k / kScaleBlock - before, before + blocks, scales);
    return decode_tile_row(TileOrder::make(), packed, scales[before], scales[before + 1]);
  }
};

}  // namespace nibblas::cpu
