// What the roles of swapped.cu share: CTAs of a pair, columns of tensor memory, sets of sums.
//
//   tensor memory   | sums 0 -> ...    ... <- sums 1 | scales of slot 0 | scales of slot 1 | ... |
//
// Sums have a column for each token that the item has, rounded up to 16. One set begins at the
// first column, the other ends before the scales: two items are there together where their tokens
// allow it, whatever the launch's largest tile.
//
// Scales have p.scale_slots places, fewer than the ring has stages, taken in turn: a place is
// written again when the stage that had it is multiplied, which its slot's `empty` says.
#pragma once

#include "../common/ptx/cluster.cuh"
#include "../common/ptx/tcgen05.cuh"
#include "items.cuh"

namespace nibblas::sm100 {

constexpr i32 kCtas = Config::kCluster;  // one, or a pair that multiplies together
constexpr u16 kBothCtas = (1 << kCtas) - 1;
constexpr i32 kMaxRowAtoms = 2;  // of tokens: 256 rows
constexpr u32 kWScaleColumns = kStageAtoms * kScaleColumns;
constexpr u32 kSlotColumns = kWScaleColumns * (1 + kMaxRowAtoms);

static_assert(Config::kTileN == kTileM, "weights on the M side, 128 rows of a CTA");
static_assert(kCtas <= 2 && Config::kAccumulators == 2);

// The CTA's place in its pair. The even one's MMA warp multiplies for both.
static __device__ __forceinline__ i32 rank_in_pair() { return blockIdx.x % kCtas; }

static __device__ __forceinline__ u32 sum_columns(const Params& p) {
  return p.tensor_columns - p.scale_slots * kSlotColumns;
}

// First column of a set of sums.
static __device__ __forceinline__ u32 sums_begin(const Params& p, i32 set, i32 tokens) {
  return set == 0 ? 0 : sum_columns(p) - tokens;
}

// Units of 128 rows in which an item's token scales come.
static __device__ __forceinline__ i32 row_atoms_of(const Item& item) {
  return item.rows > kAtomRows ? kMaxRowAtoms : 1;
}

// An arrival, where `condition` holds, at the even CTA's barrier of that place. It needs no order
// of ordinary writes beyond the CTA: what it announces is in the CTA's own shared or tensor memory,
// where only the tensor core touches it, and fences of those have come before.
static __device__ __forceinline__ void arrive_at_leader_if(bool condition, u32 barrier) {
  if constexpr (kCtas == 1) {
    if (condition) ptx::mbarrier_arrive(barrier);
  } else {
    ptx::mbarrier_arrive_cluster_if(condition, ptx::mapa(barrier, 0));
  }
}

// An arrival at that barrier of both CTAs when what has been issued is complete.
static __device__ __forceinline__ void commit_to_pair(u32 barrier) {
  if constexpr (kCtas == 1) {
    ptx::tcgen05_commit(barrier);
  } else {
    ptx::tcgen05_commit_multicast<kCtas>(barrier, kBothCtas);
  }
}

}  // namespace nibblas::sm100
