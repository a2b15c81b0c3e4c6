// NVFP4 grouped GEMM for every NVIDIA GPU since Ampere: the few-tokens and fall-back kernel.
//
//   persistent CTAs, each a run of (group, 128 weight rows) found from offs by itself
//
//   global --cp.async--> ring of kStages stages --ld.shared--> codes, tokens
//      ^                          |                              | decode in registers
//      |     refill the stage     |                              v
//      +------ read before -------+                 mma.sync m16n8k16, fp32 sums --> epilogue
//
//   one __syncthreads per stage: it publishes the stage that has arrived and frees the one before.
//   The loading cursor runs kStages - 1 stages ahead, across tiles, groups and token blocks.
//
// Accumulation: a row's sum over K is one chain of MMAs in an order that depends on K alone, so a
// token's result does not depend on its group's size, on other groups, or on the grid.
#include "epilogue.cuh"
#include "load_aligned.cuh"
#include "load_any.cuh"

namespace nibblas::portable {

static_assert(Config::kStages >= 2, "a stage is filled while another is read");
static_assert(sizeof(Stage) * Config::kStages == Config::kSharedBytes,
              "the host's shared-memory map differs from the kernel's");

static __device__ __forceinline__ void load_stage(AlignedLoader& loader, const Cursor& at,
                                                  Stage& stage) {
  loader.load(at, ptx::shared_address(&stage));
}

static __device__ __forceinline__ void load_stage(AnyLoader& loader, const Cursor& at,
                                                  Stage& stage) {
  loader.load(at, stage);
}

#if NIBBLAS_CONFIG_ALIGNED
using Loader = AlignedLoader;
#else
using Loader = AnyLoader;
#endif

static __device__ __forceinline__ i32 next_slot(i32 slot) {
  return slot + 1 == Config::kStages ? 0 : slot + 1;
}

static __device__ void run(const Params& p, Stage* ring) {
  const WarpRun work = warp_find_run(group_sizes(p), blockIdx.x, gridDim.x);
  Cursor loading(p, work), computing(p, work);
  Loader loader(p);
  const Multiplier multiplier(p);

  Sums sums{};
  i32 read = 0, write = 0;
  for (i32 unfilled = Config::kStages - 1; !computing.done();) {
    if (unfilled == 0) {
      ptx::cp_async_wait_group<Config::kStages - 2>();
      __syncthreads();
    }
    if (!loading.done()) {
      load_stage(loader, loading, ring[write]);
      loading.advance();
    }
    ptx::cp_async_commit_group();
    write = next_slot(write);
    if (unfilled > 0) {
      --unfilled;
      continue;
    }
    multiplier.multiply(computing, ring[read], sums);
    if (computing.last_of_k()) {
      write_tile(p, computing, sums);
      sums = {};
    }
    computing.advance();
    read = next_slot(read);
  }
}

}  // namespace nibblas::portable

extern "C" {

// Compared by the host with its own sizes before the first launch.
__constant__ nibblas::u64 nibblas_shared_bytes = nibblas::Config::kSharedBytes;
__constant__ nibblas::u64 nibblas_parameter_bytes = sizeof(nibblas::portable::Params);

__global__ void __launch_bounds__(nibblas::portable::kThreads, nibblas::Config::kCtasPerSm)
    nibblas_portable_grouped_mm(const __grid_constant__ nibblas::portable::Params params) {
  extern __shared__ __align__(16) nibblas::u8 shared[];
  nibblas::portable::run(params, reinterpret_cast<nibblas::portable::Stage*>(shared));
}
}
