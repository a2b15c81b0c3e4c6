// The producer: one thread that copies stages through TMA.
//
// A CTA copies its own units' codes and scales. Of the tokens, each CTA of a cluster of two copies
// one half along K to both.
#pragma once

#include "walk.cuh"

namespace nibblas::sm90 {

class Copies {
 public:
  __device__ explicit Copies(const Params& p)
      : p_(p), rank_(cta_rank()), blocked_(p.w_scales.layout == ScaleLayout::kBlocked) {}

  // One stage of a step, which also makes the one arrival at `full`.
  __device__ __forceinline__ void copy(const Step& at, i32 k, u32 stage, u32 full) const {
    const i32 unit_bytes = kCodesBytes + (blocked_ ? kBlockedScalesBytes : kLinearScalesBytes);
    const i32 token_bytes = at.width * kHalves * kTokenRowBytes;
    ptx::mbarrier_arrive_expect_tx(full,
                                   static_cast<u32>(token_bytes + units_of_cta(at) * unit_bytes));
    copy_weights(at, k, stage, full);
    copy_tokens(at, k, stage, full);
  }

 private:
  __device__ __forceinline__ void copy_tokens(const Step& at, i32 k, u32 stage, u32 full) const {
    const ptx::TensorMap& map = p_.x_maps[at.width_index];
    const i32 row = static_cast<i32>(at.token_row), half = k / kHalfK;
    if constexpr (Config::kCluster == 1) {
      ptx::cp_async_bulk_tensor_3d(stage, map, 0, row, half, full, ptx::kEvictLast);
    } else {
      static_assert(Config::kCluster == 1 || Config::kCluster == kHalves, "a half each");
      ptx::cp_async_bulk_tensor_3d_multicast(
          stage + static_cast<u32>(rank_ * at.width * kTokenRowBytes), map, 0, row, half + rank_,
          full, (1 << Config::kCluster) - 1, ptx::kEvictLast);
    }
  }

  __device__ __forceinline__ void copy_weights(const Step& at, i32 k, u32 stage, u32 full) const {
    u32 codes = stage + static_cast<u32>(sizeof(Stage::tokens));
    u32 scales = codes + static_cast<u32>(sizeof(Stage::weights));
    for (i32 i = 0; i < units_of_cta(at); ++i) {
      const i32 unit = first_unit_of_cta(at) + i;
      const i32 atom = unit / kAtomUnits, half = unit % kAtomUnits;
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

  const Params& p_;
  i32 rank_;
  bool blocked_;
};

static __device__ __forceinline__ void prefetch_maps(const Params& p) {
  for (i32 i = 0; i < kWidthCount; ++i) ptx::prefetch_tensormap(p.x_maps[i]);
  ptx::prefetch_tensormap(p.w_map);
  ptx::prefetch_tensormap(p.w_scales_map);
}

// By the producer warp: one lane copies. The first stage comes alone: what is asked for beside it
// would delay it.
static __device__ void copy_operands(const Params& p, const Cut& cut, Shared& shared) {
  const Copies copies(p);
  const bool copier = ptx::elect_sync();
  RingPlace place(shared);
  bool first = true;
  for (Walk at(p, shared.ends, cut); !at.done(); at.advance()) {
    const Step step = at.step();
    for (i32 k = 0; k < p.k; k += kStageK, place.advance()) {
      if (!copier) continue;
      place.wait_until_empty();
      if (k == 0) place.step() = step;
      copies.copy(step, k, place.stage(), place.full());
      if (first) place.wait_until_full();
      first = false;
    }
    __syncwarp();
  }
  if (!copier) return;
  place.wait_until_empty();
  place.step().width = 0;
  ptx::mbarrier_arrive(place.full());
}

}  // namespace nibblas::sm90
