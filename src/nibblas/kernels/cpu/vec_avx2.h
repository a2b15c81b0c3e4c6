// Eight-lane operations with AVX2, FMA and F16C. Same members as Portable, same bits. `Level` is a
// tag: each level that uses them compiles its own.
#pragma once

#include <immintrin.h>

#include "../common/e2m1.h"
#include "half.h"

namespace nibblas::cpu {

// bfloat16 of each E2M1 code, byte by byte.
struct Bf16Bytes {
  alignas(16) u8 lower[16];
  alignas(16) u8 upper[16];
};

static constexpr Bf16Bytes make_bf16_of_e2m1() {
  Bf16Bytes table{};
  for (u32 code = 0; code < 16; ++code) {
    table.lower[code] = static_cast<u8>(to_bf16(decode_e2m1(code)));
    table.upper[code] = static_cast<u8>(to_bf16(decode_e2m1(code)) >> 8);
  }
  return table;
}

constexpr Bf16Bytes kBf16OfE2m1 = make_bf16_of_e2m1();

template <class Level>
struct Vec256 {
  using F32 = __m256;

  static F32 zero() { return _mm256_setzero_ps(); }
  static F32 broadcast(float value) { return _mm256_set1_ps(value); }
  static F32 load(const float* from) { return _mm256_loadu_ps(from); }
  // For operands of several instructions: GCC would rather read memory in each of them, and two
  // reads per FMA are more than a core can do.
  static F32 load_to_register(const float* from) {
    F32 v = load(from);
    asm("" : "+x"(v));
    return v;
  }
  static void store(float* to, F32 v) { _mm256_storeu_ps(to, v); }
  static F32 add(F32 a, F32 b) { return _mm256_add_ps(a, b); }
  static F32 multiply(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
  static F32 multiply_add(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }

  // Elements 0, 2, .. 14 and 1, 3, .. 15 of 16 consecutive bf16.
  static F32 load_bf16_even(const u16* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(load_32_bytes(from), 16));
  }
  static F32 load_bf16_odd(const u16* from) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(load_32_bytes(from), _mm256_set1_epi32(static_cast<i32>(0xFFFF0000))));
  }

  // The same of 16 consecutive fp16.
  static F32 load_fp16_even(const u16* from) {
    const __m128i mask = _mm_set1_epi32(0xFFFF);
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm_and_si128(load_16_bytes(from), mask),
                                            _mm_and_si128(load_16_bytes(from + 8), mask)));
  }
  static F32 load_fp16_odd(const u16* from) {
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm_srli_epi32(load_16_bytes(from), 16),
                                            _mm_srli_epi32(load_16_bytes(from + 8), 16)));
  }

  // 8 scales. E4M3 shifted to the top of an fp16's exponent and mantissa is 2^-8 of its value,
  // subnormals included, and F16C converts fp16 subnormals whatever the DAZ mode.
  static F32 decode_e4m3(const u8* bytes) {
    const __m128i wide =
        _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
    const __m128i magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7F));
    const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F));
    const __m128i fp16 =
        _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16(static_cast<i16>(0xBFFF)));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(fp16, nan)), _mm256_set1_ps(256.0f));
  }

  // 32 packed bytes = 4 blocks -> values of each block's low nibbles and of its high nibbles.
  // Two byte tables make bfloat16, which is the upper half of fp32. The halves of a block are first
  // brought into different 128-bit lanes, so that unpacking within lanes keeps a block together.
  static void decode_e2m1(const u8* packed, F32 (&low)[4], F32 (&high)[4]) {
    const __m256i bytes = _mm256_permutevar8x32_epi32(load_32_bytes(packed),
                                                      _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    decode_codes(low_nibbles(bytes), low);
    decode_codes(high_nibbles(bytes), high);
  }

  // 64 packed bytes = 8 blocks -> table entries in step order: [4][8 blocks][4 bytes], where the
  // four parts are the low then the high nibbles of each block's first and second four bytes.
  static void unpack_step(const u8* packed, const u8* table, u8* to) {
    const __m256i entries = load_table(table);
    const __m256 a = load_two(packed, packed + 32);       // blocks 0, 1 | 4, 5
    const __m256 b = load_two(packed + 16, packed + 48);  // blocks 2, 3 | 6, 7
    const __m256i first = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
    const __m256i second = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
    store_32_bytes(to, _mm256_shuffle_epi8(entries, low_nibbles(first)));
    store_32_bytes(to + 32, _mm256_shuffle_epi8(entries, high_nibbles(first)));
    store_32_bytes(to + 64, _mm256_shuffle_epi8(entries, low_nibbles(second)));
    store_32_bytes(to + 96, _mm256_shuffle_epi8(entries, high_nibbles(second)));
  }

  // Dot products of 8 blocks in step order, plus `offset`; all integers, exact.
  // Four times two products of at most 24 * 12 stay far below the 16-bit limit.
  static F32 block_dots(const u8* a, const i8* b, const i32* offset) {
    __m256i pairs = _mm256_maddubs_epi16(load_32_bytes(a), load_32_bytes(b));
    for (i64 part = 1; part < 4; ++part) {
      pairs = _mm256_add_epi16(
          pairs, _mm256_maddubs_epi16(load_32_bytes(a + part * 32), load_32_bytes(b + part * 32)));
    }
    const __m256i dots = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(dots, load_32_bytes(offset)));
  }

  // `factor` times the sum of each of 8 blocks in step order.
  static void scaled_block_sums(const i8* codes, i16 factor, i32* to) {
    const __m256i ones = _mm256_set1_epi8(1);
    __m256i pairs = _mm256_maddubs_epi16(ones, load_32_bytes(codes));
    for (i64 part = 1; part < 4; ++part) {
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(ones, load_32_bytes(codes + part * 32)));
    }
    store_32_bytes(to, _mm256_madd_epi16(pairs, _mm256_set1_epi16(factor)));
  }

  // Lane r = sum of the 8 lanes of rows[r]: ((0+4)+(2+6)) + ((1+5)+(3+7)).
  static F32 reduce_rows(const float* rows) {
    const F32 p0 = add_halves(rows, rows + 32), p1 = add_halves(rows + 8, rows + 40);
    const F32 p2 = add_halves(rows + 16, rows + 48), p3 = add_halves(rows + 24, rows + 56);
    const F32 q0 = add_pairs(p0, p1), q1 = add_pairs(p2, p3);
    return _mm256_add_ps(_mm256_shuffle_ps(q0, q1, _MM_SHUFFLE(2, 0, 2, 0)),
                         _mm256_shuffle_ps(q0, q1, _MM_SHUFFLE(3, 1, 3, 1)));
  }

  static F32 canonical_nan(F32 v) {
    return _mm256_blendv_ps(v, broadcast(float_of(kCanonicalNan)),
                            _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  }

  static void store_bf16(u16* to, F32 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
    store_16_bytes(to, _mm_packus_epi32(_mm256_castsi256_si128(rounded),
                                        _mm256_extracti128_si256(rounded, 1)));
  }
  static void store_fp16(u16* to, F32 v) {
    store_16_bytes(to, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

 private:
  static void decode_codes(__m256i codes, F32 (&values)[4]) {
    const __m256i lower = _mm256_shuffle_epi8(load_table(kBf16OfE2m1.lower), codes);
    const __m256i upper = _mm256_shuffle_epi8(load_table(kBf16OfE2m1.upper), codes);
    const __m256i blocks01 = _mm256_unpacklo_epi8(lower, upper);
    const __m256i blocks23 = _mm256_unpackhi_epi8(lower, upper);
    const __m256i zero = _mm256_setzero_si256();
    values[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, blocks01));
    values[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, blocks01));
    values[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, blocks23));
    values[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, blocks23));
  }
  static __m128i load_16_bytes(const void* from) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
  }
  static __m256i load_32_bytes(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static void store_16_bytes(void* to, __m128i v) {
    _mm_storeu_si128(static_cast<__m128i*>(to), v);
  }
  static void store_32_bytes(void* to, __m256i v) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), v);
  }
  static __m256 load_two(const void* low, const void* high) {
    return _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(load_16_bytes(low)),
                                                       load_16_bytes(high), 1));
  }
  static __m256i load_table(const u8* table) {
    return _mm256_broadcastsi128_si256(load_16_bytes(table));
  }
  static __m256i low_nibbles(__m256i bytes) {
    return _mm256_and_si256(bytes, _mm256_set1_epi8(0xF));
  }
  static __m256i high_nibbles(__m256i bytes) {
    return _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(0xF));
  }
  // Low plus high half of row a in the low lanes, of row b in the high lanes.
  static F32 add_halves(const float* a, const float* b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(load(a), load(b), 0x20),
                         _mm256_permute2f128_ps(load(a), load(b), 0x31));
  }
  static F32 add_pairs(F32 a, F32 b) {
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(1, 0, 1, 0)),
                         _mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 2, 3, 2)));
  }
};

using Avx2 = Vec256<struct Avx2Level>;

}  // namespace nibblas::cpu
