// Operations on 512-bit registers that several kernels share, beside the eight-lane ones of Vec256.
#pragma once

#include <immintrin.h>

#include "vec_avx2.h"

namespace nibblas::cpu {

static inline __m512i load_64_bytes(const void* from) { return _mm512_loadu_si512(from); }
static inline __m512i low_nibbles(__m512i bytes) {
  return _mm512_and_si512(bytes, _mm512_set1_epi8(0xF));
}
static inline __m512i high_nibbles(__m512i bytes) {
  return _mm512_and_si512(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi8(0xF));
}

// Sixteen lanes, for the epilogue. Same bits as Vec256.
template <class Level>
struct Vec512 {
  using F32 = __m512;

  static F32 broadcast(float value) { return _mm512_set1_ps(value); }
  static F32 load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, F32 v) { _mm512_storeu_ps(to, v); }
  static F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
  static F32 multiply(F32 a, F32 b) { return _mm512_mul_ps(a, b); }

  static F32 canonical_nan(F32 v) {
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                              broadcast(float_of(kCanonicalNan)));
  }

  static void store_bf16(u16* to, F32 v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF))), 16);
    store_32_bytes(to, _mm512_cvtepi32_epi16(rounded));
  }
  static void store_fp16(u16* to, F32 v) {
    store_32_bytes(to, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

 private:
  static void store_32_bytes(u16* to, __m256i v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v);
  }
};

// The same eight floats in both halves.
static inline __m512 load_twice(const float* from) {
  return _mm512_broadcast_f32x8(_mm256_loadu_ps(from));
}

// 16 scales times 2^-8, see Vec256::decode_e4m3. Who multiplies them has a power of two to spare.
static inline __m512 decode_16_e4m3(__m128i bytes) {
  const __m256i wide = _mm256_cvtepi8_epi16(bytes);
  const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7F));
  const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7F));
  const __m256i fp16 =
      _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(static_cast<i16>(0xBFFF)));
  return _mm512_cvtph_ps(_mm256_or_si256(fp16, nan));
}

// Turns 16 rows of 16 32-bit elements into 16 columns.
static inline void transpose(__m512i (&m)[16]) {
  __m512i pairs[16], quads[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(m[i], m[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(m[i], m[i + 1]);
  }
  // Lane L of quads[4 * q + c]: column 4 * L + c of rows 4 * q to 4 * q + 3.
#pragma GCC unroll 4
  for (int q = 0; q < 16; q += 4) {
    quads[q] = _mm512_unpacklo_epi64(pairs[q], pairs[q + 2]);
    quads[q + 1] = _mm512_unpackhi_epi64(pairs[q], pairs[q + 2]);
    quads[q + 2] = _mm512_unpacklo_epi64(pairs[q + 1], pairs[q + 3]);
    quads[q + 3] = _mm512_unpackhi_epi64(pairs[q + 1], pairs[q + 3]);
  }
  constexpr int kEven = 0x88, kOdd = 0xDD;  // lanes 0 and 2 of both operands, or 1 and 3
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even01 = _mm512_shuffle_i32x4(quads[c], quads[c + 4], kEven);
    const __m512i even23 = _mm512_shuffle_i32x4(quads[c + 8], quads[c + 12], kEven);
    const __m512i odd01 = _mm512_shuffle_i32x4(quads[c], quads[c + 4], kOdd);
    const __m512i odd23 = _mm512_shuffle_i32x4(quads[c + 8], quads[c + 12], kOdd);
    m[c] = _mm512_shuffle_i32x4(even01, even23, kEven);
    m[c + 4] = _mm512_shuffle_i32x4(odd01, odd23, kEven);
    m[c + 8] = _mm512_shuffle_i32x4(even01, even23, kOdd);
    m[c + 12] = _mm512_shuffle_i32x4(odd01, odd23, kOdd);
  }
}

}  // namespace nibblas::cpu
