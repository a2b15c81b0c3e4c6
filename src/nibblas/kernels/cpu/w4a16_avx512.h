// 16-bit tokens times NVFP4 weights with AVX-512: as W4A16, with two weight rows in one register,
// eight lanes each, so that every lane adds what it adds there. One kernel for few tokens, another
// for more; both read the same prepared tokens.
#pragma once

#include "row_pair.h"
#include "vec_portable.h"
#include "w4a16.h"

namespace nibblas::cpu {

// 16 scales, of eight blocks of row a and of b.
static inline __m512 decode_scales(__m128i scales) {
  return _mm512_mul_ps(decode_16_e4m3(scales), _mm512_set1_ps(256.0f));
}

// Few tokens, two pairs of rows at a time: one chain of additions would take as long as two.
template <class V, class Tokens>
struct EqualFloatStream {
  static constexpr i64 kRows = 4;
  static constexpr i64 kMostTokens = 4;

  static void multiply(const Group& group, const Tile& tile, i64 r, const u8* prepared,
                       float* accumulators) {
    const float* x = reinterpret_cast<const float*>(prepared);
    switch (group.tokens) {
      case 1:
        return multiply_tokens<1>(group, tile, r, x, accumulators);
      case 2:
        return multiply_tokens<2>(group, tile, r, x, accumulators);
      case 3:
        return multiply_tokens<3>(group, tile, r, x, accumulators);
      default:
        return multiply_tokens<4>(group, tile, r, x, accumulators);
    }
  }

 private:
  template <i64 kTokens>
  static void multiply_tokens(const Group& group, const Tile& tile, i64 r, const float* x,
                              float* accumulators) {
    const RowPair<V> pair0(group, tile, r), pair1(group, tile, r + 2);
    __m512 sums0[kTokens], sums1[kTokens];
#pragma GCC unroll 4
    for (i64 t = 0; t < kTokens; ++t) sums0[t] = sums1[t] = _mm512_setzero_ps();
    const i64 steps = pair0.full_steps();
    for (i64 s = 0; s < steps; ++s, x += kPairStep) {
      add_blocks<kTokens>(pair0.load(s), pair1.load(s), 8, x, group.k, sums0, sums1);
    }
    if (pair0.has_rest()) {
      const i64 blocks = group.k % kPairStep / kScaleBlock;
      add_blocks<kTokens>(pair0.load_rest(), pair1.load_rest(), blocks, x, group.k, sums0, sums1);
    }
#pragma GCC unroll 4
    for (i64 t = 0; t < kTokens; ++t) {
      _mm512_storeu_ps(accumulators + t * kTileRows * kLanes, sums0[t]);
      _mm512_storeu_ps(accumulators + t * kTileRows * kLanes + 2 * kLanes, sums1[t]);
    }
  }

  // The first `blocks` of a step.
  template <i64 kTokens>
  static void add_blocks(const typename RowPair<V>::Step& step0,
                         const typename RowPair<V>::Step& step1, i64 blocks, const float* x,
                         i64 token_stride, __m512 (&sums0)[kTokens], __m512 (&sums1)[kTokens]) {
    // [8 blocks][8 bytes of row a, 8 of row b]
    alignas(64) u8 codes0[128], codes1[128];
    interleave(step0, codes0);
    interleave(step1, codes1);
    const __m512 scales0 = decode_scales(step0.scales), scales1 = decode_scales(step1.scales);
    __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8);
    for (i64 b = 0; b < blocks; ++b, x += kScaleBlock) {
      add_block<kTokens>(codes0 + b * 16, _mm512_permutexvar_ps(lane, scales0), x, token_stride,
                         sums0);
      add_block<kTokens>(codes1 + b * 16, _mm512_permutexvar_ps(lane, scales1), x, token_stride,
                         sums1);
      lane = _mm512_add_epi32(lane, _mm512_set1_epi32(1));
    }
  }

  static void interleave(const typename RowPair<V>::Step& step, u8* codes) {
    const __m512i even = _mm512_unpacklo_epi64(step.a, step.b);
    const __m512i odd = _mm512_unpackhi_epi64(step.a, step.b);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    _mm512_store_si512(codes, _mm512_permutex2var_epi64(even, first, odd));
    _mm512_store_si512(codes + 64, _mm512_permutex2var_epi64(even, second, odd));
  }

  template <i64 kTokens>
  static void add_block(const u8* packed, __m512 scales, const float* x, i64 token_stride,
                        __m512 (&sums)[kTokens]) {
    const __m512 values = _mm512_loadu_ps(kE2m1Values.of);
    const __m512i codes =
        _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(packed)));
    // The permutation looks at the low 4 bits of each index.
    const __m512 even = _mm512_mul_ps(_mm512_permutexvar_ps(codes, values), scales);
    const __m512 odd =
        _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), values), scales);
#pragma GCC unroll 4
    for (i64 t = 0; t < kTokens; ++t, x += token_stride) {
      sums[t] = _mm512_fmadd_ps(even, load_twice(x), sums[t]);
      sums[t] = _mm512_fmadd_ps(odd, load_twice(x + kLanes), sums[t]);
    }
  }
};

// Any number of tokens: a kernel of the loop nest in row_kernel.h.
template <class V, class Tokens>
class W4A16Pairs {
 public:
  // Values along K decoded at a time: the panel takes 32 KiB and stays in L1.
  static constexpr i64 kChunk = 512;

