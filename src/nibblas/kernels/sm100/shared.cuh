// Shared memory: a ring of stages, barriers, what the epilogue sorts its outputs in, the table of
// groups.
//
//   | stage 0 | stage 1 | ... | Control | staging | table |      stage = | x | w | scales of both |
//
//   full[slot]       producers, and the bytes of their copies    -> the MMA warp
//   empty[slot]      tcgen05.commit                              -> the producers
//   sums_full[i]     tcgen05.commit                              -> the epilogue warps
//   sums_empty[i]    the epilogue warps                          -> the MMA warp
#pragma once

#include "../common/block_scheduler.cuh"
#include "../common/ptx/address.cuh"
#include "../common/ptx/mbarrier.cuh"
#include "params.cuh"

namespace nibblas::sm100 {

constexpr i32 kTileM = 128;  // rows on the tensor core's M side, of one CTA
constexpr i32 kStageK = 256;
constexpr i32 kStageAtoms = kStageK / 64;  // of scales, per 128 rows
constexpr i32 kRowAtoms = Config::kTileN / 128;
constexpr u32 kRowBytes = kStageK / 2;
constexpr u32 kRowAtomBytes = kStageAtoms * static_cast<u32>(kAtomBytes);

// Warps by role, in this order. Warp w of the epilogue reads the lanes from 32 (w % 4) on.
constexpr i32 kEpilogueWarps = Config::kSwapped ? 8 : 4;
constexpr i32 kMmaWarp = kEpilogueWarps;
constexpr i32 kFirstProducer = kMmaWarp + 1;
constexpr i32 kFirstScaleWarp = kFirstProducer + Config::kProducers;
constexpr i32 kScaleWarps = Config::kBulkScales ? 0 : 2;
constexpr i32 kAllWarps = kFirstScaleWarp + kScaleWarps;
constexpr u32 kFullArrivals = Config::kProducers + kScaleWarps;

// Tokens of an item at most.
static __device__ __forceinline__ i32 tile_tokens(const Params& p) {
  return Config::kSwapped ? p.tile_tokens : kTileM;
}

// Rows of their codes in a CTA: with weights on the M side, each CTA of a pair has a half.
static __device__ __forceinline__ i32 x_rows(const Params& p) {
  return Config::kSwapped ? p.tile_tokens / Config::kCluster : kTileM;
}

// Their scales, in units of 128 rows; each CTA has them all.
static __device__ __forceinline__ i32 x_row_atoms(const Params& p) {
  return Config::kSwapped ? static_cast<i32>(ceil_div(p.tile_tokens, kAtomRows)) : 1;
}

constexpr u32 kWBytes = Config::kTileN * kRowBytes;
static __device__ __forceinline__ constexpr u32 stage_bytes_of(i32 x_rows, i32 x_row_atoms) {
  return x_rows * kRowBytes + kWBytes + (x_row_atoms + kRowAtoms) * kRowAtomBytes;
}
static __device__ __forceinline__ u32 stage_bytes(const Params& p) {
  return stage_bytes_of(x_rows(p), x_row_atoms(p));
}

// What a slot of the ring holds. Codes begin where the swizzle's pattern does, at a multiple of
// 1024: x has a multiple of 8 rows.
struct Stage {
  u8* x;         // [x_rows][kRowBytes]
  u8* w;         // [kTileN][kRowBytes]
  u8* x_scales;  // [x_row_atoms][kStageAtoms] atoms
  u8* w_scales;  // [kRowAtoms][kStageAtoms] atoms
};

constexpr i32 kMaxStages = Config::kSwapped ? 8 : 6;
constexpr u32 kWarpStagingBytes = Config::kSwapped ? 2048 : 0;  // of an epilogue warp
constexpr u32 kStagingBytes = kEpilogueWarps * kWarpStagingBytes;

struct alignas(16) Control {
  u64 full[kMaxStages];
  u64 empty[kMaxStages];
  u64 sums_full[Config::kAccumulators];
  u64 sums_empty[Config::kAccumulators];
  u32 tensor;  // what tcgen05.alloc gave
  BlockScratch<kAllWarps> scratch;

  // Behind this, kWarpStagingBytes for each epilogue warp.
  __device__ u8* staging() { return reinterpret_cast<u8*>(this + 1); }

  // Behind that, of a packed product's groups: tiles of tokens up to the group's end, and its last
  // row of x; where a tile is not 128 tokens, 128 rows of blocked scales before it too.
  __device__ i32* tile_end() { return reinterpret_cast<i32*>(staging() + kStagingBytes); }
  __device__ const i32* tile_end() const { return const_cast<Control*>(this)->tile_end(); }
  __device__ i32* row_end(const Params& p) { return tile_end() + p.group_capacity; }
  __device__ const i32* row_end(const Params& p) const { return tile_end() + p.group_capacity; }
  __device__ i32* atoms_before(const Params& p) { return row_end(p) + p.group_capacity; }
  __device__ const i32* atoms_before(const Params& p) const {
    return row_end(p) + p.group_capacity;
  }
};

static __device__ __forceinline__ Control& control_of(const Params& p, u8* shared) {
  return *reinterpret_cast<Control*>(shared + p.stages * stage_bytes(p));
}

// Columns of tensor memory for the scales of 128 rows and 64 values along K.
constexpr u32 kScaleColumns = kAtomKBlocks;

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
      : p_(p), turn_(p.stages), stages_(shared), control_(control_of(p, shared)) {}

  __device__ i32 slot() const { return turn_.slot(); }
  __device__ Stage stage() const {
    u8* x = stages_ + turn_.slot() * stage_bytes(p_);
    u8* w = x + x_rows(p_) * kRowBytes;
    u8* x_scales = w + kWBytes;
    return {x, w, x_scales, x_scales + x_row_atoms(p_) * kRowAtomBytes};
  }
  __device__ u32 full() const { return ptx::shared_address(&control_.full[turn_.slot()]); }
  __device__ u32 empty() const { return ptx::shared_address(&control_.empty[turn_.slot()]); }
  __device__ void wait_until_full() const { wait(full(), turn_.round()); }
  // The first round finds every slot empty: the phase before a barrier's first counts as complete.
  __device__ void wait_until_empty() const { wait(empty(), turn_.round() ^ 1); }
  // What the round brought has been multiplied.
  __device__ void wait_until_used() const { wait(empty(), turn_.round()); }
  __device__ void advance() { turn_.advance(); }

 private:
  const Params& p_;
  Turn turn_;
  u8* stages_;
  Control& control_;
};

}  // namespace nibblas::sm100
