// From fp32 sums to outputs, in this order: s = w_global * x_global; s *= alpha; y = sum * s;
// y *= row_scale; y += bias; out = cast(y).
//
// A lane's sums are two columns of the output for every fourth pair of tokens. 16-bit outputs are
// turned round in shared memory, 16 tokens x 16 columns of a warp at a time, where the warp's codes
// of the last stage were: then a lane has 8 columns of a token. They are stored while the next 16
// tokens are turned.
#pragma once

#include "../common/elements.cuh"
#include "../common/output_factors.cuh"
#include "../common/ptx/store_matrix.cuh"
#include "multiply.cuh"

namespace nibblas::sm90 {

// Undoes the power of two that the decode left out (decoded tokens too); exact.
constexpr i32 kSumShift = Type::kShift + (Config::kDecodedTokens ? OrderedFp16::kShift : 0);
constexpr float kSumScale = static_cast<float>(1 << kSumShift);

// First of the warp's 16 columns of a unit.
static __device__ __forceinline__ i64 first_column(i32 unit) {
  const i32 quarter = threadIdx.x / kWarpLanes % kGroupWarps;
  return static_cast<i64>(unit / kAtomUnits) * kAtomRows + 32 * quarter + unit % kAtomUnits * 16;
}

class Output {
 public:
  __device__ Output(const Params& p, const Step& at, i32 unit)
      : p_(p),
        group_(at.group),
        token_row_(at.token_row),
        tokens_(at.tokens),
        warp_column_(first_column(unit)),
        element_(static_cast<i32>(bytes_of(p.out_type))) {
    if (warp_column_ >= p.n) return;
    low_ = load_scale_factors(p, group_, low_column());
    high_ = load_scale_factors(p, group_, low_column() + 8);
  }

  // `stage`: one that has been multiplied and is not released.
  template <i32 kTokens>
  __device__ __forceinline__ void write(Sums<kTokens>& sums, u32 stage) const {
    if (warp_column_ >= p_.n) return;  // N is a multiple of 32: the warp's columns exist or not
    const Columns columns{{low_.product(), load_bias(p_, group_, low_column())},
                          {high_.product(), load_bias(p_, group_, low_column() + 8)}};
    const i64 row_bytes = p_.out_row_stride * element_;
    const bool in_rows = p_.out_type != ElementType::kFp32 && p_.out_column_stride == 1 &&
                         (reinterpret_cast<u64>(p_.out) | static_cast<u64>(row_bytes)) % 16 == 0;
    u8* to = static_cast<u8*>(p_.out) + token_row_ * row_bytes +
             warp_column_ * p_.out_column_stride * element_;
    u8* to_of_lane = to + lane() / 2 * row_bytes + lane() % 2 * 16;
    if (in_rows && p_.row_scale == nullptr) {
      write_turned<kTokens, false>(sums, columns, room_of_warp(stage), to_of_lane, row_bytes);
    } else if (in_rows) {
      write_turned<kTokens, true>(sums, columns, room_of_warp(stage), to_of_lane, row_bytes);
    } else {
      write_elements(sums, columns, to, row_bytes);
    }
  }

 private:
  static constexpr i32 kTurnedTokens = 16;
  static constexpr u32 kTokenBytes = 32;  // of a warp's 16 columns

  struct Column {
    float scale;
    float bias;
  };

  // The lane's rows of the MMA.
  struct Columns {
    Column low;
    Column high;
  };

  // Of 8 tokens: the lane's two rows, two tokens each.
  struct Finished {
    float low[2];
    float high[2];
  };

  static __device__ __forceinline__ i32 lane() { return threadIdx.x % kWarpLanes; }

  // The column of the lane's upper row.
  __device__ __forceinline__ i64 low_column() const { return warp_column_ + lane() / 4; }

  static __device__ __forceinline__ float finished(float sum, const Column& column,
                                                   float row_scale) {
    return __fadd_rn(sum * kSumScale * column.scale * row_scale, column.bias);
  }

  __device__ __forceinline__ float row_scale_of(i32 token) const {
    return p_.row_scale == nullptr || token >= tokens_ ? 1 : p_.row_scale[token_row_ + token];
  }

  // Of the 8 tokens from `token` on, whose sums are at `of`.
  template <bool kRowScale>
  __device__ __forceinline__ Finished finish(const float* of, const Columns& columns,
                                             i32 token) const {
    float scales[2] = {1, 1};
    if constexpr (kRowScale) {
      scales[0] = row_scale_of(token + lane() % 4 * 2);
      scales[1] = row_scale_of(token + lane() % 4 * 2 + 1);
    }
    return {{finished(of[0], columns.low, scales[0]), finished(of[1], columns.low, scales[1])},
            {finished(of[2], columns.high, scales[0]), finished(of[3], columns.high, scales[1])}};
  }

