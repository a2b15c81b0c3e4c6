// NVFP4 codes decoded in registers to packed 16-bit values, exact.
//
// A magnitude's three bits, put at the border of a 16-bit float's exponent and mantissa, are a
// power of two below its value, subnormals included; one packed multiplication by the block's
// scale, itself a power of two above, ends the decode:
//
//   fp16: codes at bit 9 = value * 2^-14,  scale * 2^7   -> value * scale * 2^-7
//   bf16: codes at bit 6 = value * 2^-126, scale * 2^119 -> value * scale * 2^-7
//
// value * scale has at most 6 significant bits and is a multiple of 2^-10, so value * scale * 2^-7
// is exact in both types. The sum is multiplied by 2^7 (2^14 where both operands come from here).
//
// A word of 8 codes k0..k7, lowest nibble first, becomes the pairs (k0,k4) (k1,k5) (k2,k6) (k3,k7):
// two nibbles 16 bits apart need one shift for both. Matrix instructions do not care in which order
// they meet k, as long as both operands agree.
#pragma once

#include "ptx/arithmetic.cuh"

namespace nibblas {

// value * scale * 2^-kDecodeShift is what decode_pairs returns.
constexpr i32 kDecodeShift = 7;

struct Pairs {
  u32 of[4];  // (k0,k4) (k1,k5) (k2,k6) (k3,k7)
};

// The scales of a lane's two blocks, each in both halves of a register.
struct ScalePairs {
  u32 of[2];
};

// Two E4M3 bytes as fp16 values 2^-8 below theirs, subnormals included; NaN for a NaN byte.
static __device__ __forceinline__ u32 place_scales(u32 two_bytes) {
  const u32 spread = ptx::prmt<0x4140>(two_bytes, 0);
  const u32 magnitude = spread & 0x007F007Fu;
  const u32 nan = (magnitude + 0x00010001u) & 0x00800080u;
  return magnitude << 7 | (spread & 0x00800080u) << 8 | nan * 0xFC;
}

struct Fp16 {
  // scale * 2^7.
  static __device__ __forceinline__ ScalePairs scale_pairs(u32 two_bytes) {
    constexpr u32 kTwoTo15 = 0x78007800u;
    const u32 scales = ptx::mul_f16x2(place_scales(two_bytes), kTwoTo15);
    return {{ptx::prmt<0x1010>(scales, 0), ptx::prmt<0x3232>(scales, 0)}};
  }
  static __device__ __forceinline__ u32 multiply(u32 codes, u32 scale) {
    return ptx::mul_f16x2(codes, scale);
  }
  static constexpr i32 kMagnitudeBit = 9;
};

struct Bf16 {
  // scale * 2^119.
  static __device__ __forceinline__ ScalePairs scale_pairs(u32 two_bytes) {
    constexpr float kTwoTo127 = 170141183460469231731687303715884105728.0f;
    const u32 scales = place_scales(two_bytes);
    const u32 first = ptx::cvt_bf16_f32(ptx::cvt_f32_f16(scales & 0xFFFF) * kTwoTo127);
    const u32 second = ptx::cvt_bf16_f32(ptx::cvt_f32_f16(scales >> 16) * kTwoTo127);
    return {{first | first << 16, second | second << 16}};
  }
  static __device__ __forceinline__ u32 multiply(u32 codes, u32 scale) {
    constexpr u32 kNegativeZeros = 0x80008000u;  // x + -0 is x, for -0 too
    return ptx::fma_bf16x2(codes, scale, kNegativeZeros);
  }
  static constexpr i32 kMagnitudeBit = 6;
};

// Codes j and j + 4 of a word, as two 16-bit floats of the type, a power of two below their value.
template <class Type, i32 j>
static __device__ __forceinline__ u32 place_codes(u32 word) {
  constexpr i32 kMagnitude = Type::kMagnitudeBit - 4 * j;
  constexpr i32 kSign = 15 - (4 * j + 3);
  constexpr u32 kMagnitudeMask = 0x00070007u << Type::kMagnitudeBit;
  const u32 magnitude = kMagnitude >= 0 ? word << (kMagnitude & 31) : word >> (-kMagnitude & 31);
  return (magnitude & kMagnitudeMask) | (word << kSign & 0x80008000u);
}

template <class Type>
static __device__ __forceinline__ Pairs decode_pairs(u32 word, u32 scale_pair) {
  return {{Type::multiply(place_codes<Type, 0>(word), scale_pair),
           Type::multiply(place_codes<Type, 1>(word), scale_pair),
           Type::multiply(place_codes<Type, 2>(word), scale_pair),
           Type::multiply(place_codes<Type, 3>(word), scale_pair)}};
}

// The same order for 8 consecutive 16-bit values in 4 registers.
static __device__ __forceinline__ Pairs interleave_pairs(u32 v01, u32 v23, u32 v45, u32 v67) {
  constexpr u32 kLowHalves = 0x5410, kHighHalves = 0x7632;
  return {{ptx::prmt<kLowHalves>(v01, v45), ptx::prmt<kHighHalves>(v01, v45),
           ptx::prmt<kLowHalves>(v23, v67), ptx::prmt<kHighHalves>(v23, v67)}};
}

}  // namespace nibblas
