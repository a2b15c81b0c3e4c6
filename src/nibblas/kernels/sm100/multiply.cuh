// The MMA warp: scales to tensor memory, then four MMAs of 64 values along K a stage.
#pragma once

#include "../common/ptx/tcgen05.cuh"
#include "copies.cuh"

namespace nibblas::sm100 {

constexpr u32 kInstruction = nvfp4_instruction(kTileM, Config::kTileN);

// Zeros in place of the scales beyond K, which may be NaN: 0 * NaN would not be 0. By the whole
// warp, on the last atom of every 128 rows.
static __device__ __forceinline__ void mask_scales(Stage& stage, i32 atom, i32 valid_blocks) {
  const u32 mask = (1u << 8 * valid_blocks) - 1;
  const i32 lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (i32 i = 0; i <= kRowAtoms; ++i) {
    u8* atoms = i == 0 ? stage.x_scales : stage.w_scales + (i - 1) * kRowAtomBytes;
    uint4& words = reinterpret_cast<uint4*>(atoms + atom * kAtomBytes)[lane];
    uint4 masked = words;
    masked.x &= mask;
    masked.y &= mask;
    masked.z &= mask;
    masked.w &= mask;
    words = masked;
  }
  ptx::fence_proxy_async();
  __syncwarp();
}

// By one thread: a stage's scales and products.
static __device__ __forceinline__ void multiply_stage(Stage& stage, i32 atoms, u32 sums, u32 scales,
                                                      bool accumulates) {
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
      if (Config::kBulkScales && k + kStageK > k_end && k_end % kMmaK != 0) {
        mask_scales(place.stage(), atoms - 1, k_end % kMmaK / static_cast<i32>(kScaleBlock));
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
