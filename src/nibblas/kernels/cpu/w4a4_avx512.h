// NVFP4 tokens times NVFP4 weights with AVX-512 VNNI: as W4A4, with two weight rows in one
// register. 16 integer lanes hold the dot products of 8 blocks of row a and 8 of row b, in each
// 128-bit part L:
//
//     a: block 2L | a: block 2L + 1 | b: block 2L | b: block 2L + 1
//
// so that eight lanes of fp32 per row add what they add there. Weights are the unsigned operand:
// the surplus depends on the token's block alone.
#pragma once

#include "dot_tables.h"
#include "row_pair.h"

namespace nibblas::cpu {

constexpr i64 kDotStep = kLanes * kScaleBlock;  // values of one step: one block per lane

struct alignas(64) DotTokens {
  u8 codes[4][64];  // signed; both rows' places hold the token
  i32 offset[16];   // -12 times the sum of each block
  float scales[16];
};

struct alignas(64) DotWeights {
  u8 codes[4][64];  // shifted
  float scales[16];
};

static_assert(kDotStep == kPairStep, "a step of a row pair is a step of dot products");

// 8 blocks of rows a and b -> low and high nibbles of each block's first and second four bytes.
static inline void unpack_codes(__m512i a, __m512i b, const u8* table, __m512i (&to)[4]) {
  const __m512i entries =
      _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
  const __m512 fa = _mm512_castsi512_ps(a), fb = _mm512_castsi512_ps(b);
  const __m512i first = _mm512_castps_si512(_mm512_shuffle_ps(fa, fb, _MM_SHUFFLE(2, 0, 2, 0)));
  const __m512i second = _mm512_castps_si512(_mm512_shuffle_ps(fa, fb, _MM_SHUFFLE(3, 1, 3, 1)));
  to[0] = _mm512_shuffle_epi8(entries, low_nibbles(first));
  to[1] = _mm512_shuffle_epi8(entries, high_nibbles(first));
  to[2] = _mm512_shuffle_epi8(entries, low_nibbles(second));
  to[3] = _mm512_shuffle_epi8(entries, high_nibbles(second));
}

// 8 scales of row a, then 8 of row b -> in the order of the dot products, times 2^-8.
static inline __m512 scales_in_dot_order(__m128i scales) {
  const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  return decode_16_e4m3(_mm_shuffle_epi8(scales, order));
}

// From the order of dot products to eight lanes of row a, then eight of row b, and back.
static inline __m512 rows_apart(__m512 v) {
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  return _mm512_castpd_ps(_mm512_permutexvar_pd(order, _mm512_castps_pd(v)));
}
static inline __m512 rows_together(__m512 v) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm512_castpd_ps(_mm512_permutexvar_pd(order, _mm512_castps_pd(v)));
}

static inline __m512 add_dots(const __m512i (&weights)[4], __m512 weight_scales,
                              const DotTokens& token, __m512 sums) {
  __m512i dots = _mm512_load_si512(token.offset);
#pragma GCC unroll 4
  for (i64 part = 0; part < 4; ++part) {
    dots = _mm512_dpbusd_epi32(dots, weights[part], _mm512_load_si512(token.codes[part]));
  }
  const __m512 scales = _mm512_mul_ps(_mm512_load_ps(token.scales), weight_scales);
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scales, sums);
}

static inline void fill_token_step(__m512i packed, const u8* scales, DotTokens& step) {
  __m512i codes[4];
  unpack_codes(packed, packed, kDotTables.doubled, codes);
  const __m512i shift = _mm512_set1_epi8(kE2m1MaxDoubled);
  __m512i sums = _mm512_setzero_si512();
  for (i64 part = 0; part < 4; ++part) {
    _mm512_store_si512(step.codes[part], codes[part]);
    sums = _mm512_dpbusd_epi32(sums, shift, codes[part]);
  }
  _mm512_store_si512(step.offset, _mm512_sub_epi32(_mm512_setzero_si512(), sums));
  // Both codes are doubled, so a quarter makes the product of values; both scales come times 2^-8.
  const __m128i some = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales));
  const __m512 token_scales = scales_in_dot_order(_mm_unpacklo_epi64(some, some));
  _mm512_store_ps(step.scales, _mm512_mul_ps(token_scales, _mm512_set1_ps(0x1p16f / 4)));
}

static inline i64 dot_token_bytes(i64 k) {
  return ceil_div(k, kDotStep) * static_cast<i64>(sizeof(DotTokens));
}

static inline void prepare_dot_token(const Group& group, i64 token, u8* prepared) {
  DotTokens* steps = reinterpret_cast<DotTokens*>(prepared);
  const u8* row = group.x + token * group.x_row_bytes;
  for (i64 k = 0; k < group.k; k += kDotStep) {
    const i64 count = min_of(kDotStep, group.k - k);
    const u64 used = _bzhi_u64(~u64{0}, static_cast<u32>(count / 2));
    u8 scales[8] = {};
    copy_scales(group.x_scales, token, k / kScaleBlock, count / kScaleBlock, scales);
    fill_token_step(_mm512_maskz_loadu_epi8(used, row + k / 2), scales, steps[k / kDotStep]);
  }
}

// Few tokens, a pair of rows at a time.
template <class V>
struct DotStream {
  static constexpr i64 kRows = 2;
  // From here on AMX is faster, and the loop nest about as fast.
  static constexpr i64 kMostTokens = 4;

  static i64 token_bytes(i64 k) { return dot_token_bytes(k); }

