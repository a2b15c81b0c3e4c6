// Items of work: a tile of tokens of one group with the columns of one cluster, kTileN for each of
// its CTAs. Every role walks the same items by itself.
//
// kRuns gives each cluster a contiguous run, the other orders every so manieth item:
//
//   kRuns         g0: c0 (m0 m1) c1 (m0 m1) ... g1: ...    neighbours share weights
//   kInterleaved  c0: g0 (m0 m1) g1 (m0) ...  c1: ...      groups advance together
//   kTokenTiles   g0: m0 (c0 c1 ...) m1 (c0 c1 ...) ...    neighbours share tokens
//   kPhases       as kRuns, but clusters side by side      a group's tokens come together
#pragma once

#include "shared.cuh"

namespace nibblas::sm100 {

struct Item {
  const Entry* entry;
  i32 group;       // of its product
  i64 row;         // first row of x and out
  i32 rows;        // in use, at most tile_tokens
  i64 column;      // first row of the CTA's weights; perhaps beyond N
  i64 scale_atom;  // of 128 rows of blocked token scales
  i64 n;
  i32 k;
};

static __device__ __forceinline__ i32 column_units(i64 n) {
  return static_cast<i32>(ceil_div(n, Config::kTileN * Config::kCluster));
}

// Rows of tokens that the tensor core reads for an item, whether they exist or not.
static __device__ __forceinline__ i32 padded_tokens(const Item& item) {
  return Config::kSwapped ? static_cast<i32>(round_up(item.rows, 16)) : kTileM;
}

// In 32 bits: 64-bit divisions are calls.
static __device__ __forceinline__ u32 div_up(u32 a, u32 b) { return (a + b - 1) / b; }

// floor(all * worker / workers), for fewer than 2^16 workers.
static __device__ __forceinline__ i32 run_start(u32 all, u32 worker, u32 workers) {
  return all / workers * worker + all % workers * worker / workers;
}

class Items {
 public:
  __device__ Items(const Params& p, const Control& control)
      : p_(p),
        control_(control),
        groups_(is_list() ? p.products : static_cast<i32>(p.entries[0].product.groups)) {
    const u32 worker = blockIdx.x / Config::kCluster, workers = gridDim.x / Config::kCluster;
    const u32 all = total();
    if constexpr (Config::kOrder == Order::kRuns) {
      next_ = run_start(all, worker, workers);
      end_ = run_start(all, worker + 1, workers);
      step_ = 1;
    } else if constexpr (Config::kOrder == Order::kPhases) {
      // As few clusters as need no more phases: the last phase is as wide as the others.
      const u32 phases = div_up(all, workers);
      step_ = all == 0 ? 1 : div_up(all, phases);
      next_ = worker;
      end_ = worker < static_cast<u32>(step_) ? all : 0;
    } else {
      next_ = worker;
      end_ = all;
      step_ = workers;
    }
    advance();
  }

  __device__ bool done() const { return item_.entry == nullptr; }
  __device__ const Item& item() const { return item_; }

  __device__ void advance() {
    for (; next_ < end_; next_ += step_) {
      const Place place = place_of(next_);
      // Interleaved products of different N: the narrow ones have nothing in the last rounds.
      if (Config::kOrder == Order::kInterleaved && place.unit >= units(place.group)) continue;
      item_ = item_of(place);
      next_ += step_;
      return;
    }
    item_.entry = nullptr;
  }

 private:
  struct Place {
    i32 group;
    i32 tile;
    i32 unit;
  };

  __device__ bool is_list() const { return Config::kProducts > 1 && p_.products > 1; }
  __device__ const Entry& entry(i32 group) const { return p_.entries[is_list() ? group : 0]; }
  __device__ i32 units(i32 group) const { return column_units(entry(group).product.n); }
  __device__ i32 tile_end(i32 group) const {
    return is_list() ? p_.entries[group].tile_end : control_.tile_end()[group];
  }
  __device__ i32 tile_begin(i32 group) const { return group == 0 ? 0 : tile_end(group - 1); }
  __device__ i32 item_end(i32 group) const {
    return is_list() ? p_.entries[group].item_end : control_.tile_end()[group] * p_.column_units;
  }
  __device__ i32 item_begin(i32 group) const { return group == 0 ? 0 : item_end(group - 1); }

