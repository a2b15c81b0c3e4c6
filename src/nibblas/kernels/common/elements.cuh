// Elements of bias and outputs, whatever their type.
#pragma once

#include "product.cuh"
#include "ptx/arithmetic.cuh"

namespace nibblas {

static __device__ __forceinline__ float load_element(const void* from, ElementType type, i64 i) {
  switch (type) {
    case ElementType::kBf16:
      return __uint_as_float(static_cast<u32>(static_cast<const u16*>(from)[i]) << 16);
    case ElementType::kFp16:
      return ptx::cvt_f32_f16(static_cast<const u16*>(from)[i]);
    default:
      return static_cast<const float*>(from)[i];
  }
}

static __device__ __forceinline__ void store_element(u8* to, ElementType type, float y) {
  switch (type) {
    case ElementType::kBf16:
      *reinterpret_cast<u16*>(to) = ptx::cvt_bf16_f32(y);
      return;
    case ElementType::kFp16:
      *reinterpret_cast<u16*>(to) = ptx::cvt_f16_f32(y);
      return;
    default:
      *reinterpret_cast<float*>(to) = y;
  }
}

static __device__ __forceinline__ i64 bytes_of(ElementType type) {
  return type == ElementType::kFp32 ? 4 : 2;
}

}  // namespace nibblas