  static void multiply(const Group& group, const Tile& tile, i64 r, const u8* prepared,
                       float* accumulators) {
    const RowPair<V> pair(group, tile, r);
    const i64 token_bytes = dot_token_bytes(group.k);
    switch (group.tokens) {
      case 1:
        return multiply_tokens<1>(pair, prepared, token_bytes, accumulators);
      case 2:
        return multiply_tokens<2>(pair, prepared, token_bytes, accumulators);
      case 3:
        return multiply_tokens<3>(pair, prepared, token_bytes, accumulators);
      default:
        return multiply_tokens<4>(pair, prepared, token_bytes, accumulators);
    }
  }

 private:
  template <i64 kTokens>
  static void multiply_tokens(const RowPair<V>& pair, const u8* prepared, i64 token_bytes,
                              float* accumulators) {
    __m512 sums[kTokens];
#pragma GCC unroll 4
    for (i64 t = 0; t < kTokens; ++t) sums[t] = _mm512_setzero_ps();
    const i64 steps = pair.full_steps();
    for (i64 s = 0; s < steps; ++s) {
      add_step<kTokens>(pair.load(s), prepared + s * sizeof(DotTokens), token_bytes, sums);
    }
    if (pair.has_rest()) {
      add_step<kTokens>(pair.load_rest(), prepared + steps * sizeof(DotTokens), token_bytes, sums);
    }
#pragma GCC unroll 4
    for (i64 t = 0; t < kTokens; ++t) {
      _mm512_storeu_ps(accumulators + t * kTileRows * kLanes, rows_apart(sums[t]));
    }
  }

  template <i64 kTokens>
  static void add_step(const typename RowPair<V>::Step& step, const u8* tokens, i64 token_bytes,
                       __m512 (&sums)[kTokens]) {
    __m512i codes[4];
    unpack_codes(step.a, step.b, kDotTables.shifted, codes);
    const __m512 scales = scales_in_dot_order(step.scales);
#pragma GCC unroll 4
    for (i64 t = 0; t < kTokens; ++t, tokens += token_bytes) {
      sums[t] = add_dots(codes, scales, *reinterpret_cast<const DotTokens*>(tokens), sums[t]);
    }
  }
};

// Any number of tokens: a kernel of the loop nest in row_kernel.h.
template <class V>
class W4A4Pairs {
 public:
  // Values along K decoded at a time: the panel takes 20 KiB and stays in L1.
  static constexpr i64 kChunk = 1024;

  static i64 panel_bytes() { return kChunkSteps * kPairs * static_cast<i64>(sizeof(DotWeights)); }
  static i64 token_bytes(i64 k) { return dot_token_bytes(k); }
  static void prepare_token(const Group& group, i64 token, u8* prepared) {
    prepare_dot_token(group, token, prepared);
  }

  W4A4Pairs(const Group& group, const u8* prepared, u8* panel)
      : group_(group),
        steps_(ceil_div(group.k, kDotStep)),
        panel_(reinterpret_cast<DotWeights*>(panel)),
        tokens_(reinterpret_cast<const DotTokens*>(prepared)) {}

  // Fills the panel, [steps][8 pairs of rows].
  void decode_weights(const Tile& tile, KRange k) {
    for (i64 p = 0; p < kPairs; ++p) {
      const RowPair<V> pair(group_, tile, 2 * p);
      DotWeights* to = panel_ + p;
      const i64 begin = k.begin / kDotStep, end = begin + k.count / kDotStep;
      for (i64 s = begin; s < end; ++s, to += kPairs) fill_weight_step(pair.load(s), *to);
      if (k.count % kDotStep != 0) fill_weight_step(pair.load_rest(), *to);
    }
  }

  void multiply(const Tile&, KRange k, float* accumulators) const {
    for (i64 t = 0; t < group_.tokens; ++t) {
      micro_kernel(tokens_ + t * steps_ + k.begin / kDotStep, ceil_div(k.count, kDotStep),
                   accumulators_of(accumulators, t, 0));
    }
  }

 private:
  static constexpr i64 kPairs = kTileRows / 2;
  static constexpr i64 kChunkSteps = kChunk / kDotStep;

  static void fill_weight_step(const typename RowPair<V>::Step& from, DotWeights& to) {
    __m512i codes[4];
    unpack_codes(from.a, from.b, kDotTables.shifted, codes);
    for (i64 part = 0; part < 4; ++part) _mm512_store_si512(to.codes[part], codes[part]);
    _mm512_store_ps(to.scales, scales_in_dot_order(from.scales));
  }

  // All rows of the tile by one token.
  void micro_kernel(const DotTokens* token, i64 steps, float* accumulators) const {
    __m512 sums[kPairs];
#pragma GCC unroll 8
    for (i64 p = 0; p < kPairs; ++p) {
      sums[p] = rows_together(_mm512_loadu_ps(accumulators + p * 2 * kLanes));
    }
    const DotWeights* weights = panel_;
    for (i64 s = 0; s < steps; ++s, ++token, weights += kPairs) {
#pragma GCC unroll 8
      for (i64 p = 0; p < kPairs; ++p) {
        __m512i codes[4];
#pragma GCC unroll 4
        for (i64 part = 0; part < 4; ++part) {
          codes[part] = _mm512_load_si512(weights[p].codes[part]);
        }
        sums[p] = add_dots(codes, _mm512_load_ps(weights[p].scales), *token, sums[p]);
      }
    }
#pragma GCC unroll 8
    for (i64 p = 0; p < kPairs; ++p) {
      _mm512_storeu_ps(accumulators + p * 2 * kLanes, rows_apart(sums[p]));
    }
  }

  const Group& group_;
  i64 steps_;
  DotWeights* panel_;
  const DotTokens* tokens_;
};

}  // namespace nibblas::cpu
