// NVFP4 grouped GEMM for Hopper: weights on wgmma's M side, decoded in registers; tokens on N.
//
//   persistent CTAs, each takes steps (walk.cuh) that its producer finds from offs by itself
//
//   producer warp ---- told[turn]: the next step ---> 2 or 3 warpgroups, a unit of 64 rows each
//     codes, scales, tokens                             ^                                    |
//       global --TMA--> ring of kStages stages          +-- finished[turn] to the producer --+
//       ^                 |
//       |                 +--> full[slot]   codes, scales --decode--> registers --+
//       |                 |                 tokens, in shared memory ------------ wgmma
//       |                 v                                                          |
//       +------------ empty[slot]           out <--cast, factors-- fp32 sums <-------+
//
// Accumulation: a row's sum over K is one chain of MMAs of 16 values in the order of K, so a
// token's result does not depend on its group's size, on other groups, or on the grid.
#include "../common/ptx/grid.cuh"
#include "copies.cuh"
#include "epilogue.cuh"

namespace nibblas::sm90 {

static_assert(Config::kStages >= 2, "a stage is filled while another is read");
static_assert(sizeof(Shared) <= Config::kSharedBytes, "the host's shared-memory map differs");
static_assert(kAllWarps * kWarpLanes == Config::kThreads, "the host launches another block");

// Registers of a thread: as many as a CTA's threads can have each at the start, then as many as a
// role needs.
static_assert(Config::kMultiplyGroups == 2 || Config::kMultiplyGroups == 3, "of these sizes");
constexpr i32 kProducerRegisters = Config::kMultiplyGroups == 2 ? 72 : 80;
constexpr i32 kMultiplierRegisters = Config::kMultiplyGroups == 2 ? 216 : 144;

// A warpgroup's unit of a step of one width.
template <i32 kTokens>
static __device__ __forceinline__ void take_unit(const Params& p, const Output& output,
                                                 Decoder& decoder, RingPlace& place) {
  Sums<kTokens> sums = {};
  multiply_unit<kTokens>(p, decoder, place, sums);
  output.write<kTokens>(sums, place.stage_before());
  place.release_before_if(true);
}

// Finds the width among kWidths[kBegin..kEnd - 1]. Not by a switch: ptxas does not follow wgmma
// through a table of jumps.
template <i32 kBegin, i32 kEnd>
static __device__ __forceinline__ void take_unit_of(const Params& p, i32 width,
                                                    const Output& output, Decoder& decoder,
                                                    RingPlace& place) {
  constexpr i32 kMiddle = (kBegin + kEnd) / 2;
  if constexpr (kEnd - kBegin == 1) {
    take_unit<kWidths[kBegin]>(p, output, decoder, place);
  } else if (width < kWidths[kMiddle]) {
    take_unit_of<kBegin, kMiddle>(p, width, output, decoder, place);
  } else {
    take_unit_of<kMiddle, kEnd>(p, width, output, decoder, place);
  }
}

// For a warpgroup without a unit.
static __device__ __forceinline__ void skip_step(const Params& p, RingPlace& place) {
  for (i32 k = 0; k < p.k; k += kStageK) {
    place.wait_until_full();
    place.advance();
    __syncwarp();
    place.release_before_if(true);
  }
}

static __device__ __forceinline__ void multiply(const Params& p, Shared& shared) {
  Decoder decoder(p);
  RingPlace place(shared);
  StepPlace turn(shared);
  while (true) {
    const Step& at = turn.hear();
    if (at.width == 0) return;
    if (warpgroup() < at.units) {
      // Before the first data: what the factors take to come is spent waiting and multiplying.
      const Output output(p, at);
      decoder.start(at);
      take_unit_of<0, kWidthCount>(p, at.width, output, decoder, place);
    } else {
      skip_step(p, place);
    }
    turn.finish();
  }
}

// All wait for the launches before this one: before anything is written over what they read, and
// for what they have written. Meanwhile the producer finds the first step.
static __device__ __forceinline__ void run(const Params& p, Shared& shared) {
  const i32 warp = static_cast<i32>(threadIdx.x) / kWarpLanes;
  ptx::griddepcontrol_launch_dependents();
  if (warp == kProducerWarp) {
    Walk walk(p, shared.ends);
    RingPlace place(shared);
    StepPlace turn(shared);
    begin(p, walk, place, turn, shared);
    ptx::setmaxnreg_dec<kProducerRegisters>();
    produce(p, walk, place, turn);
    return;
  }
  if (threadIdx.x == 0) {
    prefetch_maps(p);
    init_barriers(shared);
    ptx::fence_mbarrier_init();
  }
  if (warp == kReaderWarp) {
    compare_offs(p, shared);
  } else {
    ptx::griddepcontrol_wait();
  }
  __syncthreads();
  if (warp >= kMultiplyWarps) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
  } else {
    ptx::setmaxnreg_inc<kMultiplierRegisters>();
    multiply(p, shared);
  }
}

}  // namespace nibblas::sm90

extern "C" {

// Compared by the host with its own sizes before the first launch.
__constant__ nibblas::u64 nibblas_shared_bytes = nibblas::Config::kSharedBytes;
__constant__ nibblas::u64 nibblas_parameter_bytes = sizeof(nibblas::sm90::Params);

__global__ void __launch_bounds__(nibblas::Config::kThreads, 1)
    nibblas_sm90_grouped_mm(const __grid_constant__ nibblas::sm90::Params params) {
  extern __shared__ __align__(1024) nibblas::u8 shared[];
  nibblas::sm90::run(params, *reinterpret_cast<nibblas::sm90::Shared*>(shared));
}
}
