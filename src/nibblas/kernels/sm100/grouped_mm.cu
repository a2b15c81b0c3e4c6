// NVFP4 grouped GEMM for datacenter Blackwell: tokens on the tensor core's M side, weights on N.
//
//   persistent clusters, each walks items of work: 128 tokens x kCluster * kTileN columns
//
//   producers        global --TMA--> ring of        MMA warp               4 epilogue warps
//     tokens, x scales               p.stages  -->  scales --tcgen05.cp--> tensor memory
//     weights, w scales              stages         tcgen05.mma       -->  sums --tcgen05.ld-->
//       ^                                |            |                    factors, cast, out
//       |                                |            +-- sums_full ---------->|
//       |                                |            |<------- sums_empty ----+
//       +---- empty[slot]: commits of all CTAs of the cluster
//
//   Tokens are copied once per cluster, a share by each CTA, to all of them. With two sets of sums
//   the next item is multiplied while the last one is written.
//
// Accumulation: a row's sum over K is one chain of MMAs of 64 values in the order of K, so a
// token's result does not depend on its group's size, on other groups, or on the grid.
#include "../common/ptx/cluster.cuh"
#include "epilogue.cuh"
#include "gather.cuh"
#include "multiply.cuh"

namespace nibblas::sm100 {

static_assert(stage_bytes_of(kTileM, 1) == Config::kStageBytes,
              "the host's shared-memory map differs");
static_assert(sizeof(Control) == Config::kControlBytes, "the host's shared-memory map differs");
static_assert(kAllWarps * kWarpLanes == Config::kThreads, "the host launches another block");
static_assert(kSumColumns == Config::kSumColumns && kSlotColumns == Config::kSlotColumns,
              "the host's tensor-memory map differs");

// Registers for two CTAs, of which shared memory decides; what loads by itself needs more.
constexpr i32 kCtasPerSm = Config::kTensorCopies ? 2 : 1;

static __device__ __forceinline__ void init_barriers(const Params& p, Control& control) {
  for (i32 slot = 0; slot < p.stages; ++slot) {
    ptx::mbarrier_init(ptx::shared_address(&control.full[slot]), kFullArrivals);
    ptx::mbarrier_init(ptx::shared_address(&control.empty[slot]), Config::kCluster);
  }
#pragma unroll
  for (i32 i = 0; i < Config::kAccumulators; ++i) {
    ptx::mbarrier_init(ptx::shared_address(&control.sums_full[i]), 1);
    ptx::mbarrier_init(ptx::shared_address(&control.sums_empty[i]), kEpilogueWarps);
  }
  ptx::fence_mbarrier_init();
}

// All warps of the cluster together; barriers and tensor memory are ready after it.
static __device__ __forceinline__ void set_up(const Params& p, Control& control, i32 warp) {
  if (warp == kMmaWarp) {
    ptx::tcgen05_alloc(ptx::shared_address(&control.tensor), p.tensor_columns);
    ptx::tcgen05_relinquish_alloc_permit();
    ptx::tcgen05_fence_before_thread_sync();
  }
  if (threadIdx.x == 0) init_barriers(p, control);
  find_groups(p, control);
  __syncthreads();
  if constexpr (Config::kCluster > 1) ptx::barrier_cluster();
  ptx::tcgen05_fence_after_thread_sync();
}

static __device__ __forceinline__ void produce(const Params& p, Control& control, u8* shared,
                                               i32 producer) {
  if constexpr (!Config::kTensorCopies) {
    gather_operands(p, control, shared);
  } else if (ptx::elect_sync()) {
    if constexpr (Config::kProducers == 1) {
      copy_operands<true, true>(p, control, shared);
    } else if (producer == 0) {
      copy_operands<true, false>(p, control, shared);
    } else {
      copy_operands<false, true>(p, control, shared);
    }
  }
}

static __device__ __forceinline__ void run(const Params& p, u8* shared) {
  const i32 warp = threadIdx.x / kWarpLanes;
  Control& control = control_of(p, shared);
  set_up(p, control, warp);
  if (warp < kEpilogueWarps) {
    write_outputs(p, control);
  } else if (warp == kMmaWarp) {
    multiply(p, control, shared);
  } else if (warp < kFirstScaleWarp) {
    produce(p, control, shared, warp - kFirstProducer);
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
  if (warp == kMmaWarp) {
    ptx::tcgen05_fence_after_thread_sync();
    ptx::tcgen05_dealloc(control.tensor, p.tensor_columns);
  }
}

}  // namespace nibblas::sm100

extern "C" {

// Compared by the host with its own sizes before the first launch.
__constant__ nibblas::u64 nibblas_stage_bytes = nibblas::Config::kStageBytes;
__constant__ nibblas::u64 nibblas_parameter_bytes = sizeof(nibblas::sm100::Params);

__global__ void __launch_bounds__(nibblas::Config::kThreads, nibblas::sm100::kCtasPerSm)
    nibblas_sm100_grouped_mm(const __grid_constant__ nibblas::sm100::Params params) {
  extern __shared__ __align__(1024) nibblas::u8 shared[];
  nibblas::sm100::run(params, shared);
}
}