  static i64 panel_bytes() { return kChunk / kScaleBlock * kBlockFloats * 4; }
  static i64 token_bytes(i64 k) { return W4A16<V, Tokens>::token_bytes(k); }
  static void prepare_token(const Group& group, i64 token, u8* prepared) {
    W4A16<V, Tokens>::prepare_token(group, token, prepared);
  }

  W4A16Pairs(const Group& group, const u8* prepared, u8* panel)
      : group_(group),
        panel_(reinterpret_cast<float*>(panel)),
        tokens_(reinterpret_cast<const float*>(prepared)) {}

  // Fills the panel, [K / 16][even, odd][16 rows][8 values].
  void decode_weights(const Tile& tile, KRange k) {
    for (i64 r = 0; r < kTileRows; ++r) {
      const i64 row = tile.row + min_of(r, tile.rows - 1);  // the last row again fills the tile
      float scales[kChunk / kScaleBlock];
      load_scales(row, k, scales);
      const u8* packed = group_.w + row * group_.w_row_bytes + k.begin / 2;
      const u8* ahead = next_tile(group_, tile, k) + r * (kChunk / 2);
      for (i64 i = 0; i < k.count / 2; i += 64) __builtin_prefetch(ahead + i, 0, 2);
      float* to = panel_ + r * kLanes;
      i64 b = 0;
      for (; (b + 2) * kScaleBlock <= k.count; b += 2, packed += 16, to += 2 * kBlockFloats) {
        decode_two_blocks(packed, scales + b, to, to + kBlockFloats);
      }
      if (b * kScaleBlock < k.count) {
        u8 rest[16] = {};
        for (i64 i = 0; i < 8; ++i) rest[i] = packed[i];
        decode_two_blocks(rest, scales + b, to, to);
      }
    }
  }

  void multiply(const Tile&, KRange k, float* accumulators) const {
    i64 t = 0;
    for (; t + 3 <= group_.tokens; t += 3) micro_kernel<3>(t, k, accumulators);
    if (group_.tokens - t == 2) micro_kernel<2>(t, k, accumulators);
    if (group_.tokens - t == 1) micro_kernel<1>(t, k, accumulators);
  }

 private:
  static constexpr i64 kPairs = kTileRows / 2;
  static constexpr i64 kHalfFloats = kTileRows * kLanes;  // even or odd values of a block
  static constexpr i64 kBlockFloats = 2 * kHalfFloats;

  void load_scales(i64 row, KRange k, float* scales) const {
    u8 bytes[kChunk / kScaleBlock] = {};
    copy_scales(group_.w_scales, row, k.begin / kScaleBlock, k.count / kScaleBlock, bytes);
    for (i64 b = 0; b < kChunk / kScaleBlock; b += 16) {
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + b));
      _mm512_storeu_ps(scales + b, decode_scales(some));
    }
  }

  // 16 packed bytes. The second block is written first: `first` and `second` may be one place.
  static void decode_two_blocks(const u8* packed, const float* scales, float* first,
                                float* second) {
    const __m512 values = _mm512_loadu_ps(kE2m1Values.of);
    const __m512 both = _mm512_insertf32x8(_mm512_set1_ps(scales[0]), _mm256_set1_ps(scales[1]), 1);
    const __m512i codes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
    // The permutation looks at the low 4 bits of each index.
    const __m512 even = _mm512_mul_ps(_mm512_permutexvar_ps(codes, values), both);
    const __m512 odd =
        _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), values), both);
    _mm256_storeu_ps(second, _mm512_extractf32x8_ps(even, 1));
    _mm256_storeu_ps(second + kHalfFloats, _mm512_extractf32x8_ps(odd, 1));
    _mm256_storeu_ps(first, _mm512_castps512_ps256(even));
    _mm256_storeu_ps(first + kHalfFloats, _mm512_castps512_ps256(odd));
  }

  // All rows of the tile by kTokens tokens.
  template <i64 kTokens>
  void micro_kernel(i64 token, KRange k, float* accumulators) const {
    __m512 sums[kTokens][kPairs];
#pragma GCC unroll 4
    for (i64 t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
      for (i64 p = 0; p < kPairs; ++p) {
        sums[t][p] = _mm512_loadu_ps(accumulators_of(accumulators, token + t, 2 * p));
      }
    }
    const float* w = panel_;
    const float* x = tokens_ + token * group_.k + k.begin;
    for (i64 i = 0; i < k.count; i += kLanes, w += kHalfFloats, x += kLanes) {
      __m512 tokens[kTokens];
#pragma GCC unroll 4
      for (i64 t = 0; t < kTokens; ++t) tokens[t] = load_twice(x + t * group_.k);
#pragma GCC unroll 8
      for (i64 p = 0; p < kPairs; ++p) {
        const __m512 weights = _mm512_loadu_ps(w + p * 2 * kLanes);
#pragma GCC unroll 4
        for (i64 t = 0; t < kTokens; ++t) {
          sums[t][p] = _mm512_fmadd_ps(weights, tokens[t], sums[t][p]);
        }
      }
    }
#pragma GCC unroll 4
    for (i64 t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
      for (i64 p = 0; p < kPairs; ++p) {
        _mm512_storeu_ps(accumulators_of(accumulators, token + t, 2 * p), sums[t][p]);
      }
    }
  }

  const Group& group_;
  float* panel_;
  const float* tokens_;
};

}  // namespace nibblas::cpu
