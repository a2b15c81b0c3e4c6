// NVFP4 codes decoded in registers to packed 16-bit values in the order of K, exact: a byte's two
// codes become one register. What nvfp4_pairs.cuh does for kernels that may permute K, and cheaper.
//
//   fp16: a code's bits as E5M2 has them are its value * 2^-14; one packed multiplication by the
//         scale gives value * scale * 2^-14, a multiple of 2^-24 with at most 6 significant bits,
//         which fp16 holds, subnormals included.
//   bf16: its two bytes are looked up by the code; value * scale has at most 6 significant bits.
#pragma once

#include "ptx/arithmetic.cuh"

namespace nibblas {

// Of four bytes b0..b3, lower nibble first: register i has the codes of b_i.
struct OrderedPairs {
  u32 of[4];
};

struct OrderedFp16 {
  static constexpr i32 kShift = 14;  // decode leaves 2^-kShift in

  // Two E4M3 bytes of blocks that follow each other; NaN for a NaN byte.
  static __device__ __forceinline__ u32 scale_pair(u16 two_bytes) {
    return ptx::cvt_f16x2_e4m3x2(two_bytes);
  }

  // Four of them, as two pairs.
  static __device__ __forceinline__ void scale_pairs(u32 four_bytes, u32& lower, u32& upper) {
    ptx::cvt_f16x2_e4m3x2(four_bytes, lower, upper);
  }

  // b0 and b1 belong to the first block of the scales, b2 and b3 to the second.
  static __device__ __forceinline__ OrderedPairs decode(u32 bytes, u32 scales) {
    constexpr u32 kSigns = 0x80808080u, kCodeInHighByte = 0x8E008E00u;
    // Four codes share a selection of bits; what else is in their bytes goes in the end.
    const u32 low = ptx::select_bits(kSigns, bytes << 4, bytes << 1);
    const u32 high = ptx::select_bits(kSigns, bytes, bytes >> 3);
    const u32 of01 = ptx::prmt<0x5410>(low, high), of23 = ptx::prmt<0x7632>(low, high);
    const u32 first = ptx::both_halves(static_cast<u16>(scales));
    const u32 second = ptx::both_upper_halves(scales);
    return {{ptx::mul_f16x2(of01 << 8 & kCodeInHighByte, first),
             ptx::mul_f16x2(of01 & kCodeInHighByte, first),
             ptx::mul_f16x2(of23 << 8 & kCodeInHighByte, second),
             ptx::mul_f16x2(of23 & kCodeInHighByte, second)}};
  }
};

struct OrderedBf16 {
  static constexpr i32 kShift = 0;

  static __device__ __forceinline__ void scale_pairs(u32 four_bytes, u32& lower, u32& upper) {
    ptx::cvt_f16x2_e4m3x2(four_bytes, lower, upper);
    lower = bf16_pair(lower);
    upper = bf16_pair(upper);
  }

  static __device__ __forceinline__ OrderedPairs decode(u32 bytes, u32 scales) {
    const u32 magnitudes = bytes & 0x77777777u, signs = bytes >> 3 & 0x11111111u;
    const Half low = look_up(magnitudes, signs), high = look_up(magnitudes >> 16, signs >> 16);
    const u32 first = ptx::both_halves(static_cast<u16>(scales));
    const u32 second = ptx::both_upper_halves(scales);
    return {{multiply(ptx::prmt<0x5140>(low.low_bytes, low.high_bytes), first),
             multiply(ptx::prmt<0x7362>(low.low_bytes, low.high_bytes), first),
             multiply(ptx::prmt<0x5140>(high.low_bytes, high.high_bytes), second),
             multiply(ptx::prmt<0x7362>(high.low_bytes, high.high_bytes), second)}};
  }

 private:
  static __device__ __forceinline__ u32 bf16_pair(u32 halves) {
    return ptx::cvt_bf16x2_f32(ptx::cvt_f32_f16(static_cast<u16>(halves)),
                               ptx::cvt_f32_f16(static_cast<u16>(halves >> 16)));
  }

  // Of four values.
  struct Half {
    u32 low_bytes;
    u32 high_bytes;
  };

  // 0, 0.5, 1, 1.5, 2, 3, 4, 6 are 0x0000, 3F00, 3F80, 3FC0, 4000, 4040, 4080, 40C0.
  static __device__ __forceinline__ Half look_up(u32 magnitudes, u32 signs) {
    return {ptx::prmt(0xC0800000u, 0xC0804000u, magnitudes),
            ptx::prmt(0x3F3F3F00u, 0x40404040u, magnitudes) | ptx::prmt(0x00008000u, 0, signs)};
  }

  static __device__ __forceinline__ u32 multiply(u32 values, u32 scale) {
    constexpr u32 kNegativeZeros = 0x80008000u;  // x + -0 is x, for -0 too
    return ptx::fma_bf16x2(values, scale, kNegativeZeros);
  }
};

}  // namespace nibblas
