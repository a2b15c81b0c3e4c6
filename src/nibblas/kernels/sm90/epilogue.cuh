// From fp32 sums to outputs, in this order: s = w_global * x_global; s *= alpha; y = sum * s;
// y *= row_scale; y += bias; out = cast(y).
//
// A lane's sums are two columns of the output for every fourth pair of tokens. They are turned
// round in shared memory, 16 tokens x 16 columns of a warp at a time: then a lane has 8 columns of
// one token, the same columns every time.
#pragma once

#include "../common/elements.cuh"
#include "../common/output_factors.cuh"
#include "multiply.cuh"

namespace nibblas::sm90 {

// Undoes the power of two that the decode left out (decoded tokens too); exact.
constexpr float kSumScale = Config::kDecodedTokens ? 1 << 2 * kDecodeShift : 1 << kDecodeShift;

// First of the warp's 16 columns of a unit.
static __device__ __forceinline__ i64 first_column(i32 unit) {
  const i32 quarter = threadIdx.x / kWarpLanes % kGroupWarps;
  return static_cast<i64>(unit / 2) * kAtomRows + 32 * quarter + unit % 2 * 16;
}

class Output {
 public:
  __device__ Output(const Params& p, const Step& at, i32 unit, Shared& shared)
      : p_(p),
        at_(at),
        warp_column_(first_column(unit)),
        column_(warp_column_ + lane() % 2 * kLaneColumns),
        element_(static_cast<i32>(bytes_of(p.out_type))),
        row_bytes_(p.out_row_stride * element_),
        to_(static_cast<u8*>(p.out) + (at.token_row + lane() / 2) * row_bytes_ +
            column_ * p.out_column_stride * element_),
        turned_(ptx::shared_address(&shared.turned[threadIdx.x / kWarpLanes])) {
    if (warp_column_ >= p.n) return;
    const i32 column = lane() % kTurnedColumns;
    const ColumnFactors factors = load_column_factors(p, at.group, warp_column_ + column);
    ptx::st_shared_f32(turned_ + kScaleAt + column * sizeof(float), factors.scale);
    ptx::st_shared_f32(turned_ + kBiasAt + column * sizeof(float), factors.bias);
    __syncwarp();
    in_rows_ = p.out_column_stride == 1 && (reinterpret_cast<u64>(p.out) | row_bytes_) % 16 == 0;
  }

  template <i32 kTokens>
  __device__ __forceinline__ void write(const Sums<kTokens>& sums) const {
    if (warp_column_ >= p_.n) return;  // N is a multiple of 32: the warp's columns exist or not
    const u32 from = turned_ + lane() % 4 * 2 * kTurnedRowBytes + lane() / 4 * sizeof(float);
#pragma unroll
    for (i32 token = 0; token < kTokens; token += kTurnedTokens) {
      if (token >= at_.tokens) break;
#pragma unroll
      for (i32 i = 0; i < 8; ++i) {
        const u32 row = i / 4 * 8 + i % 2, column = i / 2 % 2 * 8;
        ptx::st_shared_f32(from + row * kTurnedRowBytes + column * sizeof(float),
                           sums.of[token / 2 + i]);
      }
      __syncwarp();
      if (token + lane() / 2 < at_.tokens) store(token);
      __syncwarp();
    }
  }

 private:
  static constexpr i32 kLaneColumns = 8;
  static constexpr u32 kScaleAt = sizeof(Turned::sums), kBiasAt = kScaleAt + sizeof(Turned::scale);

  static __device__ __forceinline__ i32 lane() { return threadIdx.x % kWarpLanes; }

  static __device__ __forceinline__ float finished(float sum, float scale, float row_scale,
                                                   float bias) {
    return __fadd_rn(sum * kSumScale * scale * row_scale, bias);
  }

  // The lane's columns of one token.
  __device__ __forceinline__ void store(i32 token) const {
    const float row_scale =
        p_.row_scale == nullptr ? 1 : p_.row_scale[at_.token_row + token + lane() / 2];
    const u32 first = turned_ + lane() % 2 * kLaneColumns * sizeof(float);
    u8* to = to_ + token * row_bytes_;
    if (!in_rows_) {
      store_elements(first, row_scale, to);
      return;
    }
    float y[kLaneColumns];
#pragma unroll
    for (i32 i = 0; i < kLaneColumns; i += 4) {
      const u32 at = first + i * sizeof(float);
      float scale[4], bias[4];
      ptx::ld_shared_v4(&y[i], at + lane() / 2 * kTurnedRowBytes);
      ptx::ld_shared_v4(scale, at + kScaleAt);
      ptx::ld_shared_v4(bias, at + kBiasAt);
#pragma unroll
      for (i32 j = 0; j < 4; ++j) y[i + j] = finished(y[i + j], scale[j], row_scale, bias[j]);
    }
    uint4* vectors = reinterpret_cast<uint4*>(to);
    if (p_.out_type == ElementType::kFp32) {
      vectors[0] = {__float_as_uint(y[0]), __float_as_uint(y[1]), __float_as_uint(y[2]),
                    __float_as_uint(y[3])};
      vectors[1] = {__float_as_uint(y[4]), __float_as_uint(y[5]), __float_as_uint(y[6]),
                    __float_as_uint(y[7])};
    } else if (p_.out_type == ElementType::kFp16) {
      *vectors = {ptx::cvt_f16x2_f32(y[0], y[1]), ptx::cvt_f16x2_f32(y[2], y[3]),
                  ptx::cvt_f16x2_f32(y[4], y[5]), ptx::cvt_f16x2_f32(y[6], y[7])};
    } else {
      *vectors = {ptx::cvt_bf16x2_f32(y[0], y[1]), ptx::cvt_bf16x2_f32(y[2], y[3]),
                  ptx::cvt_bf16x2_f32(y[4], y[5]), ptx::cvt_bf16x2_f32(y[6], y[7])};
    }
  }

  // For outputs of other strides; small code, since there is a copy for every 16 tokens.
  __device__ __forceinline__ void store_elements(u32 first, float row_scale, u8* to) const {
#pragma unroll 1
    for (i32 i = 0; i < kLaneColumns; ++i, first += sizeof(float)) {
      const float sum = ptx::ld_shared_f32(first + lane() / 2 * kTurnedRowBytes);
      const float y = finished(sum, ptx::ld_shared_f32(first + kScaleAt), row_scale,
                               ptx::ld_shared_f32(first + kBiasAt));
      store_element(to, p_.out_type, y);
      to += p_.out_column_stride * element_;
    }
  }

  const Params& p_;
  const Step& at_;
  i64 warp_column_;
  i64 column_;
  i32 element_;
  i64 row_bytes_;
  u8* to_;
  u32 turned_;
  bool in_rows_ = false;
};

}  // namespace nibblas::sm90
