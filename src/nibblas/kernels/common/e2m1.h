// E2M1: 1 sign, 2 exponent (bias 1) and 1 mantissa bit; OCP Microscaling Formats v1.0, 5.3.3.
// Magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Two codes share a byte, the low nibble is the even k.
#pragma once

#include "types.h"

namespace nibblas {

constexpr u32 kE2m1Sign = 0x8;
// Largest |2 * value|.
constexpr i32 kE2m1MaxDoubled = 12;

// 2 * value of a 4-bit code: an integer in {0, +-1, +-2, +-3, +-4, +-6, +-8, +-12}.
NIBBLAS_HD static constexpr i32 decode_e2m1_doubled(u32 code) {
  const i32 exponent = static_cast<i32>(code >> 1 & 0x3);
  const i32 mantissa = static_cast<i32>(code & 0x1);
  const i32 magnitude = exponent == 0 ? mantissa : (2 + mantissa) << (exponent - 1);
  return (code & kE2m1Sign) != 0 ? -magnitude : magnitude;
}

// Value of a 4-bit code. Negative zero (code 8) decodes to +0, as integer arithmetic has it.
NIBBLAS_HD static constexpr float decode_e2m1(u32 code) {
  return 0.5f * static_cast<float>(decode_e2m1_doubled(code));
}

static_assert(decode_e2m1_doubled(0x7) == kE2m1MaxDoubled, "the largest code is 6");

}  // namespace nibblas
