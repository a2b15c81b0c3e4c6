// From fp32 sums to outputs, in this order: s = w_global * x_global; s *= alpha; y = sum * s;
// y *= row_scale; y += bias; out = cast(y).
#pragma once

#include "multiply.cuh"

namespace nibblas::portable {

// Undoes the powers of two that the decode left out; exact.
constexpr float kSumScale = Config::kNvfp4Tokens ? 1 << 2 * kDecodeShift : 1 << kDecodeShift;

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

static __device__ __forceinline__ void store_element(void* to, ElementType type, i64 i, float y) {
  switch (type) {
    case ElementType::kBf16:
      static_cast<u16*>(to)[i] = ptx::cvt_bf16_f32(y);
      return;
    case ElementType::kFp16:
      static_cast<u16*>(to)[i] = ptx::cvt_f16_f32(y);
      return;
    default:
      static_cast<float*>(to)[i] = y;
  }
}

// What one output column is multiplied by and added to.
struct Column {
  float scale;
  float bias;
};

static __device__ Column load_column(const Params& p, i64 group, i64 n) {
  Column column{1.0f, 0.0f};
  if (p.w_global != nullptr) {
    column.scale = p.w_global[group * p.w_global_group_stride];
    if (p.w_global_segment_stride != 0) {
      column.scale = p.w_global[group * p.w_global_group_stride +
                                n / p.segment_columns * p.w_global_segment_stride];
    }
  }
  if (p.x_global != nullptr) column.scale *= p.x_global[group * p.x_global_stride];
  if (p.alpha != nullptr) column.scale *= p.alpha[group];
  if (p.bias != nullptr) {
    column.bias = load_element(p.bias, p.bias_type, group * p.bias_group_stride + n);
  }
  return column;
}

// Writes the two tokens of one fragment row that exist.
static __device__ void store_pair(const Params& p, const Cursor& at, const Column& column, i64 n,
                                  i32 token, const float* sums) {
  for (i32 i = 0; i < 2 && token + i < at.tokens(); ++i) {
    const i64 row = at.token_row() + token + i;
    float y = sums[i] * kSumScale * column.scale;
    if (p.row_scale != nullptr) y *= p.row_scale[row];
    if (p.bias != nullptr) y = __fadd_rn(y, column.bias);
    store_element(p.out, p.out_type, row * p.out_row_stride + n * p.out_column_stride, y);
  }
}

static __device__ void write_tile(const Params& p, const Cursor& at, const Sums& sums) {
  const i32 warp = static_cast<i32>(threadIdx.x) / kWarpLanes;
  const i32 g = static_cast<i32>(threadIdx.x) % kWarpLanes / 4,
            t = static_cast<i32>(threadIdx.x) % 4;
#pragma unroll
  for (i32 half = 0; half < 2; ++half) {
    const i64 n = at.first_row() + tile_row(warp, g + 8 * half);
    if (n >= p.n) continue;
    const Column column = load_column(p, at.group(), n);
#pragma unroll
    for (i32 tile = 0; tile < kTokenTiles; ++tile) {
      store_pair(p, at, column, n, 8 * tile + 2 * t, sums.of[tile] + 2 * half);
    }
  }
}

}  // namespace nibblas::portable
