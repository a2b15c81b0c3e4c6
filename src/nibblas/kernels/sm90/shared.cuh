// Shared memory: a ring of stages of 128 values along K, and its barriers.
//
//   tokens   [64 values along K][token] rows of 128 bytes, 128-byte swizzle
//   weights  [unit][64 rows] 64 bytes of codes
//   scales   blocked: [atom][64 values along K][32 lines][4 quarters] 4 bytes
//            linear:  [unit][64 rows] 16 bytes, those of 256 values
//
//   full[slot]    its copies
//   empty[slot]   the multiplying warps
//   told[turn]    the producer, which has written steps[turn]; ahead of the copies for it
//   finished[turn]  the multiplying warps, which have taken their part in it
//
// A unit is 64 weight rows, half of an atom of 128, whose blocked scales lie together. Warp q of a
// warpgroup has rows 16q to 16q + 15 of its unit.
#pragma once

#include "../common/block_scheduler.cuh"
#include "../common/ptx/address.cuh"
#include "../common/ptx/mbarrier.cuh"
#include "params.cuh"

namespace nibblas::sm90 {

constexpr i32 kStageK = 128;
constexpr i32 kHalfK = 64;  // what a row of 128 bytes holds of the tokens
constexpr i32 kHalves = kStageK / kHalfK;
constexpr i32 kMaxGroups = 1024;

constexpr i32 kMaxTokens = kWidths[kWidthCount - 1];
constexpr i32 kUnitRows = 64;

constexpr i32 kAtomUnits = 2;

constexpr i32 kGroupWarps = 4;
constexpr i32 kGroupThreads = kGroupWarps * kWarpLanes;
constexpr i32 kMultiplyGroups = Config::kMultiplyGroups;  // warpgroups, a unit each
constexpr i32 kMultiplyWarps = kMultiplyGroups * kGroupWarps;
constexpr i32 kProducerWarp = kMultiplyWarps;   // of a warpgroup whose others are idle
constexpr i32 kTurns = 2;                       // steps that are known ahead
constexpr i32 kReaderWarp = kProducerWarp + 1;  // of offs
constexpr i32 kAllWarps = kMultiplyWarps + kGroupWarps;

constexpr i32 kTokenRowBytes = 128;
constexpr u32 kCodesRowBytes = kStageK / 2;
constexpr i32 kCodesBytes = kUnitRows * kStageK / 2;
constexpr i32 kBlockedScalesBytes = static_cast<i32>(kAtomRows) * kStageK / 16;  // of an atom
constexpr i32 kLinearScalesBytes = kUnitRows * 16;

struct alignas(1024) Stage {
  u8 tokens[kHalves * kMaxTokens * kTokenRowBytes];
  u8 weights[kMultiplyGroups][kCodesBytes];
  u8 scales[kMultiplyGroups][kLinearScalesBytes];
};

// A tile of tokens with a block of weight rows.
struct alignas(16) Step {
  i32 token_row;  // of x and out
  i32 group;
  i32 first_unit;
  i32 units;
  i32 tokens;
  i32 width_index;
  i32 width;  // tokens that are copied and multiplied; 0: there are no more steps
};

struct Shared {
  Stage stages[Config::kStages];
  i32 ends[kMaxGroups];
  Step steps[kTurns];
  u64 full[Config::kStages];
  u64 empty[Config::kStages];
  u64 told[kTurns];
  u64 finished[kTurns];
  u32 offs_differ;
};

// Numbers of barriers: 0 is __syncthreads's, then one of each multiplying warpgroup.
constexpr i32 kEndsBarrier = 1 + kMultiplyGroups;

static __device__ __forceinline__ i32 warp_of_group() {
  return static_cast<i32>(threadIdx.x) / kWarpLanes % kGroupWarps;
}

static __device__ __forceinline__ i32 warpgroup() {
  return static_cast<i32>(threadIdx.x) / kGroupThreads;
}

static __device__ __forceinline__ i32 lane_of_warp() {
  return static_cast<i32>(threadIdx.x) % kWarpLanes;
}

static __device__ __forceinline__ void wait_for_phase(u32 barrier, u32 parity) {
  while (!ptx::mbarrier_try_wait(barrier, parity)) {
  }
}

// A role's place in the ring of stages; every role walks the same ones.
class RingPlace {
 public:
  __device__ explicit RingPlace(Shared& shared)
      : stages_(ptx::shared_address(shared.stages)),
        full_(ptx::shared_address(shared.full)),
        arrives_(lane_of_warp() == 0) {}

