// NVFP4 grouped GEMM for datacenter Blackwell: weights on the tensor core's M side, tokens on N.
//
//   persistent pairs of CTAs, or CTAs; each walks items of work: 128 weight rows a CTA x the tokens
//   of a group, up to p.tile_tokens
//
//   even CTA  producer --TMA--> ring --full--> MMA warp --cta_group::2--> sums     8 epilogue warps
//               w rows 0-127, first tokens      |  ^    of both CTAs --sums_full-->  factors, cast
//               ^                               |  |                                 transposed
//               +--- empty, sums_full: commits -+  |                                      |
//               |    to both CTAs                  +-- sums_empty, both CTAs -------------+
//   odd CTA   producer --TMA--> ring --full--> MMA warp: arrives at the even CTA's full
//               w rows 128-255, other tokens
//
//   full[slot]      own producer and gathering warps; of the even CTA, the odd one's MMA warp too
//   empty[slot]     one commit of the even CTA
//   sums_full[i]    one commit of the even CTA
//   sums_empty[i]   8 epilogue warps a CTA, at the even CTA
//
// A weight byte is read once for all tokens of a tile; groups with more tokens have their tiles
// side by side in the order of work, so that DRAM is read once. Columns of the tensor core are as
// many as the tile has tokens, rounded up to 16. Loads run across items.
//
// Accumulation: as in grouped_mm.cu, one chain of MMAs of 64 values in the order of K.
#include "../common/ptx/grid.cuh"
#include "gather.cuh"
#include "swapped_copies.cuh"
#include "swapped_epilogue.cuh"
#include "swapped_multiply.cuh"

namespace nibblas::sm100 {

constexpr i32 kMaxTileTokens = 256;
constexpr u32 kMaxStageBytes = stage_bytes_of(kMaxTileTokens / kCtas, kMaxRowAtoms);

static_assert(kStagingBytes == Config::kStagingBytes && kMaxStageBytes == Config::kStageBytes,
              "the host's shared-memory map differs");
static_assert(sizeof(Control) == Config::kControlBytes, "the host's shared-memory map differs");
static_assert(kAllWarps * kWarpLanes == Config::kThreads, "the host launches another block");
static_assert(kSlotColumns == Config::kSlotColumns, "the host's tensor-memory map differs");

static __device__ __forceinline__ void init_barriers(const Params& p, Control& control) {
  const u32 passed_on = rank_in_pair() == 0 ? kCtas - 1 : 0;
  for (i32 slot = 0; slot < p.stages; ++slot) {
    ptx::mbarrier_init(ptx::shared_address(&control.full[slot]), kFullArrivals + passed_on);
    ptx::mbarrier_init(ptx::shared_address(&control.empty[slot]), 1);
  }
#pragma unroll
  for (i32 i = 0; i < 2; ++i) {
    ptx::mbarrier_init(ptx::shared_address(&control.sums_full[i]), 1);
    ptx::mbarrier_init(ptx::shared_address(&control.sums_empty[i]), kCtas * kEpilogueWarps);
  }
  ptx::fence_mbarrier_init();
}

// All warps of the pair together; barriers and tensor memory are ready after it. The launch before
// this one may still run until griddepcontrol.wait: no operand, and not offs, is touched before.
static __device__ __forceinline__ void set_up(const Params& p, Control& control, i32 warp) {
  if (warp == kMmaWarp) {
    ptx::tcgen05_alloc<kCtas>(ptx::shared_address(&control.tensor), p.tensor_columns);
    ptx::tcgen05_relinquish_alloc_permit<kCtas>();
    ptx::tcgen05_fence_before_thread_sync();
  }
  if (threadIdx.x == 0) init_barriers(p, control);
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  find_groups(p, control);
  __syncthreads();
  if constexpr (kCtas > 1) ptx::barrier_cluster();
  ptx::tcgen05_fence_after_thread_sync();
}

static __device__ __forceinline__ void produce(const Params& p, Control& control, u8* shared) {
  if constexpr (!Config::kTensorCopies) {
    gather_operands(p, control, shared);
  } else if (ptx::elect_sync()) {
    copy_both(p, control, shared);
  }
}

static __device__ __forceinline__ void run(const Params& p, u8* shared) {
  const i32 warp = threadIdx.x / kWarpLanes;
  Control& control = control_of(p, shared);
  set_up(p, control, warp);
  if (warp < kEpilogueWarps) {
    write_outputs(p, control);
  } else if (warp == kMmaWarp) {
    if (rank_in_pair() == 0) {
      multiply(p, control, shared);
    } else {
      pass_on(p, control, shared);
    }
  } else if (warp < kFirstScaleWarp) {
    produce(p, control, shared);
  } else if constexpr (!Config::kBulkScales) {
    if (warp == kFirstScaleWarp) {
      gather_scales<true>(p, control, shared);
    } else {
      gather_scales<false>(p, control, shared);
    }
  }
  __syncwarp();  // a producer's lanes come apart
  ptx::tcgen05_fence_before_thread_sync();
  __syncthreads();
  // Nothing is on its way to the other CTA, nor used by it, after this.
  if constexpr (kCtas > 1) ptx::barrier_cluster_relaxed();
  if (warp == kMmaWarp) {
    ptx::tcgen05_fence_after_thread_sync();
    ptx::tcgen05_dealloc<kCtas>(control.tensor, p.tensor_columns);
  }
}

}  // namespace nibblas::sm100

extern "C" {

// Compared by the host with its own sizes before the first launch; a stage's for the largest tile.
__constant__ nibblas::u64 nibblas_stage_bytes = nibblas::sm100::kMaxStageBytes;
__constant__ nibblas::u64 nibblas_parameter_bytes = sizeof(nibblas::sm100::Params);

__global__ void __launch_bounds__(nibblas::Config::kThreads, 1)
    nibblas_sm100_swapped(const __grid_constant__ nibblas::sm100::Params params) {
  extern __shared__ __align__(1024) nibblas::u8 shared[];
  nibblas::sm100::run(params, shared);
}
}