  __device__ i32 total() const {
    const i32 last = groups_ - 1;
    if constexpr (Config::kOrder != Order::kInterleaved) return item_end(last);
    return tile_end(last) * p_.column_units;
  }

  // The first group whose end lies beyond the number.
  template <class End>
  __device__ i32 find(i32 number, End end) const {
    i32 low = 0, high = groups_ - 1;
    while (low < high) {
      const i32 middle = (low + high) / 2;
      if (end(middle) > number) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  __device__ Place place_of(i32 number) const {
    if constexpr (Config::kOrder == Order::kInterleaved) {
      const i32 all_tiles = tile_end(groups_ - 1);
      const i32 tile = number % all_tiles;
      const i32 group = find(tile, [this](i32 g) { return tile_end(g); });
      return {group, tile - tile_begin(group), number / all_tiles};
    }
    const i32 group = find(number, [this](i32 g) { return item_end(g); });
    const i32 within = number - item_begin(group);
    if constexpr (Config::kOrder == Order::kRuns || Config::kOrder == Order::kPhases) {
      const i32 tiles = tile_end(group) - tile_begin(group);
      return {group, within % tiles, within / tiles};
    }
    return {group, within / units(group), within % units(group)};
  }

  __device__ Item item_of(const Place& place) const {
    const Product& product = entry(place.group).product;
    i64 begin = 0, end = product.rows;
    i32 atoms_before = 0;
    if (!is_list()) {
      const i32* row_end = control_.row_end(p_);
      atoms_before =
          Config::kSwapped ? control_.atoms_before(p_)[place.group] : tile_begin(place.group);
      end = row_end[place.group];
      if (product.max_m > 0) {
        begin = place.group * product.max_m;
      } else if (place.group > 0) {
        begin = row_end[place.group - 1];
      }
    }
    Item item;
    item.entry = &entry(place.group);
    item.group = is_list() ? 0 : place.group;
    item.row = begin + static_cast<i64>(place.tile) * tile_tokens(p_);
    item.rows = static_cast<i32>(min_of(end - item.row, tile_tokens(p_)));
    const i64 unit = static_cast<i64>(place.unit) * Config::kCluster;
    item.column = (unit + blockIdx.x % Config::kCluster) * Config::kTileN;
    const i64 start = group_start_row(static_cast<GroupStart>(product.x_scales.start_rule),
                                      item.group, begin, atoms_before * kAtomRows, product.max_m);
    // Where offs asks for more atoms than there are, others are read.
    const i64 last_atom = product.x_scales.rows / kAtomRows - 1;
    item.scale_atom = min_of(start / kAtomRows + place.tile * x_row_atoms(p_), last_atom);
    item.n = product.n;
    item.k = static_cast<i32>(product.k);
    return item;
  }

  const Params& p_;
  const Control& control_;
  i32 groups_;
  i32 next_;
  i32 end_;
  i32 step_;
  Item item_;
};

// Fills the table of a packed or masked product's groups; all threads of the CTA together.
static __device__ void find_groups(const Params& p, Control& control) {
  if (p.products > 1) return;
  const Product& product = p.entries[0].product;
  const GroupSizes sizes{product.offs,  product.groups, product.rows, product.max_m, 1, 0,
                         tile_tokens(p)};
  BlockGroups<kAllWarps> groups(sizes, control.scratch);
  for (i64 first = 0; first < product.groups; first += kAllWarps * kWarpLanes) {
    const ThreadGroup group = groups.next(first);
    const i64 g = first + threadIdx.x;
    if (g >= product.groups) continue;
    control.tile_end()[g] = static_cast<i32>(group.cost_before + group.tile_cost);
    control.row_end(p)[g] = static_cast<i32>(group.row + group.tokens);
    if constexpr (!Config::kSwapped) continue;
    control.atoms_before(p)[g] = static_cast<i32>(group.padded_before / kAtomRows);
  }
}

}  // namespace nibblas::sm100
