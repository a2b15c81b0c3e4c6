// NVFP4 grouped GEMM for every NVIDIA GPU since Ampere: the few-tokens and fall-back kernel.
//
//   persistent CTAs, each a run of (group, sets of 16 weight rows) found from offs by itself
//
//   weights warps  global --cp.async or TMA--> ring of    --> multiplying warps, 1 or 2 sets each:
//   token warps    global --> prepared ----->  kStages        decode in registers, mma.sync
//                    ^                         stages         m16n8k16, fp32 sums, epilogue
//                    |    empty[slot]: kEmptyArrivals (ring.cuh)     |
//                    +-----------------------------------------------+
//                         full[slot]: kFullArrivals and TMA's bytes
//
//   Every role walks the same path of stages with a cursor of its own, across sets, groups and
//   blocks of tokens, so that the loading warps run up to kStages stages ahead.
//
// Accumulation: a row's sum over K is one chain of MMAs in an order that depends on K alone, so a
// token's result does not depend on its group's size, on other groups, or on the grid.
#include "../common/ptx/grid.cuh"
#include "epilogue.cuh"
#include "ring.cuh"
#include "weights_aligned.cuh"
#include "weights_any.cuh"
#include "weights_tensor.cuh"

namespace nibblas::portable {

static_assert(Config::kStages >= 2, "a stage is filled while another is read");
static_assert(sizeof(Ring) == Config::kSharedBytes, "the host's shared-memory map differs");
static_assert(kAllWarps * kWarpLanes == Config::kThreads, "the host launches another block");

#if NIBBLAS_CONFIG_TENSOR_COPIES
static __device__ void load_weights(const Params& p, const Run& run, Ring& ring) {
  const TensorWeights weights(p, static_cast<i32>(threadIdx.x) / kWarpLanes - kFirstWeightWarp);
  RingPlace place(ring);
  for (Cursor at(p, run); !at.done(); at.advance(), place.advance()) {
    place.wait_until_empty();
    weights.load(at, place.stage(), place.full());
  }
}
#else
#if NIBBLAS_CONFIG_ALIGNED
using Weights = AlignedWeights;
#else
using Weights = AnyWeights;
#endif

static __device__ void load_weights(const Params& p, const Run& run, Ring& ring) {
  Weights weights(p);
  RingPlace place(ring);
  for (Cursor at(p, run); !at.done(); at.advance(), place.advance()) {
    place.wait_until_empty();
    weights.load(at, place.stage());
    if constexpr (!Config::kAligned) ptx::mbarrier_arrive(place.full());  // for ordinary stores
    ptx::cp_async_mbarrier_arrive(place.full());
  }
  ptx::cp_async_wait_all();
}
#endif

static __device__ void load_tokens(const Params& p, const Run& run, Ring& ring) {
  Tokens tokens(p, run, static_cast<i32>(threadIdx.x) / kWarpLanes - kFirstTokenWarp);
  RingPlace place(ring);
  const auto prepare = [&](const RawBatch& raw) {
    if (raw.batch == 0) place.wait_until_empty();
    tokens.prepare(raw, place.stage());
    if (!raw.is_last) return;
    place.publish();
    place.advance();
  };
  RawBatch raw[kBatchesAhead];
#pragma unroll
  for (RawBatch& batch : raw) tokens.read_next(batch);
  while (true) {
#pragma unroll
    for (RawBatch& batch : raw) {
      if (batch.batch < 0) return;
      prepare(batch);
      tokens.read_next(batch);
    }
  }
}

// A warp's first kSets sets of weight rows with one block of tokens, over all of K.
template <i32 kSets, i32 kTiles>
static __device__ __forceinline__ void multiply_block(const Params& p, const Cursor& at,
                                                      const Multiplier& multiplier,
                                                      RingPlace& place) {
  Sums<kTiles> sums[kSets]{};
  const Factors<kSets> factors = load_factors<kSets>(p, at);
  const i32 k_end = static_cast<i32>(p.k);
#pragma unroll 1
  for (i32 k = 0; k < k_end; k += Config::kStageK, place.advance()) {
    place.wait_until_full();
    multiplier.add<kSets, kTiles>(place.stage(), sums);
    place.release();
  }
  write_outputs<kSets, kTiles>(p, at, factors, sums);
}

// For a warp without a set.
static __device__ __forceinline__ void skip_block(const Params& p, RingPlace& place) {
  for (i32 k = 0; k < p.k; k += Config::kStageK, place.advance()) {
    place.wait_until_full();
    place.release();
  }
}

// Token tiles are taken in powers of two, so that each count is straight-line code.
template <i32 kSets>
static __device__ __forceinline__ void multiply_sets(const Params& p, const Cursor& at,
                                                     const Multiplier& multiplier,
                                                     RingPlace& place) {
  constexpr i32 kTokenTiles = Config::kTokens / 8;
  const i32 tokens = at.tokens();
  if (kTokenTiles <= 2 && tokens <= 8) {
    multiply_block<kSets, 1>(p, at, multiplier, place);
  } else if (kTokenTiles <= 2 || tokens <= 16) {
    multiply_block<kSets, 2>(p, at, multiplier, place);
  } else if (tokens <= 32) {
    multiply_block<kSets, 4>(p, at, multiplier, place);
  } else {
    multiply_block<kSets, kTokenTiles>(p, at, multiplier, place);
  }
}

static __device__ void multiply(const Params& p, const Run& run, Ring& ring) {
  static_assert(Config::kSetsPerWarp <= 2, "one call for each count of sets");
  const i32 warp = static_cast<i32>(threadIdx.x) / kWarpLanes;
  const Multiplier multiplier(p);
  RingPlace place(ring);
  for (Cursor at(p, run); !at.done(); at.advance_block()) {
    if (!at.has_set(warp)) {
      skip_block(p, place);
    } else if (Config::kSetsPerWarp == 1 || !at.has_set(warp + Config::kWarps)) {
      multiply_sets<1>(p, at, multiplier, place);
    } else {
      multiply_sets<Config::kSetsPerWarp>(p, at, multiplier, place);
    }
  }
}

// The CTA's run, by a whole warp. A programmatic launch looks for it while the launch before still
// runs, which may be about to write offs: where the run found then begins is prefetched, right or
// wrong, and it is kept if offs is the same when that launch has ended.
static __device__ __forceinline__ Run find_run(const Params& p) {
#pragma unroll 1
  for (bool is_hint = Config::kProgrammatic;; is_hint = false) {
    const RunSearch search(p, static_cast<i32>(blockIdx.x), static_cast<i32>(gridDim.x));
    if (!is_hint) return search.run();
#if NIBBLAS_CONFIG_TENSOR_COPIES
    const Cursor at(p, search.run());
    if (!at.done()) {
      if (ptx::elect_sync()) prefetch_weights(p, at);
      prefetch_tokens(p, at);
    }
#endif
    ptx::griddepcontrol_wait();
    if (search.holds()) return search.run();
  }
}

static __device__ __forceinline__ void run(const Params& p, Ring& ring) {
  const i32 warp = static_cast<i32>(threadIdx.x) / kWarpLanes;
  if constexpr (Config::kProgrammatic) ptx::griddepcontrol_launch_dependents();
  if (threadIdx.x == kFirstTokenWarp * kWarpLanes) {
    init_ring(ring);
    if constexpr (Config::kTensorCopies) ptx::fence_mbarrier_init();
  }
#if NIBBLAS_CONFIG_TENSOR_COPIES
  if (threadIdx.x == 0) prefetch_maps(p);
#endif
  if (warp == kFirstWeightWarp) {
    const Run found = find_run(p);
    if (threadIdx.x % kWarpLanes == 0) ring.run = found;
  } else if constexpr (Config::kProgrammatic) {
    // For what launches before have written, and before anything is written over what they read.
    ptx::griddepcontrol_wait();
  }
  __syncthreads();
  const Run work = ring.run;
  if (warp < kMultiplyWarps) {
    multiply(p, work, ring);
  } else if (warp < kFirstTokenWarp) {
    load_weights(p, work, ring);
  } else {
    load_tokens(p, work, ring);
  }
}

}  // namespace nibblas::portable

extern "C" {

// Compared by the host with its own sizes before the first launch.
__constant__ nibblas::u64 nibblas_shared_bytes = nibblas::Config::kSharedBytes;
__constant__ nibblas::u64 nibblas_parameter_bytes = sizeof(nibblas::portable::Params);

__global__ void __launch_bounds__(nibblas::Config::kThreads, nibblas::Config::kCtasPerSm)
    nibblas_portable_grouped_mm(const __grid_constant__ nibblas::portable::Params params) {
  extern __shared__ __align__(1024) nibblas::u8 shared[];
  nibblas::portable::run(params, *reinterpret_cast<nibblas::portable::Ring*>(shared));
}
}
