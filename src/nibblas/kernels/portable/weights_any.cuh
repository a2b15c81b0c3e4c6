// Loads weights of any K, any alignment, any tail.
#pragma once

#include "copy.cuh"

namespace nibblas::portable {

class AnyWeights {
 public:
  __device__ explicit AnyWeights(const Params& p)
      : p_(p), lane_(static_cast<i32>(threadIdx.x) % kWarpLanes) {}

  __device__ void load(const Cursor& at, Stage& stage) const {
#pragma unroll 1
    for (i32 i = 0; i < at.sets(); ++i) {
      load_codes(at, at.set(i), stage.weights[i]);
      if (p_.w_scales.layout == ScaleLayout::kBlocked) {
        load_blocked_scales(at, at.set(i), stage.weight_scales[i]);
      } else {
        load_linear_scales(at, at.set(i), stage.weight_scales[i]);
      }
    }
  }

 private:
  // Rows past N repeat the last one; their results are not stored.
  __device__ i64 weight_row(i32 set, i32 i) const { return min_of(set_row(set, i), p_.n - 1); }

  __device__ void load_codes(const Cursor& at, i32 set, Chunk (*to)[kRowChunks]) const {
    const u8* group = p_.w.bytes + at.group() * p_.w.group_bytes;
    for (i32 i = lane_; i < kSetRows * kRowChunks; i += kWarpLanes) {
      const i32 row = i / kRowChunks, chunk = i % kRowChunks;
      const i64 from = at.k() / 2 + chunk * kChunkBytes;
      const i64 valid = p_.k / 2 - from;
      copy_chunk(&to[row][weight_place(row, chunk)],
                 group + weight_row(set, row) * p_.w.row_bytes + (valid > 0 ? from : 0), valid,
                 p_.w.vector);
    }
  }

  // Scales past K are zeros.
  __device__ void load_linear_scales(const Cursor& at, i32 set, u8* to) const {
    const Scales& scales = p_.w_scales;
    const i32 piece = static_cast<i32>(min_of(scales.vector, kStageBlocks));
    const i32 pieces = kStageBlocks / piece;
    const u8* group = scales.bytes + at.group() * scales.group_bytes;
    for (i32 i = lane_; i < kSetRows * pieces; i += kWarpLanes) {
      const i64 block = at.k() / kScaleBlock + i % pieces * piece;
      if (block < p_.k / kScaleBlock) {
        copy_piece(to + i * piece, group + weight_row(set, i / pieces) * scales.row_bytes + block,
                   piece);
      } else {
        set_zero(to + i * piece, piece);
      }
    }
  }

  __device__ void load_blocked_scales(const Cursor& at, i32 set, u8* to) const {
    constexpr i32 kLines = 4 * kStageBlocks / static_cast<i32>(kAtomKBlocks);
    if (lane_ >= kLines) return;
    const i64 block = at.k() / kScaleBlock + lane_ / 4 * kAtomKBlocks;
    const i64 k_blocks = p_.k / kScaleBlock;
    to += lane_ * kChunkBytes;
    if (block >= k_blocks) return set_zero(to, kChunkBytes);
    const u8* from = p_.w_scales.bytes + at.group() * p_.w_scales.group_bytes +
                     blocked_offset(set_row(set, lane_ % 4 * 4), block, k_blocks);
    if (block + kAtomKBlocks > k_blocks) return copy_line_up_to(to, from, k_blocks - block);
    copy_pieces(to, from, static_cast<i32>(p_.w_scales.vector), kChunkBytes);
  }

  // Of each row's 4 scales only the first `blocks`: the others are padding, which may hold NaN.
  static __device__ __forceinline__ void copy_line_up_to(u8* to, const u8* from, i64 blocks) {
#pragma unroll 1
    for (i32 i = 0; i < kChunkBytes; ++i) to[i] = i % kAtomKBlocks < blocks ? from[i] : 0;
  }

  const Params& p_;
  i32 lane_;
};

}  // namespace nibblas::portable
