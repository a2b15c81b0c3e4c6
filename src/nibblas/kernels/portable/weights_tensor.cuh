// Loads weights through TMA, sm_90 and newer: aligned problems whose N is a multiple of 32. The
// warps share the sets; one lane of a warp starts two copies per set; they arrive by themselves.
#pragma once

#include "../common/ptx/address.cuh"
#include "../common/ptx/tensor_copy.cuh"
#include "stage.cuh"

namespace nibblas::portable {

#if NIBBLAS_CONFIG_TENSOR_COPIES

static __device__ __forceinline__ void prefetch_maps(const Params& p) {
  ptx::prefetch_tensormap(p.w_map);
  ptx::prefetch_tensormap(p.w_scales_map);
}

// Brings a box of codes and its scales, at the beginning of K, into L2.
static __device__ __forceinline__ void prefetch_box(const Params& p, i32 set, i32 group) {
  const i32 atom = set / kSetsPerAtom, in_atom = set % kSetsPerAtom;
  ptx::cp_async_bulk_prefetch_tensor_4d(p.w_map, 0, 4 * atom, 4 * in_atom, group);
  if (p.w_scales.layout == ScaleLayout::kLinear) {
    ptx::cp_async_bulk_prefetch_tensor_4d(p.w_scales_map, 0, 4 * atom, 4 * in_atom, group);
    return;
  }
#pragma unroll 1
  for (i32 i = 0; i < kBoxSets; ++i) {
    ptx::cp_async_bulk_prefetch_tensor_4d(p.w_scales_map, 64 * (in_atom + i), 0, atom, group);
  }
}

// Brings what a visit's first stage copies into L2, which is harmless whoever writes it later: L2
// is where everybody's writes meet. By one lane.
static __device__ __forceinline__ void prefetch_weights(const Params& p, const Cursor& at) {
#pragma unroll 1
  for (i32 i = 0; i < at.sets(); i += kBoxSets) prefetch_box(p, at.set(i), at.group());
}

class TensorWeights {
 public:
  __device__ TensorWeights(const Params& p, i32 warp)
      : p_(p), warp_(warp), blocked_(p.w_scales.layout == ScaleLayout::kBlocked) {}

  // Also makes the one arrival at `full`.
  __device__ __forceinline__ void load(const Cursor& at, const Stage& stage, u32 full) const {
    static_assert(kRowChunks * kChunkBytes == 128, "a line is the span of the 128-byte swizzle");
    const bool leader = ptx::elect_sync();
    // N is a multiple of 32 and tiles are whole boxes, so every visit is.
    const i32 boxes = uniform(at.sets()) / kBoxSets;
    const i32 first = boxes * warp_ / Config::kWeightWarps * kBoxSets;
    const i32 end = boxes * (warp_ + 1) / Config::kWeightWarps * kBoxSets;
    if (leader) ptx::mbarrier_arrive_expect_tx(full, (end - first) * (kCodesBytes + kScalesBytes));
    __syncwarp();
    if (blocked_) {
      load_sets<true>(leader, at, first, end - first, stage, full);
    } else {
      load_sets<false>(leader, at, first, end - first, stage, full);
    }
  }

 private:
  static constexpr i32 kCodesBytes = sizeof(Stage::weights[0]);
  static constexpr i32 kScalesBytes = sizeof(Stage::weight_scales[0]);

  template <bool kBlocked>
  __device__ __forceinline__ void load_sets(bool leader, const Cursor& at, i32 first, i32 sets,
                                            const Stage& stage, u32 full) const {
    const i32 k = uniform(at.k()), group = uniform(at.group());
    const i32 begin = uniform(at.set(first));
    i32 atom = begin / kSetsPerAtom, in_atom = begin % kSetsPerAtom;
    const u32 barrier = uniform(full);
    u32 codes = uniform(ptx::shared_address(stage.weights[first]));
    u32 scales = uniform(ptx::shared_address(stage.weight_scales[first]));
#pragma unroll 1
    for (i32 left = uniform(sets); left > 0; left -= kBoxSets) {
      ptx::cp_async_bulk_tensor_4d_if(leader, codes, p_.w_map, k / 2, 4 * atom, 4 * in_atom, group,
                                      barrier);
      if constexpr (kBlocked) {
#pragma unroll
        for (i32 i = 0; i < kBoxSets; ++i) {
          ptx::cp_async_bulk_tensor_4d_if(leader, scales + i * kScalesBytes, p_.w_scales_map,
                                          64 * (in_atom + i), k / 64, atom, group, barrier);
        }
      } else {
        ptx::cp_async_bulk_tensor_4d_if(leader, scales, p_.w_scales_map, k / 16, 4 * atom,
                                        4 * in_atom, group, barrier);
      }
      codes += kBoxSets * kCodesBytes;
      scales += kBoxSets * kScalesBytes;
      in_atom += kBoxSets;
      if (in_atom == kSetsPerAtom) {
        in_atom = 0;
        ++atom;
      }
    }
  }

  // The same value in every lane, which the compiler then knows.
  static __device__ __forceinline__ i32 uniform(i32 value) {
    return __shfl_sync(kAllLanes, value, 0);
  }

  const Params& p_;
  i32 warp_;
  bool blocked_;
};

#endif

}  // namespace nibblas::portable
