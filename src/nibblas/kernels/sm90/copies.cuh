// The producer: a warp that finds the CTA's steps, and one thread of it that copies stages through
// TMA.
#pragma once

#include "../common/ptx/barrier.cuh"
#include "../common/ptx/grid.cuh"
#include "walk.cuh"

namespace nibblas::sm90 {

constexpr i32 kMaxAtoms = (kMultiplyGroups + 1) / kAtomUnits;  // of a step; two units are of one

class Copies {
 public:
  __device__ explicit Copies(const Params& p)
      : p_(p), blocked_(p.w_scales.layout == ScaleLayout::kBlocked) {}

  // One stage of a step, which also makes the one arrival at `full`.
  __device__ __forceinline__ void copy(const Step& at, i32 k, u32 stage, u32 full) const {
    const i32 first_atom = at.first_unit / kAtomUnits;
    const i32 atoms = (at.first_unit + at.units - 1) / kAtomUnits - first_atom + 1;
    const i32 scale_bytes = blocked_ ? atoms * kBlockedScalesBytes : at.units * kLinearScalesBytes;
    ptx::mbarrier_arrive_expect_tx(full, static_cast<u32>(at.width * kHalves * kTokenRowBytes +
                                                          at.units * kCodesBytes + scale_bytes));
    const u32 codes = stage + static_cast<u32>(sizeof(Stage::tokens));
#pragma unroll
    for (i32 i = 0; i < kMultiplyGroups; ++i) {
      if (i >= at.units) break;
      ptx::cp_async_bulk_tensor_3d(codes + i * kCodesBytes, p_.w_map, k / 2,
                                   (at.first_unit + i) * kUnitRows, at.group, full,
                                   ptx::kEvictFirst);
    }
    const u32 scales = codes + static_cast<u32>(sizeof(Stage::weights));
    if (blocked_) {
#pragma unroll
      for (i32 i = 0; i < kMaxAtoms; ++i) {
        if (i >= atoms) break;
        ptx::cp_async_bulk_tensor_4d(scales + i * kBlockedScalesBytes, p_.w_scales_map, 0, k / 32,
                                     first_atom + i, at.group, full, ptx::kEvictFirst);
      }
    } else {
#pragma unroll
      for (i32 i = 0; i < kMultiplyGroups; ++i) {
        if (i >= at.units) break;
        ptx::cp_async_bulk_tensor_3d(scales + i * kLinearScalesBytes, p_.w_scales_map, k / 256 * 16,
                                     (at.first_unit + i) * kUnitRows, at.group, full,
                                     ptx::kEvictFirst);
      }
    }
    ptx::cp_async_bulk_tensor_3d(stage, p_.x_maps[at.width_index], 0, at.token_row, k / kHalfK,
                                 full, ptx::kEvictLast);
  }

 private:
  const Params& p_;
  bool blocked_;
};

static __device__ __forceinline__ void prefetch_maps(const Params& p) {
  for (i32 i = 0; i < kWidthCount; ++i) ptx::prefetch_tensormap(p.x_maps[i]);
  ptx::prefetch_tensormap(p.w_map);
  ptx::prefetch_tensormap(p.w_scales_map);
}

// Whether the launches before this one, for which it waits, have left offs otherwise than the
// producer found it: by the reader warp.
static __device__ __forceinline__ void compare_offs(const Params& p, Shared& shared) {
  ptx::griddepcontrol_wait();
  ptx::barrier_sync<2 * kWarpLanes>(kEndsBarrier);
  bool differs = false;
  read_offs(p, [&](i32 group, i32 end) { differs |= shared.ends[group] != end; });
  differs = __any_sync(kAllLanes, differs);
  if (lane_of_warp() == 0) shared.offs_differ = differs;
}

// Finds the CTA's first step, with offs as it is while the launches before this one may be about to
// write it, or again if they do, and begins to copy for it: by the producer warp.
static __device__ __forceinline__ void begin(const Params& p, Walk& walk, RingPlace& place,
                                             StepPlace& turn, Shared& shared) {
  const BestCut best(p);
#pragma unroll 1
  for (bool is_hint = true;; is_hint = false) {
    read_offs(p, [&](i32 group, i32 end) { shared.ends[group] = end; });
    if (is_hint) ptx::barrier_arrive<2 * kWarpLanes>(kEndsBarrier);
    walk.begin(best.of(shared.ends));
    if (!is_hint) break;
    __syncthreads();
    ptx::griddepcontrol_wait();
    if (shared.offs_differ == 0) break;
  }
  if (walk.step().width > 0 && ptx::elect_sync()) {
    Copies(p).copy(walk.step(), 0, place.stage(), place.full());
  }
  if (ptx::elect_sync()) turn.tell(walk.step());
}

// Copies all but the first stage: by the producer warp, of which one lane copies.
static __device__ __forceinline__ void produce(const Params& p, Walk& walk, RingPlace& place,
                                               StepPlace& turn) {
  const Copies copies(p);
  const bool copier = ptx::elect_sync();
  i32 k = kStageK;
  if (copier && walk.step().width > 0) place.advance();
  while (walk.step().width > 0) {
    if (copier) {
      for (; k < p.k; k += kStageK, place.advance()) {
        place.wait_until_empty();
        copies.copy(walk.step(), k, place.stage(), place.full());
      }
    }
    __syncwarp();
    k = 0;
    walk.next();
    if (copier) turn.tell(walk.step());
  }
}

}  // namespace nibblas::sm90
