// The ring of stages, and who may touch a slot when.
//
//   full[slot]    the weights warp (its copies), the token warps        -> the multiplying warps
//   empty[slot]   the multiplying warps                                 -> the loading warps
#pragma once

#include "../common/ptx/address.cuh"
#include "../common/ptx/mbarrier.cuh"
#include "stage.cuh"

namespace nibblas::portable {

// Warps by role, in this order.
constexpr i32 kMultiplyWarps = Config::kWarps;
constexpr i32 kFirstWeightWarp = kMultiplyWarps;
constexpr i32 kFirstTokenWarp = kFirstWeightWarp + Config::kWeightWarps;
constexpr i32 kAllWarps = kFirstTokenWarp + Config::kTokenWarps;

// TMA's copies need one arrival of each warp, which says how many bytes to expect. Other copies
// arrive by themselves, a lane at a time; unaligned rows are stored by the lanes as well. Whatever
// lanes store or read, each of them arrives for itself.
constexpr u32 kWeightArrivals = Config::kTensorCopies ? Config::kWeightWarps
                                : Config::kAligned    ? kWarpLanes
                                                      : 2 * kWarpLanes;
static_assert(Config::kTensorCopies || Config::kWeightWarps == 1);
constexpr u32 kFullArrivals = kWeightArrivals + kWarpLanes * Config::kTokenWarps;
constexpr u32 kEmptyArrivals = kWarpLanes * kMultiplyWarps;

struct Ring {
  Stage stages[Config::kStages];
  u64 full[Config::kStages];
  u64 empty[Config::kStages];
  Run run;  // of the CTA
};

// A role's place in the ring; it advances with the role's cursor.
class RingPlace {
 public:
  __device__ explicit RingPlace(Ring& ring)
      : ring_(ring), full_(ptx::shared_address(ring.full)), empty_(full_ + sizeof(ring.full)) {}

  __device__ Stage& stage() const { return ring_.stages[slot_]; }
  __device__ u32 full() const { return full_ + slot_ * sizeof(u64); }
  __device__ u32 empty() const { return empty_ + slot_ * sizeof(u64); }

  __device__ void wait_until_full() const { wait(full(), round_); }
  // The first round finds every slot empty: the phase before a barrier's first counts as complete.
  __device__ void wait_until_empty() const { wait(empty(), round_ ^ 1); }

  // The lane's arrival, when it has written or read the stage.
  __device__ void publish() const { ptx::mbarrier_arrive(full()); }
  __device__ void release() const { ptx::mbarrier_arrive(empty()); }

  __device__ void advance() {
    if (++slot_ < Config::kStages) return;
    slot_ = 0;
    round_ ^= 1;
  }

 private:
  static __device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    while (!ptx::mbarrier_try_wait(barrier, parity)) {
    }
  }

  Ring& ring_;
  u32 full_;
  u32 empty_;
  i32 slot_ = 0;
  u32 round_ = 0;
};

// By one thread, before a barrier of the CTA.
static __device__ __forceinline__ void init_ring(Ring& ring) {
  for (i32 slot = 0; slot < Config::kStages; ++slot) {
    ptx::mbarrier_init(ptx::shared_address(&ring.full[slot]), kFullArrivals);
    ptx::mbarrier_init(ptx::shared_address(&ring.empty[slot]), kEmptyArrivals);
  }
}

}  // namespace nibblas::portable
