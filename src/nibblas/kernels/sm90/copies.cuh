// The producer: one thread that copies stages through TMA.
//
// A CTA copies its own units' codes and scales. Of the tokens, each CTA of a cluster of two copies
// one half along K to both.
#pragma once

#include "../common/ptx/grid.cuh"
#include "walk.cuh"

namespace nibblas::sm90 {

class Copies {
 public:
  __device__ explicit Copies(const Params& p)
      : p_(p), rank_(cta_rank()), blocked_(p.w_scales.layout == ScaleLayout::kBlocked) {}

  // One stage of a step, which also makes the one arrival at `full`. The very first tokens are
  // waited for: the launch before makes them.
  __device__ __forceinline__ void copy(const Step& at, i32 k, u32 stage, u32 full,
                                       bool first) const {
    const i32 units = (at.units - rank_ + Config::kCluster - 1) / Config::kCluster;
    const i32 unit_bytes = kCodesBytes + (blocked_ ? kBlockedScalesBytes : kLinearScalesBytes);
    const i32 token_bytes = at.width * kHalves * kTokenRowBytes;
    ptx::mbarrier_arrive_expect_tx(full, static_cast<u32>(units * unit_bytes + token_bytes));
    copy_weights(at, k, units, stage, full);
    if (first) ptx::griddepcontrol_wait();
    copy_tokens(at, k, stage, full);
  }

 private:
  __device__ __forceinline__ void copy_tokens(const Step& at, i32 k, u32 stage, u32 full) const {
    const i32 width = at.width;
    i32 row = static_cast<i32>(at.token_row);
    u32 to = stage + static_cast<u32>(rank_ * width * kTokenRowBytes);
    i32 box_rows = kMaxTokens;
#pragma unroll
    for (i32 box = 0; box < kTokenBoxes; ++box, box_rows /= 2) {
      if ((width & box_rows) == 0) continue;
      if constexpr (Config::kCluster == 1) {
#pragma unroll
        for (i32 half = 0; half < kHalves; ++half) {
          ptx::cp_async_bulk_tensor_3d(to + half * width * kTokenRowBytes, p_.x_maps[box],
                                       k + half * kHalfK, row, 0, full, ptx::kEvictLast);
        }
      } else {
        static_assert(Config::kCluster == 1 || Config::kCluster == kHalves, "a half each");
        ptx::cp_async_bulk_tensor_3d_multicast(to, p_.x_maps[box], k + rank_ * kHalfK, row, 0, full,
                                               (1 << Config::kCluster) - 1, ptx::kEvictLast);
      }
      row += box_rows;
      to += box_rows * kTokenRowBytes;
    }
  }

  __device__ __forceinline__ void copy_weights(const Step& at, i32 k, i32 units, u32 stage,
                                               u32 full) const {
    u32 codes = stage + static_cast<u32>(offsetof_weights());
    u32 scales = stage + static_cast<u32>(offsetof_scales());
    i32 unit = at.first_unit + rank_;
    for (i32 i = 0; i < units; ++i, unit += Config::kCluster) {
      const i32 atom = unit / 2, half = unit % 2;
      ptx::cp_async_bulk_tensor_4d(codes, p_.w_map, k / 2, 16 * half, 4 * atom, at.group, full,
                                   ptx::kEvictFirst);
      if (blocked_) {
        ptx::cp_async_bulk_tensor_4d(scales, p_.w_scales_map, 256 * half, k / kHalfK, atom,
                                     at.group, full, ptx::kEvictFirst);
      } else {
        ptx::cp_async_bulk_tensor_4d(scales, p_.w_scales_map, k / 256 * 16, 16 * half, 4 * atom,
                                     at.group, full, ptx::kEvictFirst);
      }
      codes += kCodesBytes;
      scales += kLinearScalesBytes;
    }
  }

  static __device__ constexpr i32 offsetof_weights() { return sizeof(Stage::tokens); }
  static __device__ constexpr i32 offsetof_scales() {
    return sizeof(Stage::tokens) + sizeof(Stage::weights);
  }

  const Params& p_;
  i32 rank_;
  bool blocked_;
};

static __device__ __forceinline__ void prefetch_maps(const Params& p) {
  for (i32 i = 0; i < kTokenBoxes; ++i) ptx::prefetch_tensormap(p.x_maps[i]);
  ptx::prefetch_tensormap(p.w_map);
  ptx::prefetch_tensormap(p.w_scales_map);
}

// By one thread. It waits for the launch before even if there is nothing to do: who comes after
// this launch takes that one for complete.
static __device__ void copy_operands(const Params& p, i32 cta_units, Shared& shared) {
  const Copies copies(p);
  RingPlace place(shared);
  bool first = true;
  for (Walk at(p, shared.ends, cta_units); !at.done(); at.advance()) {
    const Step step = at.step();
    for (i32 k = 0; k < p.k; k += kStageK, place.advance(), first = false) {
      place.wait_until_empty();
      if (k == 0) place.step() = step;
      copies.copy(step, k, place.stage(), place.full(), first);
    }
  }
  if (first) ptx::griddepcontrol_wait();
  place.wait_until_empty();
  place.step().width = 0;
  ptx::mbarrier_arrive(place.full());
}

}  // namespace nibblas::sm90
