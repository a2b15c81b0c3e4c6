// Shared and tensor memory, and who may touch what when.
//
//   shared memory   | stage 0 | stage 1 | ... | Control |      stage = | x | w | x scales | w
//   scales | tensor memory   | sums 0 | sums 1 | scales of slot 0 | scales of slot 1 | ... |
//
//   full[slot]       producers, and the bytes of their copies    -> the MMA warp
//   empty[slot]      tcgen05.commit of every CTA of the cluster  -> the producers
//   sums_full[i]     tcgen05.commit                              -> the epilogue warps
//   sums_empty[i]    the epilogue warps                          -> the MMA warp
//
// A slot's scales have their own columns of tensor memory, so that the barriers that guard the slot
// guard them too: nothing relies on an order between an MMA and a later copy.
#pragma once

#include "../common/block_scheduler.cuh"
#include "../common/ptx/address.cuh"
#include "../common/ptx/mbarrier.cuh"
#include "params.cuh"

namespace nibblas::sm100 {

constexpr i32 kTileM = 128;
constexpr i32 kStageK = 256;
constexpr i32 kStageAtoms = kStageK / 64;  // of scales, per 128 rows
constexpr i32 kRowAtoms = Config::kTileN / 128;
constexpr u32 kRowBytes = kStageK / 2;
constexpr u32 kRowAtomBytes = kStageAtoms * static_cast<u32>(kAtomBytes);

// Warps by role, in this order. Warp w of the epilogue reads the lanes from 32 w on.
constexpr i32 kEpilogueWarps = 4;
constexpr i32 kMmaWarp = kEpilogueWarps;
constexpr i32 kFirstProducer = kMmaWarp + 1;
constexpr i32 kFirstScaleWarp = kFirstProducer + Config::kProducers;
constexpr i32 kScaleWarps = Config::kBulkScales ? 0 : 2;
constexpr i32 kAllWarps = kFirstScaleWarp + kScaleWarps;
constexpr u32 kFullArrivals = Config::kProducers + kScaleWarps;
constexpr u32 kEmptyArrivals = Config::kCluster;

struct Stage {
  u8 x[kTileM * kRowBytes];
  u8 w[Config::kTileN * kRowBytes];
  u8 x_scales[kRowAtomBytes];
  u8 w_scales[kRowAtoms * kRowAtomBytes];
};
static_assert(sizeof(Stage) % 1024 == 0, "the swizzle's pattern starts anew at every matrix");

constexpr i32 kMaxStages = 6;

struct alignas(16) Control {
  u64 full[kMaxStages];
  u64 empty[kMaxStages];
  u64 sums_full[Config::kAccumulators];
  u64 sums_empty[Config::kAccumulators];
  u32 tensor;  // what tcgen05.alloc gave
  BlockScratch<kAllWarps> scratch;

  // Of a packed product's groups, behind this: tiles of 128 tokens up to the group's end, and its
  // last row of x.
  __device__ i32* tile_end() { return reinterpret_cast<i32*>(this + 1); }
  __device__ const i32* tile_end() const { return reinterpret_cast<const i32*>(this + 1); }
  __device__ i32* row_end(const Params& p) { return tile_end() + p.group_capacity; }
  __device__ const i32* row_end(const Params& p) const { return tile_end() + p.group_capacity; }
};

// Columns of tensor memory, from the allocation's first.
constexpr u32 kScaleColumns = kAtomKBlocks;  // of 128 rows and 64 values along K
constexpr u32 kXScaleColumns = kStageAtoms * kScaleColumns;
constexpr u32 kSlotColumns = kXScaleColumns * (1 + kRowAtoms);
constexpr u32 kSumColumns = Config::kAccumulators * Config::kTileN;

static __device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  while (!ptx::mbarrier_try_wait(barrier, parity)) {
  }
}

// A role's place among things that are used in turn: it advances with the role's work.
class Turn {
 public:
  __device__ explicit Turn(i32 count) : count_(count) {}
  __device__ i32 slot() const { return slot_; }
  __device__ u32 round() const { return round_; }
  __device__ void advance() {
    if (++slot_ < count_) return;
    slot_ = 0;
    round_ ^= 1;
  }

 private:
  i32 count_;
  i32 slot_ = 0;
  u32 round_ = 0;
};

// A role's place in the ring of stages.
class RingPlace {
 public:
  __device__ RingPlace(const Params& p, u8* shared)
      : turn_(p.stages),
        stages_(reinterpret_cast<Stage*>(shared)),
        control_(*reinterpret_cast<Control*>(stages_ + p.stages)) {}

  __device__ i32 slot() const { return turn_.slot(); }
  __device__ Stage& stage() const { return stages_[turn_.slot()]; }
  __device__ u32 full() const { return ptx::shared_address(&control_.full[turn_.slot()]); }
  __device__ u32 empty() const { return ptx::shared_address(&control_.empty[turn_.slot()]); }
  __device__ void wait_until_full() const { wait(full(), turn_.round()); }
  // The first round finds every slot empty: the phase before a barrier's first counts as complete.
  __device__ void wait_until_empty() const { wait(empty(), turn_.round() ^ 1); }
  __device__ void advance() { turn_.advance(); }

 private:
  Turn turn_;
  Stage* stages_;
  Control& control_;
};

}  // namespace nibblas::sm100
