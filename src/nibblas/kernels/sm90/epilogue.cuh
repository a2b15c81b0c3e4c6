// From fp32 sums to outputs, in this order: s = w_global * x_global; s *= alpha; y = sum * s;
// y *= row_scale; y += bias; out = cast(y).
//
// A lane's sums are two columns of the output for every fourth pair of tokens. 16-bit outputs are
// turned round in shared memory, 16 tokens x 64 columns of a warpgroup at a time, where its codes
// of the last stage were: then a lane has 8 columns of a token, and a warp stores whole lines of
// 128 bytes, while the next 16 tokens are turned.
#pragma once

#include "../common/elements.cuh"
#include "../common/output_factors.cuh"
#include "../common/ptx/barrier.cuh"
#include "../common/ptx/store_matrix.cuh"
#include "multiply.cuh"

namespace nibblas::sm90 {

// Undoes the power of two that the decode left out (decoded tokens too); exact.
constexpr i32 kSumShift = Type::kShift + (Config::kDecodedTokens ? OrderedFp16::kShift : 0);
constexpr float kSumScale = static_cast<float>(1 << kSumShift);

class Output {
 public:
  // For the warpgroup's unit of a step.
  __device__ Output(const Params& p, const Step& at)
      : p_(p),
        at_(at),
        column_((at.first_unit + warpgroup()) * kUnitRows + 16 * warp_of_group() + lane() / 4) {
    if (column_ >= p.n) return;
    low_ = load_scale_factors(p, at.group, column_);
    if (p.w_global_segment_stride != 0) high_ = load_scale_factors(p, at.group, column_ + 8);
  }

  // `stage`: one that has been multiplied and is not released.
  template <i32 kTokens>
  __device__ __forceinline__ void write(Sums<kTokens>& sums, u32 stage) const {
    Columns columns{};
    if (column_ < p_.n) {  // N is a multiple of 32: a warp's columns exist or not
      const float low = low_.product();
      const float high = p_.w_global_segment_stride == 0 ? low : high_.product();
      columns = {{low, load_bias(p_, at_.group, column_)},
                 {high, load_bias(p_, at_.group, column_ + 8)}};
    }
    const i64 row_bytes = p_.out_row_stride * static_cast<i64>(bytes_of(p_.out_type));
    const bool in_rows = p_.out_type != ElementType::kFp32 && p_.out_column_stride == 1 &&
                         (reinterpret_cast<u64>(p_.out) | static_cast<u64>(row_bytes)) % 16 == 0;
    if (in_rows && fold(columns)) {
      write_turned<kTokens, true>(sums, columns, room_of_group(stage), row_bytes);
    } else if (in_rows) {
      write_turned<kTokens, false>(sums, columns, room_of_group(stage), row_bytes);
    } else if (column_ < p_.n) {
      write_elements(sums, columns, row_bytes);
    }
  }

 private:
  static constexpr i32 kTurnedTokens = 16;
  static constexpr u32 kTokenBytes = kUnitRows * 2;

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

  // Where there is neither a row scale nor a bias, kSumScale goes into the columns' scales: the
  // same product, unless that is too large. Whether it has, for all of the warp.
  __device__ __forceinline__ bool fold(Columns& columns) const {
    const float low = columns.low.scale * kSumScale, high = columns.high.scale * kSumScale;
    const bool folds = p_.row_scale == nullptr && p_.bias == nullptr && fabsf(low) < kInfinity &&
                       fabsf(high) < kInfinity;
    if (!__all_sync(kAllLanes, folds)) return false;
    columns.low.scale = low;
    columns.high.scale = high;
    return true;
  }

  static __device__ __forceinline__ float finished(float sum, const Column& column,
                                                   float row_scale) {
    return __fadd_rn(sum * kSumScale * column.scale * row_scale, column.bias);
  }

  __device__ __forceinline__ float row_scale_of(i32 token) const {
    return p_.row_scale == nullptr || token >= at_.tokens ? 1 : p_.row_scale[at_.token_row + token];
  }

  // Of the 8 tokens from `token` on, whose sums are at `of`.
  template <bool kFolded>
  __device__ __forceinline__ Finished finish(const float* of, const Columns& columns,
                                             i32 token) const {
    if constexpr (kFolded) {
      return {{of[0] * columns.low.scale, of[1] * columns.low.scale},
              {of[2] * columns.high.scale, of[3] * columns.high.scale}};
    }
    const float scales[2] = {row_scale_of(token + lane() % 4 * 2),
                             row_scale_of(token + lane() % 4 * 2 + 1)};
    return {{finished(of[0], columns.low, scales[0]), finished(of[1], columns.low, scales[1])},
            {finished(of[2], columns.high, scales[0]), finished(of[3], columns.high, scales[1])}};
  }

