// The scheduler (scheduler.h) on a warp: the same runs, found by 32 groups at a time.
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
  i64 rows;   // rows of x
  i64 max_m;  // 0: packed
  i64 tiles;  // per group
  i64 fixed_cost;
  i64 token_cost;
};

// A place between groups: what the groups before it add up to.
struct GroupStartState {
  i64 row;          // first row of x of the group
  i64 padded_rows;  // rows of blocked scales before it, each group rounded up to 128
};

struct WarpRun {
  TileRun tiles;
  GroupStartState first;  // of tiles.begin.group
};

static __device__ __forceinline__ i64 warp_inclusive_sum(i64 value, i32 lane) {
  for (i32 step = 1; step < kWarpLanes; step *= 2) {
    const i64 other = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

static __device__ __forceinline__ i64 warp_inclusive_max(i64 value, i32 lane) {
  for (i32 step = 1; step < kWarpLanes; step *= 2) {
    const i64 other = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value = max_of(value, other);
  }
  return value;
}

// One lane's group, of 32 consecutive ones.
struct LaneGroup {
  i64 row;
  i64 tokens;
  i64 padded_before;
  i64 cost_before;  // of whole groups
  i64 tile_cost;
};

// Walks all groups, 32 at a time; all lanes together.
class WarpGroups {
 public:
  __device__ explicit WarpGroups(const GroupSizes& sizes)
      : sizes_(sizes), lane_(static_cast<i32>(threadIdx.x) % kWarpLanes) {}

  // Lane's group is `first_group + lane`; groups past the end are empty.
  __device__ LaneGroup next(i64 first_group) {
    const i64 g = first_group + lane_;
    i64 end = 0;
    if (g < sizes_.groups) end = sizes_.offs == nullptr ? sizes_.rows : sizes_.offs[g];
    LaneGroup group{};
    if (sizes_.max_m > 0) {
      group.row = g * sizes_.max_m;
      group.tokens = clamp_to(end, 0, sizes_.max_m);
    } else {
      end = max_of(warp_inclusive_max(clamp_to(end, 0, sizes_.rows), lane_), row_);
      const i64 before = __shfl_up_sync(kAllLanes, end, 1);
      group.row = lane_ == 0 ? row_ : before;
      group.tokens = end - group.row;
      row_ = __shfl_sync(kAllLanes, end, kWarpLanes - 1);
    }
    group.tile_cost = tile_cost(group.tokens, sizes_.fixed_cost, sizes_.token_cost);
    group.padded_before = running_sum(padded_rows(group.tokens), padded_);
    group.cost_before = running_sum(group.tile_cost * sizes_.tiles, cost_);
    return group;
  }

  __device__ i64 total_cost() const { return cost_; }

 private:
  // Exclusive sum over all groups so far; `carry` becomes their total.
  __device__ i64 running_sum(i64 value, i64& carry) const {
    const i64 inclusive = warp_inclusive_sum(value, lane_) + carry;
    carry = __shfl_sync(kAllLanes, inclusive, kWarpLanes - 1);
    return inclusive - value;
  }

  const GroupSizes& sizes_;
  i32 lane_;
  i64 row_ = 0;
  i64 padded_ = 0;
  i64 cost_ = 0;
};

// Sets `found` to the first tile that starts at or after `target`, as first_tile_from does, if one
// of the 32 groups at hand holds it, and `start` to where that tile's group starts.
static __device__ __forceinline__ bool find_tile(const LaneGroup& group, i64 first_group, i64 tiles,
                                                 i64 target, TilePosition& found,
                                                 GroupStartState& start) {
  const i64 last_tile = group.cost_before + (tiles - 1) * group.tile_cost;
  const bool holds = tiles > 0 && group.tile_cost > 0 && last_tile >= target;
  const u32 holders = __ballot_sync(kAllLanes, holds);
  if (holders == 0) return false;
  const i32 lane = __ffs(static_cast<i32>(holders)) - 1;
  const i64 ahead = max_of(target - group.cost_before, 0);
  const i64 tile = ceil_div(ahead, max_of(group.tile_cost, 1));
  found = {first_group + lane, __shfl_sync(kAllLanes, tile, lane)};
  start = {__shfl_sync(kAllLanes, group.row, lane),
           __shfl_sync(kAllLanes, group.padded_before, lane)};
  return true;
}

// The run of `worker` among `workers`; all lanes of a warp together.
static __device__ WarpRun warp_find_run(const GroupSizes& sizes, i64 worker, i64 workers) {
  WarpGroups sum(sizes);
  for (i64 g = 0; g < sizes.groups; g += kWarpLanes) sum.next(g);
  const i64 begin = share_start(sum.total_cost(), worker, workers);
  const i64 end = share_start(sum.total_cost(), worker + 1, workers);

  const TilePosition past_all{sizes.groups, 0};
  WarpRun run{{past_all, past_all}, {}};
  GroupStartState end_state{};
  WarpGroups groups(sizes);
  bool begun = false;
  for (i64 g = 0; g < sizes.groups; g += kWarpLanes) {
    const LaneGroup group = groups.next(g);
    if (!begun) begun = find_tile(group, g, sizes.tiles, begin, run.tiles.begin, run.first);
    if (find_tile(group, g, sizes.tiles, end, run.tiles.end, end_state)) break;
  }
  return run;
}

}  // namespace nibblas