  __device__ u32 stage() const { return stages_ + slot_ * static_cast<u32>(sizeof(Stage)); }
  __device__ u32 stage_before() const {
    return stages_ + slot_before() * static_cast<u32>(sizeof(Stage));
  }
  __device__ u32 full() const { return full_ + slot_ * kBarrierBytes; }

  __device__ void wait_until_full() const { wait_for_phase(full(), round_); }
  // The first round finds every slot empty: the phase before a barrier's first counts as complete.
  __device__ void wait_until_empty() const { wait_for_phase(full() + kEmptyAfterFull, round_ ^ 1); }

  // The warp has read the stage before, where `condition` holds. Without a branch, which would end
  // ptxas's pipeline of wgmma.
  __device__ __forceinline__ void release_before_if(bool condition) const {
    ptx::mbarrier_arrive_if(condition && arrives_,
                            full_ + kEmptyAfterFull + slot_before() * kBarrierBytes);
  }

  __device__ void advance() {
    if (++slot_ < Config::kStages) return;
    slot_ = 0;
    round_ ^= 1;
  }

 private:
  static constexpr u32 kBarrierBytes = sizeof(u64);
  static constexpr u32 kEmptyAfterFull = sizeof(Shared::full);

  __device__ __forceinline__ u32 slot_before() const {
    return slot_ == 0 ? Config::kStages - 1 : slot_ - 1;
  }

  u32 stages_;
  u32 full_;
  bool arrives_;
  u32 slot_ = 0;
  u32 round_ = 0;
};

// A role's place in the row of steps.
class StepPlace {
 public:
  __device__ explicit StepPlace(Shared& shared) : shared_(shared) {}

  // By one thread of the producer.
  __device__ __forceinline__ void tell(const Step& step) {
    wait_for_phase(barrier(shared_.finished), round() ^ 1);
    shared_.steps[turn()] = step;
    ptx::mbarrier_arrive(barrier(shared_.told));
    ++count_;
  }

  // By a multiplying warp.
  __device__ __forceinline__ const Step& hear() const {
    wait_for_phase(barrier(shared_.told), round());
    return shared_.steps[turn()];
  }

  // The warp needs the step no longer.
  __device__ __forceinline__ void finish() {
    __syncwarp();
    if (lane_of_warp() == 0) ptx::mbarrier_arrive(barrier(shared_.finished));
    ++count_;
  }

 private:
  __device__ __forceinline__ u32 turn() const { return count_ % kTurns; }
  __device__ __forceinline__ u32 round() const { return count_ / kTurns % 2; }
  __device__ __forceinline__ u32 barrier(u64 (&barriers)[kTurns]) const {
    return ptx::shared_address(&barriers[turn()]);
  }

  Shared& shared_;
  u32 count_ = 0;
};

// By one thread, before the CTA's barrier.
static __device__ __forceinline__ void init_barriers(Shared& shared) {
  for (i32 slot = 0; slot < Config::kStages; ++slot) {
    ptx::mbarrier_init(ptx::shared_address(&shared.full[slot]), 1);
    ptx::mbarrier_init(ptx::shared_address(&shared.empty[slot]), kMultiplyWarps);
  }
  for (i32 turn = 0; turn < kTurns; ++turn) {
    ptx::mbarrier_init(ptx::shared_address(&shared.told[turn]), 1);
    ptx::mbarrier_init(ptx::shared_address(&shared.finished[turn]), kMultiplyWarps);
  }
}

}  // namespace nibblas::sm90
