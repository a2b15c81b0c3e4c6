// The MMA warp: scales to tensor memory, then four MMAs of 64 values along K a stage.
//
//   tensor memory   | sums 0 | sums 1 | scales of slot 0 | scales of slot 1 | ... |
//
// A slot's scales have their own columns of tensor memory, so that the barriers that guard the slot
// guard them too: nothing relies on an order between an MMA and a later copy.
#pragma once

#include "../common/ptx/tcgen05.cuh"
#include "mask.cuh"

namespace nibblas::sm100 {

constexpr u32 kInstruction = nvfp4_instruction(kTileM, Config::kTileN);

// Columns of tensor memory, from the allocation's first.
constexpr u32 kXScaleColumns = kStageAtoms * kScaleColumns;
constexpr u32 kSlotColumns = kXScaleColumns * (1 + kRowAtoms);
constexpr u32 kSumColumns = Config::kAccumulators * Config::kTileN;

// By one thread: a stage's scales and products.
static __device__ __forceinline__ void multiply_stage(const Stage& stage, i32 atoms, u32 sums,
                                                      u32 scales, bool accumulates) {
  const u64 x = at_address(kOperandDescriptor, ptx::shared_address(stage.x));
  const u64 w = at_address(kOperandDescriptor, ptx::shared_address(stage.w));
  const u64 x_scales = at_address(kScalesDescriptor, ptx::shared_address(stage.x_scales));
  const u64 w_scales = at_address(kScalesDescriptor, ptx::shared_address(stage.w_scales));
  const u32 w_columns = scales + kXScaleColumns;
#pragma unroll
  for (i32 i = 0; i < kStageAtoms; ++i) {
    if (i >= atoms) break;
    const u64 atom = i * kAtomBytes >> 4;
    ptx::tcgen05_cp_32x128b_warpx4(scales + i * kScaleColumns, x_scales + atom);
#pragma unroll
    for (i32 j = 0; j < kRowAtoms; ++j) {
      ptx::tcgen05_cp_32x128b_warpx4(w_columns + (i * kRowAtoms + j) * kScaleColumns,
                                     w_scales + atom + (j * kRowAtomBytes >> 4));
    }
  }
#pragma unroll
  for (i32 i = 0; i < kStageAtoms; ++i) {
    if (i >= atoms) break;
    const u64 step = i * kOperandStepBytes >> 4;
    ptx::tcgen05_mma_nvfp4(sums, x + step, w + step, kInstruction, scales + i * kScaleColumns,
                           w_columns + i * kRowAtoms * kScaleColumns, accumulates || i > 0);
  }
}

// The slot may be refilled, by all CTAs of the cluster, once what has been issued is complete.
static __device__ __forceinline__ void release_slot(u32 empty) {
  if constexpr (Config::kCluster == 1) {
    ptx::tcgen05_commit(empty);
  } else {
    ptx::tcgen05_commit_multicast(empty, kAllCtas);
  }
}

static __device__ void multiply(const Params& p, Control& control, u8* shared) {
  const u32 tensor = control.tensor;
  const bool elected = ptx::elect_sync();
  RingPlace place(p, shared);
  Turn sums(Config::kAccumulators);
  for (Items items(p, control); !items.done(); items.advance(), sums.advance()) {
    const i32 k_end = items.item().k;
    wait(ptx::shared_address(&control.sums_empty[sums.slot()]), sums.round() ^ 1);
    ptx::tcgen05_fence_after_thread_sync();
    for (i32 k = 0; k < k_end; k += kStageK, place.advance()) {
      const i32 atoms = stage_atoms(k_end - k);
      place.wait_until_full();
      ptx::tcgen05_fence_after_thread_sync();
      if (has_scales_beyond(k, k_end)) {
        mask_scales(place.stage(), 1, atoms - 1, k_end % kMmaK / static_cast<i32>(kScaleBlock));
      }
      if (elected) {
        multiply_stage(place.stage(), atoms, tensor + sums.slot() * Config::kTileN,
                       tensor + kSumColumns + place.slot() * kSlotColumns, k > 0);
        release_slot(place.empty());
      }
      __syncwarp();
    }
    if (elected) ptx::tcgen05_commit(ptx::shared_address(&control.sums_full[sums.slot()]));
    __syncwarp();
  }
}

}  // namespace nibblas::sm100
