// How the work is cut: weight rows into sets, a group's sets into tiles, all tiles into runs.
//
// A set is the 16 weight rows that a warp takes: rows 4s..4s+3 of each 32-row quarter of 128 rows,
// line 4r + q being row r of quarter q: exactly those whose blocked scales share 16-byte lines. A
// tile gives each warp at most one set. It takes a CTA nearly the same time however few sets it
// has, so that a CTA's time is its number of tiles; what they hold is chosen to make the most
// tiles of a CTA few.
#pragma once

#include "../common/block_scheduler.cuh"
#include "config.h"
#include "params.cuh"

namespace nibblas::portable {

constexpr i32 kSetRows = 16;
constexpr i32 kSetsPerAtom = static_cast<i32>(kAtomRows) / kSetRows;
// Sets that one copy of TMA's brings.
constexpr i32 kBoxSets = 4;
static_assert(!Config::kTensorCopies || Config::kWarps % kBoxSets == 0, "tiles are whole boxes");

// Sets of a group that hold rows; the last 128 rows may be cut short.
static __device__ __forceinline__ i32 sets_of(i64 n) {
  return static_cast<i32>(n / kAtomRows * kSetsPerAtom +
                          min_of(ceil_div(n % kAtomRows, 4), kSetsPerAtom));
}

// Row within the group of a set's line (0..15).
static __device__ __forceinline__ i64 set_row(i32 set, i32 line) {
  return static_cast<i64>(set / kSetsPerAtom) * kAtomRows + set % kSetsPerAtom * 4 + line / 4 +
         line % 4 * 32;
}

// Sets of a tile, a multiple of kBoxSets where boxes are copied, if as many groups as `groups` are
// all that is to do. Lane i looks at i + 1 tiles for the CTA that has the most: as many tiles of a
// group as that allows, so that they are small.
static __device__ __forceinline__ i32 tile_sets(i32 sets, i32 groups) {
  constexpr i32 kGrain = Config::kTensorCopies ? kBoxSets : 1;
  constexpr i32 kMost = Config::kWarps;
  constexpr i32 kTurn = Config::kWarps / 2;  // what a tile costs whatever it holds, in sets
  const i32 rounds = static_cast<i32>(threadIdx.x) % kWarpLanes + 1;
  const i32 tiles = max(rounds * static_cast<i32>(gridDim.x) / groups, 1);
  const i32 size = static_cast<i32>((static_cast<u32>(sets) + tiles - 1) / tiles);
  const i32 whole = (min(size, kMost + 1) + kGrain - 1) / kGrain * kGrain;
  // Sizes are below 2^8; those that do not fit come last.
  const u32 cost = whole <= kMost ? static_cast<u32>(rounds * (whole + kTurn)) : 0xFFFFFF;
  const u32 best = __reduce_min_sync(kAllLanes, cost << 8 | static_cast<u32>(min(whole, kMost)));
  return static_cast<i32>(best & 0xFF);
}

}  // namespace nibblas::portable
