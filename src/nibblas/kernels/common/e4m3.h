// E4M3 "fn": 1 sign, 4 exponent (bias 7) and 3 mantissa bits, no infinity, NaN = 0x7F and 0xFF,
// largest 448; OCP 8-bit Floating Point Specification v1.0.
#pragma once

#include "types.h"

namespace nibblas {

constexpr u32 kE4m3Sign = 0x80;
constexpr u32 kE4m3Nan = 0x7F;

NIBBLAS_HD static constexpr bool is_e4m3_nan(u32 byte) { return (byte & 0x7F) == kE4m3Nan; }

// Value of a byte, exact; subnormals included, so independent of the FTZ and DAZ modes.
NIBBLAS_HD static constexpr float decode_e4m3(u32 byte) {
  if (is_e4m3_nan(byte)) return __builtin_bit_cast(float, 0x7FFFFFFFu);
  const u32 exponent = byte >> 3 & 0xF;
  const u32 mantissa = byte & 0x7;
  const u32 multiple = exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1);
  const float magnitude = static_cast<float>(multiple) * (1.0f / 512);  // smallest subnormal 2^-9
  return (byte & kE4m3Sign) != 0 ? -magnitude : magnitude;
}

static_assert(decode_e4m3(0x7E) == 448.0f && decode_e4m3(0x01) == 1.0f / 512,
              "E4M3 runs from 2^-9 to 448");

}  // namespace nibblas
