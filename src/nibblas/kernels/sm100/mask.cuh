// Zeros in place of the scales beyond K, which may be NaN: 0 * NaN would not be 0.
#pragma once

#include "copies.cuh"

namespace nibblas::sm100 {

// Whether scales of a stage lie beyond K and have come with the others.
static __device__ __forceinline__ bool has_scales_beyond(i32 k, i32 k_end) {
  return Config::kBulkScales && k + kStageK > k_end && k_end % kMmaK != 0;
}

// By the whole warp, on the last atom of every 128 rows; `token_atoms` times 128 rows of tokens.
static __device__ __forceinline__ void mask_scales(const Stage& stage, i32 token_atoms, i32 atom,
                                                   i32 valid_blocks) {
  const u32 mask = (1u << 8 * valid_blocks) - 1;
  const i32 lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (i32 i = 0; i < token_atoms + kRowAtoms; ++i) {
    u8* atoms = i < token_atoms ? stage.x_scales + i * kRowAtomBytes
                                : stage.w_scales + (i - token_atoms) * kRowAtomBytes;
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

}  // namespace nibblas::sm100
