// 16-bit tokens times NVFP4 weights for few tokens, in an order of its own that is faster than that
// of W4A16: lane d of 16 takes the eight codes of the d-th dword of a step, all of one block, adds
// their products with the token, and the sum times the block's scale to what it has:
//
//     partial = sum over j of code(k = 8 * d + j) * x(k);  lane += partial * scale
//
// Codes are not scaled one by one, so tokens must stay below 2^91, where no partial sum overflows
// that the scale would have brought back into range.
#pragma once

#include "row_pair.h"
#include "vec_portable.h"

namespace nibblas::cpu {

// Few tokens, a pair of rows at a time.
template <class V>
struct FloatStream {
  static constexpr i64 kRows = 2;
  static constexpr i64 kMostTokens = 2;  // AMX is faster from here on

  static i64 token_bytes(i64 k) { return round_up(k, kPairStep) * static_cast<i64>(sizeof(float)); }

  // [K / 128][8 values of a dword][16 dwords], zero past the end of K.
  template <class Load>
  static void prepare_token(i64 k_end, u8* prepared, Load load) {
    float* to = reinterpret_cast<float*>(prepared);
    for (i64 k = 0; k < round_up(k_end, kPairStep); ++k) {
      const i64 step = k / kPairStep * kPairStep, place = k % 8 * 16 + k % kPairStep / 8;
      to[step + place] = k < k_end ? load(k) : 0.0f;
    }
  }

  static void multiply(const Group& group, const Tile& tile, i64 r, const u8* prepared,
                       float* accumulators) {
    const RowPair<V> pair(group, tile, r);
    if (group.tokens == 1) {
      multiply_tokens<1>(pair, prepared, token_bytes(group.k), accumulators);
    } else {
      multiply_tokens<2>(pair, prepared, token_bytes(group.k), accumulators);
    }
  }

 private:
  template <i64 kTokens>
  static void multiply_tokens(const RowPair<V>& pair, const u8* prepared, i64 token_bytes,
                              float* accumulators) {
    __m512 a[kTokens], b[kTokens];
#pragma GCC unroll 2
    for (i64 t = 0; t < kTokens; ++t) a[t] = b[t] = _mm512_setzero_ps();
    const i64 steps = pair.full_steps();
    for (i64 s = 0; s < steps; ++s) {
      add_step<kTokens>(pair.load(s), prepared + s * kStepBytes, token_bytes, a, b);
    }
    if (pair.has_rest()) {
      add_step<kTokens>(pair.load_rest(), prepared + steps * kStepBytes, token_bytes, a, b);
    }
#pragma GCC unroll 2
    for (i64 t = 0; t < kTokens; ++t) {
      store_eight(accumulators + t * kTileRows * kLanes, a[t]);
      store_eight(accumulators + t * kTileRows * kLanes + kLanes, b[t]);
    }
  }

  static constexpr i64 kStepBytes = kPairStep * static_cast<i64>(sizeof(float));

  template <i64 kTokens>
  static void add_step(const typename RowPair<V>::Step& step, const u8* tokens, i64 token_bytes,
                       __m512 (&a)[kTokens], __m512 (&b)[kTokens]) {
    const __m512 values = _mm512_loadu_ps(kE2m1Values.of);
    __m512 partial_a[kTokens], partial_b[kTokens];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      // The permutation looks at the low 4 bits of each index.
      const __m512 codes_a = _mm512_permutexvar_ps(_mm512_srli_epi32(step.a, 4 * j), values);
      const __m512 codes_b = _mm512_permutexvar_ps(_mm512_srli_epi32(step.b, 4 * j), values);
#pragma GCC unroll 2
      for (i64 t = 0; t < kTokens; ++t) {
        const __m512 x =
            _mm512_load_ps(reinterpret_cast<const float*>(tokens + t * token_bytes) + j * 16);
        partial_a[t] =
            j == 0 ? _mm512_mul_ps(codes_a, x) : _mm512_fmadd_ps(codes_a, x, partial_a[t]);
        partial_b[t] =
            j == 0 ? _mm512_mul_ps(codes_b, x) : _mm512_fmadd_ps(codes_b, x, partial_b[t]);
      }
    }
    const __m512 scales = decode_16_e4m3(step.scales);  // 2^8 is made up for at the end
    const __m512 scales_a = _mm512_permutexvar_ps(twice(0), scales);
    const __m512 scales_b = _mm512_permutexvar_ps(twice(8), scales);
#pragma GCC unroll 2
    for (i64 t = 0; t < kTokens; ++t) {
      a[t] = _mm512_fmadd_ps(partial_a[t], scales_a, a[t]);
      b[t] = _mm512_fmadd_ps(partial_b[t], scales_b, b[t]);
    }
  }

  // Lanes first, first, first + 1, first + 1, ...
  static __m512i twice(i32 first) {
    return _mm512_add_epi32(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                            _mm512_set1_epi32(first));
  }

  static void store_eight(float* to, __m512 lanes) {
    V::store(to,
             V::multiply(V::add(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1)),
                         V::broadcast(256.0f)));
  }
};

}  // namespace nibblas::cpu
