// From fp32 sums to outputs, in this order: s = w_global * x_global; s *= alpha; y = sum * s;
// y *= row_scale; y += bias; out = cast(y).
#pragma once

#include "../common/elements.cuh"
#include "multiply.cuh"

namespace nibblas::portable {

// Undoes the powers of two that the decode left out; exact.
constexpr float kSumScale = Config::kNvfp4Tokens ? 1 << 2 * kDecodeShift : 1 << kDecodeShift;

// What a lane's two output columns (fragment rows g and g + 8) are multiplied by and added to, as
// it lies in memory: loaded before the first stage is multiplied, so that nobody waits for it.
struct Factors {
  float x_global = 1;
  float alpha = 1;
  float w_global[2] = {1, 1};
  float bias[2] = {};
};

// Column of the output, which is the row of the weights, of a lane's fragment row g (+ 8).
static __device__ __forceinline__ i64 column_of(const Cursor& at, i32 set, i32 half) {
  const i32 g = static_cast<i32>(threadIdx.x) % kWarpLanes / 4;
  return set_row(at.set(set), fragment_line(g) + 8 * half);
}

static __device__ __forceinline__ Factors load_factors(const Params& p, const Cursor& at, i32 set) {
  Factors factors;
  if (p.x_global != nullptr) factors.x_global = p.x_global[at.group() * p.x_global_stride];
  if (p.alpha != nullptr) factors.alpha = p.alpha[at.group()];
#pragma unroll
  for (i32 half = 0; half < 2; ++half) {
    const i64 n = min_of(column_of(at, set, half), p.n - 1);
    if (p.w_global != nullptr) {
      const float* globals = p.w_global + at.group() * p.w_global_group_stride;
      if (p.w_global_segment_stride != 0) {
        globals += n / p.segment_columns * p.w_global_segment_stride;
      }
      factors.w_global[half] = *globals;
    }
    if (p.bias != nullptr) {
      factors.bias[half] = load_element(p.bias, p.bias_type, at.group() * p.bias_group_stride + n);
    }
  }
  return factors;
}

template <i32 kTiles>
static __device__ __forceinline__ void write_sums(const Params& p, const Cursor& at, i32 set,
                                                  const Factors& factors,
                                                  const Sums<kTiles>& sums) {
  const i32 first = static_cast<i32>(threadIdx.x) % 4 * 2;  // token of a tile
  const i64 element_bytes = bytes_of(p.out_type);
  const i64 row_bytes = p.out_row_stride * element_bytes;
  u8* rows = static_cast<u8*>(p.out) + (at.token_row() + first) * row_bytes;
#pragma unroll
  for (i32 half = 0; half < 2; ++half) {
    const i64 n = column_of(at, set, half);
    if (n >= p.n) continue;
    const float scale = factors.w_global[half] * factors.x_global * factors.alpha;
    u8* column = rows + n * p.out_column_stride * element_bytes;
#pragma unroll
    for (i32 i = 0; i < 2 * kTiles; ++i) {
      const i32 token = i / 2 * 8 + i % 2;
      if (first + token >= at.tokens()) continue;
      float y = sums.of[i / 2][2 * half + i % 2] * kSumScale * scale;
      if (p.row_scale != nullptr) y *= p.row_scale[at.token_row() + first + token];
      if (p.bias != nullptr) y = __fadd_rn(y, factors.bias[half]);
      store_element(column + token * row_bytes, p.out_type, y);
    }
  }
}

}  // namespace nibblas::portable
