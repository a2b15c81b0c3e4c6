// The epilogue warps: a thread has one token's sums, and turns them into outputs 16 columns at a
// time (factors.cuh). Warps without tokens only say that they are done.
#pragma once

#include "../common/ptx/tcgen05.cuh"
#include "factors.cuh"

namespace nibblas::sm100 {

constexpr i32 kChunk = 16;

// What a thread's sums are multiplied by and where its outputs go.
class TokenOutput {
 public:
  __device__ TokenOutput(const Item& item, i32 token)
      : p_(item.entry->product),
        factors_(p_, item.group),
        n_(item.n),
        element_(bytes_of(p_.out_type)),
        vectors_(takes_vectors(p_)) {
    row_ = static_cast<u8*>(p_.out) + (item.row + token) * p_.out_row_stride * element_;
    if (p_.row_scale != nullptr) row_scale_ = p_.row_scale[item.row + token];
    // A CTA of the cluster that lies beyond N writes nothing, and there is no segment for it.
    start_segment(segment_of(p_, min_of(item.column, n_ - 1)));
  }

  // Writes kChunk columns from `column` on, those that exist; columns come in order.
  __device__ __forceinline__ void write(const u32 (&sums)[kChunk], i64 column) {
    float y[kChunk];
    scale(sums, column, y);
    const i32 count = static_cast<i32>(min_of(n_ - column, kChunk));
    if (p_.bias != nullptr) add_bias(y, column, count);
    u8* to = row_ + column * p_.out_column_stride * element_;
    if (vectors_ && count == kChunk) {
      write_vectors(y, to);
    } else {
      write_elements(y, to, count);
    }
  }

 private:
  // The factors before row_scale, for a segment of equal columns.
  __device__ void start_segment(i64 segment) {
    segment_ = segment;
    segment_end_ = (segment + 1) * p_.segment_columns;
    scale_ = factors_.of_segment(segment);
  }

  // Segment by segment, each of which has a part of the columns.
  __device__ __forceinline__ void scale(const u32 (&sums)[kChunk], i64 column, float (&y)[kChunk]) {
    i32 begin = 0;
    while (true) {
      const i32 end = static_cast<i32>(min_of(segment_end_ - column, kChunk));
#pragma unroll
      for (i32 i = 0; i < kChunk; ++i) {
        if (i >= begin) y[i] = __uint_as_float(sums[i]) * scale_ * row_scale_;
      }
      if (end == kChunk || segment_end_ >= n_) return;
      begin = end;
      start_segment(segment_ + 1);
    }
  }

  __device__ __forceinline__ void add_bias(float (&y)[kChunk], i64 column, i32 count) const {
#pragma unroll
    for (i32 i = 0; i < kChunk; ++i) {
      if (i < count) y[i] = __fadd_rn(y[i], factors_.bias(column + i));
    }
  }

  __device__ __forceinline__ void write_vectors(const float (&y)[kChunk], u8* to) const {
    uint4* vectors = reinterpret_cast<uint4*>(to);
    if (p_.out_type == ElementType::kFp32) {
#pragma unroll
      for (i32 i = 0; i < kChunk; i += 4) {
        vectors[i / 4] = {__float_as_uint(y[i]), __float_as_uint(y[i + 1]),
                          __float_as_uint(y[i + 2]), __float_as_uint(y[i + 3])};
      }
      return;
    }
    const bool half = p_.out_type == ElementType::kFp16;
    const auto pack = [&](i32 i) {
      return half ? ptx::cvt_f16x2_f32(y[i], y[i + 1]) : ptx::cvt_bf16x2_f32(y[i], y[i + 1]);
    };
#pragma unroll
    for (i32 i = 0; i < kChunk; i += 8) {
      vectors[i / 8] = {pack(i), pack(i + 2), pack(i + 4), pack(i + 6)};
    }
  }

  __device__ __forceinline__ void write_elements(const float (&y)[kChunk], u8* to,
                                                 i32 count) const {
    const i64 step = p_.out_column_stride * element_;
#pragma unroll
    for (i32 i = 0; i < kChunk; ++i) {
      if (i < count) store_element(to + i * step, p_.out_type, y[i]);
    }
  }

  const Product& p_;
  GroupFactors factors_;
  i64 n_;
  i64 element_;
  bool vectors_;
  u8* row_;
  float row_scale_ = 1;
  float scale_ = 1;
  i64 segment_;
  i64 segment_end_;
};

// The sums may be overwritten.
static __device__ __forceinline__ void release_sums(u32 sums_empty) {
  ptx::tcgen05_fence_before_thread_sync();
  __syncwarp();
  if (threadIdx.x % kWarpLanes == 0) ptx::mbarrier_arrive(sums_empty);
}

static __device__ void write_outputs(const Params& p, Control& control) {
  const i32 warp = threadIdx.x / kWarpLanes;
  const i32 token = threadIdx.x;  // of the tile; the lane of tensor memory
  const u32 tensor = control.tensor + (static_cast<u32>(warp * kWarpLanes) << 16);
  Turn turn(Config::kAccumulators);
  for (Items items(p, control); !items.done(); items.advance(), turn.advance()) {
    const Item item = items.item();
    const u32 sums_empty = ptx::shared_address(&control.sums_empty[turn.slot()]);
    const bool has_tokens = warp * kWarpLanes < item.rows;
    const i32 columns =
        has_tokens ? static_cast<i32>(clamp_to(item.n - item.column, 0, Config::kTileN)) : 0;
    TokenOutput output(item, token < item.rows ? token : item.rows - 1);
    wait(ptx::shared_address(&control.sums_full[turn.slot()]), turn.round());
    ptx::tcgen05_fence_after_thread_sync();
#pragma unroll 1
    for (i32 column = 0; column < columns; column += kChunk) {
      u32 sums[kChunk];
      ptx::tcgen05_ld_32x32b_x16(sums, tensor + turn.slot() * Config::kTileN + column);
      ptx::tcgen05_wait_ld(sums);
      if (column + kChunk >= columns) release_sums(sums_empty);
      if (token < item.rows) output.write(sums, item.column + column);
    }
    if (columns == 0) release_sums(sums_empty);
  }
}

}  // namespace nibblas::sm100
