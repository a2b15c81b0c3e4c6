// The scheduler (scheduler.h) on a CTA: the same runs, found by all threads together, a group each.
// Offsets are clamped into [0, rows] and made monotone, so hostile ones cannot lead out of bounds.
#pragma once

#include "scale_layout.h"
#include "scheduler.h"

namespace nibblas {

constexpr u32 kAllLanes = 0xFFFFFFFFu;
constexpr i32 kWarpLanes = 32;

// Where group sizes come from, and what a tile of a group costs.
struct GroupSizes {
  const i32* offs;  // [groups]: cumulative ends, or rows in use when max_m > 0; null: one group
  i64 groups;
  i64 rows;        // rows of x
  i64 max_m;       // 0: packed
  i64 tiles;       // per group
  i64 fixed_cost;  // of a tile whatever its tokens, in units of token_step tokens
  i64 token_step;  // tokens are paid for in steps
};

// A place between groups: what the groups before it add up to.
struct GroupStartState {
  i64 row;          // first row of x of the group
  i64 padded_rows;  // rows of blocked scales before it, each group rounded up to 128
};

struct BlockRun {
  TileRun tiles;
  GroupStartState first;  // of tiles.begin.group
};

// What the warps of a CTA tell each other; shared memory.
template <i32 kWarps>
struct BlockScratch {
  i32 last_end[kWarps];
  i32 tokens[kWarps];
  i32 padded_atoms[kWarps];
  i32 steps[kWarps];  // of tokens, fixed cost included
  i32 found_group[2];
  BlockRun run;
};

static __device__ __forceinline__ i32 warp_inclusive_sum(i32 value, i32 lane) {
#pragma unroll
  for (i32 step = 1; step < kWarpLanes; step *= 2) {
    const i32 other = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

static __device__ __forceinline__ i32 warp_inclusive_max(i32 value, i32 lane) {
#pragma unroll
  for (i32 step = 1; step < kWarpLanes; step *= 2) {
    const i32 other = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step && other > value) value = other;
  }
  return value;
}

// A thread's group.
struct ThreadGroup {
  i64 row;
  i64 tokens;
  i64 padded_before;
  i64 cost_before;  // of whole groups
  i64 tile_cost;
};

// Walks all groups, one per thread at a time; all threads of the CTA together.
template <i32 kWarps>
class BlockGroups {
 public:
  static constexpr i32 kThreads = kWarps * kWarpLanes;

  __device__ BlockGroups(const GroupSizes& sizes, BlockScratch<kWarps>& scratch)
      : sizes_(sizes),
        scratch_(scratch),
        warp_(static_cast<i32>(threadIdx.x) / kWarpLanes),
        lane_(static_cast<i32>(threadIdx.x) % kWarpLanes) {}

  // The thread's group is `first_group` + its number; groups past the end are empty.
  __device__ ThreadGroup next(i64 first_group) {
    const i64 g = first_group + static_cast<i32>(threadIdx.x);
    i64 entry = 0;
    if (g < sizes_.groups) entry = sizes_.offs == nullptr ? sizes_.rows : sizes_.offs[g];
    return sizes_.max_m > 0 ? next_masked(g, entry) : next_packed(entry);
  }

  __device__ i64 total_cost() const { return cost_; }

 private:
  __device__ ThreadGroup next_packed(i64 entry) {
    const i32 mine = static_cast<i32>(clamp_to(entry, 0, sizes_.rows));
    const i32 in_warp = warp_inclusive_max(mine, lane_);
    if (lane_ == kWarpLanes - 1) scratch_.last_end[warp_] = in_warp;
    __syncthreads();
    i64 before = row_;  // end of the groups of the warps before
    for (i32 w = 0; w < warp_; ++w) before = max_of(before, scratch_.last_end[w]);
    i64 all = before;
    for (i32 w = warp_; w < kWarps; ++w) all = max_of(all, scratch_.last_end[w]);
    row_ = all;
    const i64 end = max_of(in_warp, before);
    const i64 previous = __shfl_up_sync(kAllLanes, static_cast<i32>(end), 1);
    const i64 row = lane_ == 0 ? before : previous;
    return with_costs(row, end - row);
  }

  __device__ ThreadGroup next_masked(i64 g, i64 entry) {
    return with_costs(g * sizes_.max_m, clamp_to(entry, 0, sizes_.max_m));
  }

  __device__ ThreadGroup with_costs(i64 row, i64 tokens) {
    const i32 steps =
        static_cast<i32>(tile_cost(ceil_div(tokens, sizes_.token_step), sizes_.fixed_cost, 1));
    const i32 atoms = static_cast<i32>(padded_rows(tokens) / kAtomRows);
    const i32 steps_before = sum_before(steps, scratch_.steps);
    const i32 atoms_before = sum_before(atoms, scratch_.padded_atoms);
    __syncthreads();
    ThreadGroup group{row, tokens, padded_ + atoms_before * kAtomRows,
                      cost_ + steps_before * sizes_.tiles, steps};
    for (i32 w = 0; w < kWarps; ++w) {
      const i64 warp_padded = scratch_.padded_atoms[w] * kAtomRows;
      const i64 warp_cost = scratch_.steps[w] * sizes_.tiles;
      if (w < warp_) {
        group.padded_before += warp_padded;
        group.cost_before += warp_cost;
      }
      padded_ += warp_padded;
      cost_ += warp_cost;
    }
    __syncthreads();  // the scratch is free again
    return group;
  }

  // Exclusive sum within the warp, whose total goes to `totals`.
  __device__ i32 sum_before(i32 value, i32* totals) const {
    const i32 inclusive = warp_inclusive_sum(value, lane_);
    if (lane_ == kWarpLanes - 1) totals[warp_] = inclusive;
    return inclusive - value;
  }

  const GroupSizes& sizes_;
  BlockScratch<kWarps>& scratch_;
  i32 warp_;
  i32 lane_;
  i64 row_ = 0;
  i64 padded_ = 0;
  i64 cost_ = 0;
};

// Notes the thread's group if it holds the first tile that starts at or after `target`.
static __device__ __forceinline__ void find_group(const ThreadGroup& group, i64 g, i64 tiles,
                                                  i64 target, i32* found) {
  const i64 last_tile = group.cost_before + (tiles - 1) * group.tile_cost;
  if (group.tile_cost > 0 && last_tile >= target) atomicMin(found, static_cast<i32>(g));
}

// That tile, as first_tile_from finds it.
static __device__ __forceinline__ TilePosition tile_from(const ThreadGroup& group, i64 g,
                                                         i64 target) {
  const i64 ahead = max_of(target - group.cost_before, 0);
  return {g, ceil_div(ahead, group.tile_cost)};
}

// The run of `worker` among `workers`; all threads of the CTA together. `scratch` is free again
// after the next barrier.
template <i32 kWarps>
static __device__ BlockRun block_find_run(const GroupSizes& sizes, i64 worker, i64 workers,
                                          BlockScratch<kWarps>& scratch) {
  using Groups = BlockGroups<kWarps>;
  constexpr i32 kNone = 0x7FFFFFFF;
  const i64 g0 = static_cast<i32>(threadIdx.x);
  if (g0 == 0) {
    scratch.found_group[0] = scratch.found_group[1] = kNone;
    scratch.run = {{{sizes.groups, 0}, {sizes.groups, 0}}, {}};
  }
  Groups sum(sizes, scratch);
  ThreadGroup group{};
  for (i64 g = 0; g < sizes.groups; g += Groups::kThreads) group = sum.next(g);
  const i64 begin = share_start(sum.total_cost(), worker, workers);
  const i64 end = share_start(sum.total_cost(), worker + 1, workers);

  Groups again(sizes, scratch);
  for (i64 g = 0; g < sizes.groups; g += Groups::kThreads) {
    if (sizes.groups > Groups::kThreads) group = again.next(g);
    find_group(group, g + g0, sizes.tiles, begin, &scratch.found_group[0]);
    find_group(group, g + g0, sizes.tiles, end, &scratch.found_group[1]);
    __syncthreads();
    if (scratch.found_group[0] == g + g0) {
      scratch.run.tiles.begin = tile_from(group, g + g0, begin);
      scratch.run.first = {group.row, group.padded_before};
    }
    if (scratch.found_group[1] == g + g0) scratch.run.tiles.end = tile_from(group, g + g0, end);
    if (scratch.found_group[1] != kNone) break;
  }
  __syncthreads();
  return scratch.run;
}

}  // namespace nibblas
