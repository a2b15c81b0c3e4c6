// Splits a grouped product among workers: tiles of weight rows, listed group by group, are cut into
// contiguous runs of equal cost. Every worker finds its own run from the group sizes alone.
//
//   group 0            group 1 (empty)   group 2
//   |t0|t1|t2|t3|                        | t0   | t1   | t2   | t3   |     width = cost of a tile
//   |--- worker 0 ---------------------------|--- worker 1 ----------|
//
// A tile belongs to the worker in whose share of the total cost the tile starts, so the shares
// differ by less than one tile and every tile of a non-empty group is in exactly one run.
#pragma once

#include "types.h"

namespace nibblas {

// A tile; group == number of groups is the end.
struct TilePosition {
  i64 group;
  i64 tile;
};

// Tiles from `begin` up to, not including, `end`. Tiles of empty groups may lie inside: skip them.
struct TileRun {
  TilePosition begin;
  TilePosition end;
};

// Cost of one tile of a group with `tokens` rows: `fixed` stands for reading and decoding weights.
NIBBLAS_HD static constexpr i64 tile_cost(i64 tokens, i64 fixed, i64 per_token) {
  return tokens == 0 ? 0 : fixed + per_token * tokens;
}

// Rows of a packed group, clamped into [0, rows] and made monotone: no offs can lead out of bounds.
struct GroupRows {
  i64 begin;
  i64 end;
};

NIBBLAS_HD static constexpr GroupRows packed_group_rows(i64 previous_end, i64 end, i64 rows) {
  return {previous_end, clamp_to(end, previous_end, rows)};
}

// Groups of a packed product as find_run sees them.
struct PackedTiles {
  const i32* offs;  // [groups] cumulative ends
  i64 rows;         // rows of x
  i64 tiles_per_group;
  i64 fixed;
  i64 per_token;

  // Visits the groups in order; `visit(group, tiles, cost)` returns false to stop.
  template <class Visit>
  NIBBLAS_HD constexpr void for_each(i64 groups, Visit visit) const {
    i64 previous_end = 0;
    for (i64 g = 0; g < groups; ++g) {
      const GroupRows group = packed_group_rows(previous_end, offs[g], rows);
      if (!visit(g, tiles_per_group, tile_cost(group.end - group.begin, fixed, per_token))) return;
      previous_end = group.end;
    }
  }
};

// floor(total * worker / workers), without the product's overflow.
NIBBLAS_HD static constexpr i64 share_start(i64 total, i64 worker, i64 workers) {
  return total / workers * worker + total % workers * worker / workers;
}

template <class Tiles>
NIBBLAS_HD static constexpr i64 total_cost(const Tiles& tiles, i64 groups) {
  i64 total = 0;
  tiles.for_each(groups, [&](i64, i64 count, i64 cost) {
    total += count * cost;
    return true;
  });
  return total;
}

// First tile that starts at or after `target`, in units of cost from the beginning of the list.
template <class Tiles>
NIBBLAS_HD static constexpr TilePosition first_tile_from(const Tiles& tiles, i64 groups,
                                                         i64 target) {
  TilePosition found{groups, 0};
  i64 group_start = 0;
  tiles.for_each(groups, [&](i64 g, i64 count, i64 cost) {
    if (count > 0 && cost > 0 && group_start + (count - 1) * cost >= target) {
      found = {g, target > group_start ? ceil_div(target - group_start, cost) : 0};
      return false;
    }
    group_start += count * cost;
    return true;
  });
  return found;
}

// The run of `worker` among `workers`.
template <class Tiles>
NIBBLAS_HD static constexpr TileRun find_run(const Tiles& tiles, i64 groups, i64 worker,
                                             i64 workers) {
  const i64 total = total_cost(tiles, groups);
  return {first_tile_from(tiles, groups, share_start(total, worker, workers)),
          first_tile_from(tiles, groups, share_start(total, worker + 1, workers))};
}

}  // namespace nibblas