  // Where the warp's own codes were: nobody else reads or writes there before the stage is
  // released.
  static __device__ __forceinline__ u32 room_of_warp(u32 stage) {
    static_assert(2 * kTurnedTokens * kTokenBytes <= 16 * kCodesRowBytes, "of the warp's rows");
    const u32 quarter = threadIdx.x / kWarpLanes % kGroupWarps;
    return stage + static_cast<u32>(sizeof(Stage::tokens)) + warpgroup() * kCodesBytes +
           16 * quarter * kCodesRowBytes;
  }

  template <i32 kTokens, bool kRowScale>
  __device__ __forceinline__ void write_turned(const Sums<kTokens>& sums, const Columns& columns,
                                               u32 room, u8* to, i64 row_bytes) const {
    u32 turned[4];  // 8 columns of a token of the 16 before
#pragma unroll
    for (i32 first = 0; first < kTokens; first += kTurnedTokens) {
      if (first >= tokens_) break;
      const u32 half = room + first / kTurnedTokens % 2 * kTurnedTokens * kTokenBytes;
#pragma unroll
      for (i32 token = 0; token < min(kTurnedTokens, kTokens - first); token += 8) {
        const Finished y = finish<kRowScale>(&sums.of[(first + token) / 2], columns, first + token);
        // Lane l < 16 says where 8 columns of a token go: of token l % 8, the lower or upper ones.
        ptx::stmatrix_x2_trans(half + turned_place(token + lane() % 8, lane() / 8 % 2),
                               packed(y.low), packed(y.high));
      }
      __syncwarp();
      if (first > 0) store_turned(to + (first - kTurnedTokens) * row_bytes, turned);
      ptx::ld_shared_v4(turned, half + turned_place(lane() / 2, lane() % 2));
    }
    const i32 last = (tokens_ - 1) / kTurnedTokens * kTurnedTokens;
    if (last + lane() / 2 < tokens_) store_turned(to + last * row_bytes, turned);
    ptx::fence_proxy_async();  // TMA writes there next
    __syncwarp();
  }

  static __device__ __forceinline__ void store_turned(u8* to, const u32 (&turned)[4]) {
    *reinterpret_cast<uint4*>(to) = {turned[0], turned[1], turned[2], turned[3]};
  }

  // Of 8 columns of a token; so that lanes that access together meet different banks.
  static __device__ __forceinline__ u32 turned_place(i32 token, i32 half) {
    return token * kTokenBytes + (half ^ token / 4 % 2) * 16;
  }

  __device__ __forceinline__ u32 packed(const float (&y)[2]) const {
    return p_.out_type == ElementType::kFp16 ? ptx::cvt_f16x2_f32(y[0], y[1])
                                             : ptx::cvt_bf16x2_f32(y[0], y[1]);
  }

  // fp32 outputs, and any strides. One copy of the code for all tokens, to which the sums move up:
  // registers cannot be told apart at run time.
  template <i32 kTokens>
  __device__ __forceinline__ void write_elements(Sums<kTokens>& sums, const Columns& columns,
                                                 u8* to, i64 row_bytes) const {
    const i64 column_bytes = p_.out_column_stride * element_;
    u8* low = to + lane() / 4 * column_bytes + lane() % 4 * 2 * row_bytes;
    u8* high = low + 8 * column_bytes;
#pragma unroll 1
    for (i32 token = 0; token < tokens_; token += 8) {
      const Finished y = finish<true>(sums.of, columns, token);
#pragma unroll
      for (i32 i = 0; i < 2; ++i) {
        if (token + lane() % 4 * 2 + i >= tokens_) continue;
        store_element(low + (token + i) * row_bytes, p_.out_type, y.low[i]);
        store_element(high + (token + i) * row_bytes, p_.out_type, y.high[i]);
      }
#pragma unroll
      for (i32 i = 4; i < kTokens / 2; ++i) sums.of[i - 4] = sums.of[i];
    }
  }

  const Params& p_;
  i64 group_;
  i64 token_row_;
  i32 tokens_;
  i64 warp_column_;
  i32 element_;
  ScaleFactors low_{};  // of the lane's rows of the MMA
  ScaleFactors high_{};
};

}  // namespace nibblas::sm90
