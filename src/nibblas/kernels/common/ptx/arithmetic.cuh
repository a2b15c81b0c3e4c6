// Packed 16-bit arithmetic and conversions; one function per instruction.
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions-mul
// Subnormals are kept.
static __device__ __forceinline__ u32 mul_f16x2(u32 a, u32 b) {
  u32 d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions-fma
// Subnormals are kept.
static __device__ __forceinline__ u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prmt
// Bytes of {b, a} picked by the four nibbles of kSelector; 0..3 are a's, 4..7 are b's.
template <u32 kSelector>
static __device__ __forceinline__ u32 prmt(u32 a, u32 b) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "n"(kSelector));
  return d;
}

// The same with a selector that is found at run time: of the lowest 16 bits, nibbles of 0..7.
static __device__ __forceinline__ u32 prmt(u32 a, u32 b, u32 selector) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions-lop3
// Bits of `a` where `mask` has ones, of `b` elsewhere, as one instruction whatever surrounds it.
static __device__ __forceinline__ u32 select_bits(u32 mask, u32 a, u32 b) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(d) : "r"(mask), "r"(a), "r"(b));
  return d;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mov
// Both halves of a register equal: an operand that packed arithmetic can take without a copy.
static __device__ __forceinline__ u32 both_halves(u16 h) {
  u32 d;
  asm("mov.b32 %0, {%1, %1};" : "=r"(d) : "h"(h));
  return d;
}

// Both halves equal to the upper one.
static __device__ __forceinline__ u32 both_upper_halves(u32 halves) {
  u32 d;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high};}"
      : "=r"(d)
      : "r"(halves));
  return d;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
// Two E4M3 bytes, exactly; sm_89 and newer. NaN gives NaN.
static __device__ __forceinline__ u32 cvt_f16x2_e4m3x2(u16 two_bytes) {
  u32 d;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(two_bytes));
  return d;
}

// Of four, the lower and the upper two: without a shift.
static __device__ __forceinline__ void cvt_f16x2_e4m3x2(u32 four_bytes, u32& lower, u32& upper) {
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; "
      "cvt.rn.f16x2.e4m3x2 %1, high; }"
      : "=r"(lower), "=r"(upper)
      : "r"(four_bytes));
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
static __device__ __forceinline__ float cvt_f32_f16(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}

// Round to nearest even; overflow gives infinity.
static __device__ __forceinline__ u16 cvt_f16_f32(float f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

// Round to nearest even; overflow gives infinity.
static __device__ __forceinline__ u16 cvt_bf16_f32(float f) {
  u16 h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

// The same into both halves of a register.
static __device__ __forceinline__ u32 cvt_both_bf16_f32(float f) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(d) : "f"(f));
  return d;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
// Two floats, `low` into the lower half. Round to nearest even; overflow gives infinity.
static __device__ __forceinline__ u32 cvt_f16x2_f32(float low, float high) {
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
static __device__ __forceinline__ u32 cvt_bf16x2_f32(float low, float high) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

}  // namespace nibblas::ptx
