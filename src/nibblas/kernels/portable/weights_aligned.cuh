// Loads weights of aligned problems: K a multiple of kStageK, every 16-byte piece of a row aligned.
//
// Addresses are computed once per visit; a stage then costs an addition per copy. One warp loads
// for all, so that the others spend their instructions on decoding.
#pragma once

#include "../common/ptx/address.cuh"
#include "../common/ptx/async_copy.cuh"
#include "stage.cuh"

namespace nibblas::portable {

class AlignedWeights {
 public:
  __device__ explicit AlignedWeights(const Params& p)
      : p_(p),
        lane_(static_cast<i32>(threadIdx.x) % kWarpLanes),
        blocked_(p.w_scales.layout == ScaleLayout::kBlocked),
        rows_step_(kRowsAtOnce / 4 * p.w.row_bytes) {
    const i32 line = lane_ / kRowChunks;
    for (i32 i = 0; i < 2; ++i) {
      const i32 place = weight_place(line + i * kRowsAtOnce, lane_ % kRowChunks);
      weights_to_[i] = (line * kRowChunks + place) * kChunkBytes;
    }
    scales_to_ = lane_ / kSetLanes * static_cast<i32>(sizeof(Stage::weight_scales[0])) +
                 lane_ % kSetLanes * (blocked_ ? kChunkBytes : kStageBlocks);
  }

  __device__ __forceinline__ void load(const Cursor& at, Stage& stage) {
    if (at.first_of_k()) point_at(at);
    const u32 weights = ptx::shared_address(stage.weights);
    const u32 scales = ptx::shared_address(stage.weight_scales) + scales_to_;
    if (whole_) {
      load_sets<true>(at, weights, scales);
    } else {
      load_sets<false>(at, weights, scales);
    }
  }

 private:
  // Fragment rows that the lanes copy at once; lanes per set of scales, and sets at once.
  static constexpr i32 kRowsAtOnce = kWarpLanes / kRowChunks;
  static constexpr i32 kSetLanes = kSetRows;
  static constexpr i32 kSetsAtOnce = kWarpLanes / kSetLanes;
  static constexpr i32 kScaleLines = 4 * kStageBlocks / static_cast<i32>(kAtomKBlocks);
  static_assert(kRowsAtOnce % 4 == 0, "copies of a set are whole rows of all quarters apart");
  static_assert(kScaleLines <= kSetLanes, "one copy per lane");
  static_assert(kStageBlocks == 8 || kStageBlocks == 16, "one copy per lane");

  __device__ void point_at(const Cursor& at) {
    constexpr i32 kLast = kVisitSets - 1;
    whole_ = at.has_set(kLast) && set_row(at.set(kLast), kSetRows - 1) < p_.n;
    const u8* group = p_.w.bytes + at.group() * p_.w.group_bytes + lane_ % kRowChunks * kChunkBytes;
#pragma unroll
    for (i32 set = 0; set < kVisitSets; ++set) {
      weights_[set] = group + set_row(at.set(set), lane_ / kRowChunks) * p_.w.row_bytes;
    }
    const u8* scales = p_.w_scales.bytes + at.group() * p_.w_scales.group_bytes;
    const i32 l = lane_ % kSetLanes;
#pragma unroll
    for (i32 i = 0; i < kVisitSets / kSetsAtOnce; ++i) {
      const i32 set = at.set(i * kSetsAtOnce + lane_ / kSetLanes);
      scales_[i] = scales + (blocked_ ? blocked_offset(set_row(set, l % 4 * 4),
                                                       l / 4 * kAtomKBlocks, p_.k / kScaleBlock)
                                      : min_of(set_row(set, l), p_.n - 1) * p_.w_scales.row_bytes);
    }
  }

  // kWhole: every set exists, with all its rows.
  template <bool kWhole>
  __device__ __forceinline__ void load_sets(const Cursor& at, u32 weights, u32 scales) {
#pragma unroll
    for (i32 set = 0; set < kVisitSets; ++set) {
      const u32 to = weights + set * static_cast<i32>(sizeof(Stage::weights[0]));
      if (kWhole || at.has_set(set)) load_set<kWhole>(at.set(set), to, weights_[set]);
      weights_[set] += Config::kStageK / 2;
    }
    const i32 step = blocked_ ? kScaleLines / 4 * static_cast<i32>(kAtomBytes) : kStageBlocks;
#pragma unroll
    for (i32 i = 0; i < kVisitSets / kSetsAtOnce; ++i) {
      const u32 to = scales + i * kSetsAtOnce * static_cast<i32>(sizeof(Stage::weight_scales[0]));
      if (kWhole || at.has_set(i * kSetsAtOnce + lane_ / kSetLanes)) load_scales(to, scales_[i]);
      scales_[i] += step;
    }
  }

  // Rows past N are zeros; their results are not stored.
  template <bool kWhole>
  __device__ __forceinline__ void load_set(i32 set, u32 to, const u8* from) {
#pragma unroll
    for (i32 row = 0; row < kSetRows; row += kRowsAtOnce) {
      const u32 place = to + row * kRowChunks * kChunkBytes + weights_to_[row / kRowsAtOnce % 2];
      if constexpr (kWhole) {
        ptx::cp_async_16(place, from);
      } else {
        const bool exists = set_row(set, row + lane_ / kRowChunks) < p_.n;
        ptx::cp_async_16(place, exists ? from : p_.w.bytes, exists ? kChunkBytes : 0);
      }
      from += rows_step_;
    }
  }

  // A 16-byte line of an atom, or a row's scales.
  __device__ __forceinline__ void load_scales(u32 to, const u8* from) {
    const bool mine = !blocked_ || lane_ % kSetLanes < kScaleLines;
    if constexpr (kStageBlocks == kChunkBytes) {
      ptx::cp_async_16_if(mine, to, from);
    } else {
      ptx::cp_async_16_if(mine && blocked_, to, from);
      ptx::cp_async_8_if(mine && !blocked_, to, from);
    }
  }

  const Params& p_;
  i32 lane_;
  bool blocked_;
  bool whole_ = false;
  i64 rows_step_;
  u32 weights_to_[2];  // of even and odd copies of a set: the swizzle's period is 8 lines
  u32 scales_to_;
  const u8* weights_[kVisitSets] = {};
  const u8* scales_[kVisitSets / kSetsAtOnce] = {};
};

}  // namespace nibblas::portable
