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
  i64 value_bytes() const { return token_tiles * k_tiles * parts * tile_bytes(); }
  i64 bytes() const { return value_bytes() + group_.tokens; }

  const u8* tile(const u8* prepared, i64 token_tile, i64 k_tile) const {
    return prepared + (token_tile * k_tiles + k_tile) * parts * tile_bytes();
  }
  // 1 where the vector kernels must compute the token.
  const u8* marks(const u8* prepared) const { return prepared + value_bytes(); }

  // Tokens [begin, end) of one tile.
  void prepare(i64 begin, i64 end, u8* prepared) const {
    for (i64 t = begin; t < end; ++t) prepared[value_bytes() + t] = is_extreme(group_, t);
    switch (group_.x_type) {
      case NIBBLAS_BFLOAT16:
        return prepare_as<NIBBLAS_BFLOAT16>(begin, end, prepared);
      case NIBBLAS_FLOAT16:
        return prepare_as<NIBBLAS_FLOAT16>(begin, end, prepared);
      default:
        return prepare_as<NIBBLAS_E2M1X2>(begin, end, prepared);
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
  const u8* row(i64 token) const { return group_.x + token * group_.x_row_bytes; }

  template <i64 kType>
  void prepare_as(i64 begin, i64 end, u8* prepared) const {
    constexpr int kParts = kType == NIBBLAS_FLOAT16 ? 2 : 1;
    const u8* marks = this->marks(prepared);
    u8* to = prepared + begin / kTileSize * k_tiles * kParts * tile_bytes();
    for (i64 k = 0; k < k_tiles * kTileK; k += kTileK) {
      __m512i rows[kParts][kTileSize];
      for (i64 t = 0; t < kTileSize; ++t) {
        __m512i &first = rows[0][t], &second = rows[kParts - 1][t];
        if (begin + t < end && k < group_.k && marks[begin + t] == 0) {
          load_values<kType>(begin + t, k, first, second);
        } else {
          first = second = _mm512_setzero_si512();
        }
      }
      for (__m512i(&part)[kTileSize] : rows) {
        store_transposed(part, to);
        to += tile_bytes();
      }
    }
  }

  void store_transposed(__m512i (&rows)[kTileSize], u8* to) const {
    transpose(rows);
    const __mmask16 used = static_cast<__mmask16>((1u << columns) - 1);
    const i64 bytes = row_bytes();
#pragma GCC unroll 16
    for (i64 pair = 0; pair < kTileSize; ++pair, to += bytes) {
      _mm512_mask_storeu_epi32(to, used, rows[pair]);
    }
  }

  // 32 values from k on, in tile order; `second` of float16 only, else it is `first`.
  template <i64 kType>
  void load_values(i64 token, i64 k, __m512i& first, __m512i& second) const {
    if constexpr (kType == NIBBLAS_E2M1X2) {
      first = load_codes(token, k);
    } else if constexpr (kType == NIBBLAS_FLOAT16) {
      split(load_words(group_, token, k), first, second);
    } else {
      first =
          _mm512_permutexvar_epi16(load_64_bytes(kOrderOfHalves.of), load_words(group_, token, k));
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
    const u8* codes = row(token) + k / 2;
    // Scales come in fours, of which these are the first or the second two.
    const u8* scales = first_scales(group_.x_scales, token) +
                       k / (4 * kScaleBlock) * bytes_to_next_scales(group_.x_scales) +
                       k / kScaleBlock % 4;
    const TileOrder order = TileOrder::make();
    if (k + kTileK <= group_.k) return decode_tile_row(order, codes, scales[0], scales[1]);
    u8 block[kTileK / 2] = {};  // the last one, alone
    __builtin_memcpy(block, codes, kScaleBlock / 2);
    return decode_tile_row(order, block, scales[0], 0);
  }
};

}  // namespace nibblas::cpu
