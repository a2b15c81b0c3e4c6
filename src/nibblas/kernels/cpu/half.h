// bfloat16 and float16 in plain integer arithmetic: what the SIMD conversions must agree with.
// Conversions to 16 bits round to nearest, ties to even, and overflow to infinity.
#pragma once

#include "../common/types.h"
#include "abi.h"

namespace nibblas::cpu {

static constexpr u32 bits_of(float value) { return __builtin_bit_cast(u32, value); }
static constexpr float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }

// Every NaN result is this one, so that all instruction levels give equal bits.
static constexpr u32 kCanonicalNan = 0x7FC00000;

static constexpr float canonical(float value) {
  return value == value ? value : float_of(kCanonicalNan);
}

static constexpr float from_bf16(u16 half) { return float_of(u32{half} << 16); }

// `value` is not a NaN other than the canonical one.
static constexpr u16 to_bf16(float value) {
  const u32 bits = bits_of(value);
  return static_cast<u16>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static constexpr float from_fp16(u16 half) {
  const u32 sign = u32{half} << 16 & 0x80000000;
  const u32 magnitude = half & 0x7FFF;
  if (magnitude < 0x0400) {  // zero and subnormals: multiples of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return float_of(bits_of(value) | sign);
  }
  const u32 rebias = magnitude < 0x7C00 ? 112u << 23 : 224u << 23;  // infinity and NaN: all ones
  return float_of(((magnitude << 13) + rebias) | sign);
}

static constexpr u16 to_fp16(float value) {
  const u32 sign = bits_of(value) >> 16 & 0x8000;
  const u32 magnitude = bits_of(value) & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<u16>(sign | 0x7E00);
  if (magnitude >= 0x47800000) return static_cast<u16>(sign | 0x7C00);  // 65536 and above
  if (magnitude < 0x38800000) {                        // below 2^-14: round to a multiple of 2^-24
    const float aligned = float_of(magnitude) + 0.5f;  // one unit in the last place of 0.5: 2^-24
    return static_cast<u16>(sign | (bits_of(aligned) - 0x3F000000));
  }
  const u32 rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<u16>(sign | ((rounded - (112u << 23)) >> 13));
}

// Element `i` of an array of a 16 or 32-bit NibblasType.
static inline float load_as_float(const u8* array, i64 type, i64 i) {
  switch (type) {
    case NIBBLAS_BFLOAT16:
      return from_bf16(reinterpret_cast<const u16*>(array)[i]);
    case NIBBLAS_FLOAT16:
      return from_fp16(reinterpret_cast<const u16*>(array)[i]);
    default:
      return reinterpret_cast<const float*>(array)[i];
  }
}

}  // namespace nibblas::cpu