  // Where the warpgroup's own codes were: nobody else reads or writes there before all have
  // released the stage.
  static __device__ __forceinline__ u32 room_of_group(u32 stage) {
    static_assert(2 * kTurnedTokens * kTokenBytes <= kCodesBytes, "of the unit's rows");
    return stage + static_cast<u32>(sizeof(Stage::tokens)) + warpgroup() * kCodesBytes;
  }

  template <i32 kTokens, bool kFolded>
  __device__ __forceinline__ void write_turned(const Sums<kTokens>& sums, const Columns& columns,
                                               u32 room, i64 row_bytes) const {
    // Lane 8m + i says where 8 columns go of token i of matrix m: m = 0 and 1 are tokens 0 to 7,
    // the lower and the upper columns; 2 and 3 tokens 8 to 15.
    const i32 matrix = lane() / 8;
    const u32 from_warp =
        room + turned_place(matrix / 2 * 8 + lane() % 8, 2 * warp_of_group() + matrix % 2);
    const i32 thread = static_cast<i32>(threadIdx.x) % kGroupThreads;
    const i32 token = thread / 8, eighth = thread % 8;
    const u32 to_thread = room + turned_place(token, eighth);
    const i32 first_column = column_ - (16 * warp_of_group() + lane() / 4) + 8 * eighth;
    const i32 stored = first_column < p_.n ? at_.tokens - token : 0;
    u8* to = static_cast<u8*>(p_.out) + (at_.token_row + token) * row_bytes + first_column * 2;
    ptx::barrier_sync<kGroupThreads>(1 + warpgroup());  // all warps have read their codes
    u32 turned[4];                                      // 8 columns of a token of the 16 before
#pragma unroll
    for (i32 first = 0; first < kTokens; first += kTurnedTokens) {
      if (first >= at_.tokens) break;
      const u32 half = first / kTurnedTokens % 2 * kTurnedTokens * kTokenBytes;
      u32 matrices[4] = {};
#pragma unroll
      for (i32 i = 0; i < min(kTurnedTokens, kTokens - first); i += 8) {
        const Finished y = finish<kFolded>(&sums.of[(first + i) / 2], columns, first + i);
        matrices[i / 4] = packed(y.low);
        matrices[i / 4 + 1] = packed(y.high);
      }
      ptx::stmatrix_x4_trans(from_warp + half, matrices);
      ptx::barrier_sync<kGroupThreads>(1 + warpgroup());
      if (first > 0) {
        if (first - kTurnedTokens < stored) store_turned(to, turned);
        to += kTurnedTokens * row_bytes;
      }
      ptx::ld_shared_v4(turned, to_thread + half);
    }
    if ((at_.tokens - 1) / kTurnedTokens * kTurnedTokens < stored) store_turned(to, turned);
    ptx::fence_proxy_async();  // TMA writes there next
    __syncwarp();
  }

  static __device__ __forceinline__ void store_turned(u8* to, const u32 (&turned)[4]) {
    *reinterpret_cast<uint4*>(to) = {turned[0], turned[1], turned[2], turned[3]};
  }

  // Of 8 columns of a token; so that lanes that access together meet different banks.
  static __device__ __forceinline__ u32 turned_place(i32 token, i32 eighth) {
    return token * kTokenBytes + (eighth ^ token % 8) * 16;
  }

  __device__ __forceinline__ u32 packed(const float (&y)[2]) const {
    return p_.out_type == ElementType::kFp16 ? ptx::cvt_f16x2_f32(y[0], y[1])
                                             : ptx::cvt_bf16x2_f32(y[0], y[1]);
  }

  // fp32 outputs, and any strides. One copy of the code for all tokens, to which the sums move up:
  // registers cannot be told apart at run time.
  template <i32 kTokens>
  __device__ __forceinline__ void write_elements(Sums<kTokens>& sums, const Columns& columns,
                                                 i64 row_bytes) const {
    const i64 column_bytes = p_.out_column_stride * static_cast<i64>(bytes_of(p_.out_type));
    u8* low = static_cast<u8*>(p_.out) + column_ * column_bytes +
              (at_.token_row + lane() % 4 * 2) * row_bytes;
    u8* high = low + 8 * column_bytes;
#pragma unroll 1
    for (i32 token = 0; token < at_.tokens; token += 8) {
      const Finished y = finish<false>(sums.of, columns, token);
#pragma unroll
      for (i32 i = 0; i < 2; ++i) {
        if (token + lane() % 4 * 2 + i >= at_.tokens) continue;
        store_element(low + (token + i) * row_bytes, p_.out_type, y.low[i]);
        store_element(high + (token + i) * row_bytes, p_.out_type, y.high[i]);
      }
#pragma unroll
      for (i32 i = 4; i < kTokens / 2; ++i) sums.of[i - 4] = sums.of[i];
    }
  }

  const Params& p_;
  const Step& at_;
  i32 column_;           // of the lane's upper row
  ScaleFactors low_{};   // of the lane's rows of the MMA
  ScaleFactors high_{};  // where columns differ; not a copy of low_, which would wait for it
};

}  // namespace nibblas::sm90
