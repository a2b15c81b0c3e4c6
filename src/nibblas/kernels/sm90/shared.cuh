// Shared memory: a ring of stages of 128 values along K, and its barriers.
//
//   tokens   [64 values along K][token] rows of 128 bytes, 128-byte swizzle
//   weights  [unit][4 quarters][16 lines] 64 bytes of codes
//   scales   [unit] blocked: [64 values along K][16 lines][4 quarters] 4 bytes
//                   linear:  [4 quarters][16 lines] 16 bytes, those of 256 values
//
//   full[slot]   the CTA's own copies, the step they belong to and, of a cluster, the other CTA's
//                tokens
//   empty[slot]  the multiplying warps of all CTAs of the cluster
//
// A unit is 64 weight rows, half h of an atom of 128, whose blocked scales lie together: lines
// 16h..16h+15 of each quarter of 32. Warp q of a warpgroup has those of quarter q.
#pragma once

#include "../common/block_scheduler.cuh"
#include "../common/ptx/address.cuh"
#include "../common/ptx/cluster.cuh"
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
constexpr i32 kMultiplyGroups = Config::kMultiplyGroups;  // warpgroups, a unit each
constexpr i32 kMultiplyWarps = kMultiplyGroups * kGroupWarps;
constexpr i32 kProducerWarp = kMultiplyWarps;  // of a warpgroup whose others are idle
constexpr i32 kAllWarps = kMultiplyWarps + kGroupWarps;

constexpr i32 kTokenRowBytes = 128;
constexpr u32 kCodesRowBytes = kStageK / 2;
constexpr i32 kCodesBytes = kUnitRows * kStageK / 2;
constexpr i32 kBlockedScalesBytes = kUnitRows * kStageK / 16;
constexpr i32 kLinearScalesBytes = kUnitRows * 16;

struct alignas(1024) Stage {
  u8 tokens[kHalves * kMaxTokens * kTokenRowBytes];
  u8 weights[kMultiplyGroups][kCodesBytes];
  u8 scales[kMultiplyGroups][kLinearScalesBytes];
};

// What a stage belongs to.
struct alignas(16) Step {
  i64 token_row;  // of x and out
  i32 group;
  i32 first_unit;  // of the cluster
  i32 units;       // of the cluster
  i32 cta_units;   // of each CTA: those that follow its first
  i32 tokens;
  i32 width_index;
  i32 width;  // tokens that are copied and multiplied; 0: there are no more steps
};

struct Shared {
  Stage stages[Config::kStages];
  i32 ends[kMaxGroups];
  Step steps[Config::kStages];
  u64 full[Config::kStages];
  u64 empty[Config::kStages];
};

static __device__ __forceinline__ i32 cta_rank() {
  return Config::kCluster == 1 ? 0 : static_cast<i32>(blockIdx.x) % Config::kCluster;
}

// The CTA's first unit of a step, which may be past its last.
static __device__ __forceinline__ i32 first_unit_of_cta(const Step& at) {
  return at.first_unit + at.cta_units * cta_rank();
}

static __device__ __forceinline__ i32 units_of_cta(const Step& at) {
  return max(0, min(at.units - at.cta_units * cta_rank(), at.cta_units));
}

static __device__ __forceinline__ i32 warpgroup() {
  return static_cast<i32>(threadIdx.x) / (kGroupWarps * kWarpLanes);
}

// A role's place in the ring; every role walks the same stages.
class RingPlace {
 public:
  __device__ explicit RingPlace(Shared& shared)
      : shared_(shared),
        stages_(ptx::shared_address(shared.stages)),
        full_(ptx::shared_address(shared.full)),
        empty_there_(full_ + kEmptyAfterFull),
        arrives_(threadIdx.x % kWarpLanes < Config::kCluster) {
    if constexpr (Config::kCluster > 1) {
      empty_there_ = ptx::mapa(empty_there_, threadIdx.x % Config::kCluster);
    }
  }

  __device__ Step& step() const { return shared_.steps[slot_]; }
  __device__ u32 stage() const { return stages_ + slot_ * static_cast<u32>(sizeof(Stage)); }
  __device__ u32 stage_before() const {
    return stages_ + slot_before() * static_cast<u32>(sizeof(Stage));
  }
  __device__ u32 full() const { return full_ + slot_ * kBarrierBytes; }

  __device__ void wait_until_full() const { wait(full(), round_); }
  // The first round finds every slot empty: the phase before a barrier's first counts as complete.
  __device__ void wait_until_empty() const { wait(full() + kEmptyAfterFull, round_ ^ 1); }

  // The warp has read the stage before, where `condition` holds: one arrival at every CTA that
  // copies into it. Without a branch, which would end ptxas's pipeline of wgmma.
  __device__ __forceinline__ void release_before_if(bool condition) const {
    ptx::mbarrier_arrive_cluster_if(condition && arrives_,
                                    empty_there_ + slot_before() * kBarrierBytes);
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

  static __device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    while (!ptx::mbarrier_try_wait(barrier, parity)) {
    }
  }

  Shared& shared_;
  u32 stages_;
  u32 full_;
  u32 empty_there_;  // the lane's: of a CTA of the cluster
  bool arrives_;
  u32 slot_ = 0;
  u32 round_ = 0;
};

// By one thread, before a barrier of the cluster.
static __device__ __forceinline__ void init_barriers(Shared& shared) {
  for (i32 slot = 0; slot < Config::kStages; ++slot) {
    ptx::mbarrier_init(ptx::shared_address(&shared.full[slot]), 1);
    ptx::mbarrier_init(ptx::shared_address(&shared.empty[slot]), kMultiplyWarps * Config::kCluster);
  }
}

}  // namespace nibblas::sm90
