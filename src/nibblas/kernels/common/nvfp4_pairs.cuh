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

// Two E4M3 bytes as fp16 values times 2^7, exact, subnormals included; NaN for a NaN byte.
#if __CUDA_ARCH__ >= 890
static __device__ __forceinline__ u32 scales_to_fp16(u32 two_bytes) {
  constexpr u32 kTwoTo7 = 0x58005800u;
  return ptx::mul_f16x2(ptx::cvt_f16x2_e4m3x2(static_cast<u16>(two_bytes)), kTwoTo7);
}
#else
// The bits of a byte, put where fp16 has its own, are a value 2^-8 below.
static __device__ __forceinline__ u32 scales_to_fp16(u32 two_bytes) {
  constexpr u32 kTwoTo15 = 0x78007800u;
  const u32 spread = ptx::prmt<0x4140>(two_bytes, 0);
  const u32 magnitude = spread & 0x007F007Fu;
  const u32 nan = (magnitude + 0x00010001u) & 0x00800080u;
  return ptx::mul_f16x2(magnitude << 7 | (spread & 0x00800080u) << 8 | nan * 0xFC, kTwoTo15);
}
#endif

struct Fp16 {
  // scale * 2^7.
  static __device__ __forceinline__ ScalePairs scale_pairs(u32 two_bytes) {
    const u32 scales = scales_to_fp16(two_bytes);
    return {{ptx::both_halves(static_cast<u16>(scales)),
             ptx::both_halves(static_cast<u16>(scales >> 16))}};
  }
  static __device__ __forceinline__ u32 multiply(u32 codes, u32 scale) {
    return ptx::mul_f16x2(codes, scale);
  }

  // A code's bits go to one byte as E5M2 has them, sign and two bits of exponent and one of
  // mantissa: the high byte of its fp16 value times 2^-14. Four codes share a selection of bits;
  // what else is in their bytes goes when the pairs are cut out.
  static __device__ __forceinline__ Pairs place_codes(u32 word) {
    constexpr u32 kSigns = 0x80808080u, kCodeInHighByte = 0x8E008E00u;
    const u32 even = ptx::select_bits(kSigns, word << 4, word << 1);
    const u32 odd = ptx::select_bits(kSigns, word, word >> 3);
    return {{even << 8 & kCodeInHighByte, odd << 8 & kCodeInHighByte, even & kCodeInHighByte,
             odd & kCodeInHighByte}};
  }
};

struct Bf16 {
  // scale * 2^119.
  static __device__ __forceinline__ ScalePairs scale_pairs(u32 two_bytes) {
    constexpr float kTwoTo112 = 5192296858534827628530496329220096.0f;
    const u32 scales = scales_to_fp16(two_bytes);
    return {{ptx::cvt_both_bf16_f32(ptx::cvt_f32_f16(static_cast<u16>(scales)) * kTwoTo112),
             ptx::cvt_both_bf16_f32(ptx::cvt_f32_f16(static_cast<u16>(scales >> 16)) * kTwoTo112)}};
  }
  static __device__ __forceinline__ u32 multiply(u32 codes, u32 scale) {
    constexpr u32 kNegativeZeros = 0x80008000u;  // x + -0 is x, for -0 too
    return ptx::fma_bf16x2(codes, scale, kNegativeZeros);
  }
  static __device__ __forceinline__ Pairs place_codes(u32 word) {
    return {{place<0>(word), place<1>(word), place<2>(word), place<3>(word)}};
  }

 private:
  // Codes j and j + 4 of a word: magnitudes from bit 6 on, signs at bit 15.
  template <i32 j>
  static __device__ __forceinline__ u32 place(u32 word) {
    constexpr i32 kMagnitude = 6 - 4 * j, kSign = 15 - (4 * j + 3);
    const u32 magnitude = kMagnitude >= 0 ? word << (kMagnitude & 31) : word >> (-kMagnitude & 31);
    return (magnitude & 0x01C001C0u) | (word << kSign & 0x80008000u);
  }
};

// codes * scale * 2^-kDecodeShift.
template <class Type>
static __device__ __forceinline__ Pairs decode_pairs(u32 word, u32 scale_pair) {
  const Pairs codes = Type::place_codes(word);
  return {{Type::multiply(codes.of[0], scale_pair), Type::multiply(codes.of[1], scale_pair),
           Type::multiply(codes.of[2], scale_pair), Type::multiply(codes.of[3], scale_pair)}};
}

// The same order for 8 consecutive 16-bit values in 4 registers.
static __device__ __forceinline__ Pairs interleave_pairs(u32 v01, u32 v23, u32 v45, u32 v67) {
  constexpr u32 kLowHalves = 0x5410, kHighHalves = 0x7632;
  return {{ptx::prmt<kLowHalves>(v01, v45), ptx::prmt<kHighHalves>(v01, v45),
           ptx::prmt<kLowHalves>(v23, v67), ptx::prmt<kHighHalves>(v23, v67)}};
}

}  // namespace nibblas
