// From fp32 sums to outputs, in this order: s = w_global * x_global; s *= alpha; y = sum * s;
// y *= row_scale; y += bias; out = cast(y).
#pragma once

#include "../common/elements.cuh"
#include "../common/ptx/global_memory.cuh"
#include "multiply.cuh"

namespace nibblas::portable {

// Undoes the powers of two that the decode left out; exact.
constexpr float kSumScale = Config::kNvfp4Tokens ? 1 << 2 * kDecodeShift : 1 << kDecodeShift;

// What a lane's outputs of a visit are multiplied by and added to, as it lies in memory: loaded
// before the first stage is multiplied, so that nobody waits for it. [set][fragment row g, g + 8]
template <i32 kSets>
struct Factors {
  float x_global;
  float alpha;
  float w_global[kSets][2];
  float bias[kSets][2];
};

// Column of the output, which is the row of the weights, of a lane's fragment row g in set i of the
// warp's. That of g + 8, 8 lines later, is kHalfColumns further on.
constexpr i32 kHalfColumns = 2;
static __device__ __forceinline__ i64 column_of(const Cursor& at, i32 i) {
  const i32 warp = static_cast<i32>(threadIdx.x) / kWarpLanes;
  const i32 g = static_cast<i32>(threadIdx.x) % kWarpLanes / 4;
  return set_row(at.set(warp + i * Config::kWarps), fragment_line(g));
}

template <i32 kSets>
static __device__ __forceinline__ Factors<kSets> load_factors(const Params& p, const Cursor& at) {
  const i64 group = at.group();
  const float* globals = p.w_global + group * p.w_global_group_stride;
  const bool per_segment = p.w_global_segment_stride != 0;
  const float w_global = p.w_global == nullptr || per_segment ? 1 : *globals;
  Factors<kSets> factors;
  factors.x_global = p.x_global == nullptr ? 1 : p.x_global[group * p.x_global_stride];
  factors.alpha = p.alpha == nullptr ? 1 : p.alpha[group];
#pragma unroll
  for (i32 i = 0; i < 2 * kSets; ++i) {
    factors.w_global[i / 2][i % 2] = w_global;
    factors.bias[i / 2][i % 2] = -0.0f;  // changes nothing
  }
  if (!per_segment && p.bias == nullptr) return factors;
#pragma unroll
  for (i32 i = 0; i < 2 * kSets; ++i) {
    const i64 n = min_of(column_of(at, i / 2) + i % 2 * kHalfColumns, p.n - 1);
    if (per_segment) {
      const i64 segment = n / p.segment_columns;
      factors.w_global[i / 2][i % 2] = globals[segment * p.w_global_segment_stride];
    }
    if (p.bias != nullptr) {
      factors.bias[i / 2][i % 2] =
          load_element(p.bias, p.bias_type, group * p.bias_group_stride + n);
    }
  }
  return factors;
}

// A lane's first token of a tile; the other is the next.
static __device__ __forceinline__ i32 first_token() {
  return static_cast<i32>(threadIdx.x) % 4 * 2;
}

// Turns sums into outputs that are not yet rounded.
template <i32 kSets, i32 kTiles>
static __device__ __forceinline__ void scale_sums(const Params& p, const Cursor& at,
                                                  const Factors<kSets>& factors,
                                                  Sums<kTiles> (&sums)[kSets]) {
#pragma unroll
  for (i32 i = 0; i < 2 * kSets; ++i) {
    const float scale = factors.w_global[i / 2][i % 2] * factors.x_global * factors.alpha;
#pragma unroll
    for (i32 j = 0; j < 2 * kTiles; ++j) {
      float& y = sums[i / 2].of[j / 2][2 * (i % 2) + j % 2];
      y = y * kSumScale * scale;
    }
  }
  if (p.row_scale != nullptr) {
#pragma unroll
    for (i32 j = 0; j < 2 * kTiles; ++j) {
      const i32 token = min(first_token() + j / 2 * 8 + j % 2, at.tokens() - 1);
      const float scale = p.row_scale[at.token_row() + token];
#pragma unroll
      for (i32 i = 0; i < 2 * kSets; ++i) sums[i / 2].of[j / 2][2 * (i % 2) + j % 2] *= scale;
    }
  }
#pragma unroll
  for (i32 i = 0; i < 2 * kSets; ++i) {
#pragma unroll
    for (i32 j = 0; j < 2 * kTiles; ++j) {
      float& y = sums[i / 2].of[j / 2][2 * (i % 2) + j % 2];
      y = __fadd_rn(y, factors.bias[i / 2][i % 2]);
    }
  }
}

// Rounds outputs to a type of 16 bits, which are then the lower half of each.
template <i32 kSets, i32 kTiles, u16 (*kRounded)(float)>
static __device__ __forceinline__ void round_outputs(Sums<kTiles> (&outputs)[kSets]) {
#pragma unroll
  for (i32 i = 0; i < kSets; ++i) {
#pragma unroll
    for (i32 j = 0; j < 4 * kTiles; ++j) {
      float& y = outputs[i].of[j / 4][j % 4];
      y = __uint_as_float(kRounded(y));
    }
  }
}

// Without branches: so few instructions are all that comes between visits. Bits: u16 or u32.
template <typename Bits, i32 kSets, i32 kTiles>
static __device__ __forceinline__ void store_outputs(const Params& p, const Cursor& at,
                                                     const Sums<kTiles> (&outputs)[kSets]) {
  const i64 row_bytes = p.out_row_stride * sizeof(Bits);
  const i64 column_bytes = p.out_column_stride * sizeof(Bits);
  u8* row = static_cast<u8*>(p.out) + (at.token_row() + first_token()) * row_bytes;
  const i32 tokens = at.tokens() - first_token();
  i64 columns[2 * kSets];
  i32 tokens_of[2 * kSets];
#pragma unroll
  for (i32 i = 0; i < 2 * kSets; ++i) {
    const i64 n = column_of(at, i / 2) + i % 2 * kHalfColumns;
    columns[i] = n * column_bytes;
    tokens_of[i] = n < p.n ? tokens : 0;
  }
#pragma unroll
  for (i32 j = 0; j < 2 * kTiles; ++j) {
    const i32 token = j / 2 * 8 + j % 2;
#pragma unroll
    for (i32 i = 0; i < 2 * kSets; ++i) {
      const float y = outputs[i / 2].of[j / 2][2 * (i % 2) + j % 2];
      ptx::st_if(token < tokens_of[i], row + columns[i], static_cast<Bits>(__float_as_uint(y)));
    }
    row += j % 2 == 0 ? row_bytes : 7 * row_bytes;
  }
}

// Of a block of tokens; uses sums up.
template <i32 kSets, i32 kTiles>
static __device__ __forceinline__ void write_outputs(const Params& p, const Cursor& at,
                                                     const Factors<kSets>& factors,
                                                     Sums<kTiles> (&sums)[kSets]) {
  scale_sums<kSets, kTiles>(p, at, factors, sums);
  if (p.out_type == ElementType::kFp32) return store_outputs<u32, kSets, kTiles>(p, at, sums);
  if (p.out_type == ElementType::kBf16) {
    round_outputs<kSets, kTiles, ptx::cvt_bf16_f32>(sums);
  } else {
    round_outputs<kSets, kTiles, ptx::cvt_f16_f32>(sums);
  }
  store_outputs<u16, kSets, kTiles>(p, at, sums);
}

}  // namespace nibblas::portable
