// A CTA's share of the work, found by one of its warps alone: no barrier and little code, since the
// first weights are asked for when it is known. Tiles are listed as in common/scheduler.h, and a
// tile belongs to the CTA in whose share of the cost it starts.
#pragma once

#include "../common/ptx/global_memory.cuh"
#include "tiles.cuh"

namespace nibblas::portable {

// From a set of a group up to, not including, another.
struct Run {
  i32 group;
  i32 set;
  i32 end_group;
  i32 end_set;
  i32 visit_sets;
  i32 tokens;       // of `group`
  i64 row;          // of x: the first of `group`
  i64 padded_rows;  // of blocked scales before it, each group rounded up to 128; NVFP4 tokens only
};

// Some groups in the lanes of a warp, kEach to a lane.
class WarpGroups {
 public:
  static constexpr i32 kEach = 4;
  static constexpr u32 kAtOnce = kEach * kWarpLanes;

  // Reads the groups from `first` on; those past the last have no tokens. Offsets are clamped and
  // made monotone, so hostile ones cannot lead out of bounds.
  __device__ __forceinline__ void read(const Params& p, u32 first) {
    first_ = first + static_cast<u32>(lane()) * kEach;
    const i64 most = p.max_m > 0 ? p.max_m : p.rows;
    const i32 limit = static_cast<i32>(min_of(most, 0x7FFFFFFF));
#pragma unroll
    for (i32 i = 0; i < kEach; ++i) entry_[i] = entry(p, i, limit);
#pragma unroll
    for (i32 i = 0; i < kEach; ++i) end_[i] = clamp(entry_[i], limit);
    if (p.max_m > 0) {
#pragma unroll
      for (i32 i = 0; i < kEach; ++i) tokens_[i] = static_cast<u32>(end_[i]);
      return;
    }
#pragma unroll
    for (i32 i = 1; i < kEach; ++i) end_[i] = max(end_[i], end_[i - 1]);
    const i32 up_to = max(warp_inclusive_max(end_[kEach - 1], lane()), read_);
    const i32 previous = __shfl_up_sync(kAllLanes, up_to, 1);
    i32 before = lane() == 0 ? read_ : previous;
    read_ = __shfl_sync(kAllLanes, up_to, kWarpLanes - 1);
#pragma unroll
    for (i32 i = 0; i < kEach; ++i) {
      end_[i] = max(end_[i], before);
      tokens_[i] = static_cast<u32>(end_[i] - before);
      before = end_[i];
    }
  }

  // Whether offs holds what the last reading found.
  __device__ __forceinline__ bool unchanged(const Params& p) const {
    bool same = true;
#pragma unroll
    for (i32 i = 0; i < kEach; ++i) same &= entry(p, i, entry_[i]) == entry_[i];
    return __all_sync(kAllLanes, same);
  }

  // Reading begins again.
  __device__ void rewind() { read_ = 0; }

  __device__ i32 group(i32 i) const { return static_cast<i32>(first_) + i; }
  __device__ i64 row(const Params& p, i32 i) const {
    return p.max_m > 0 ? group(i) * p.max_m : end_[i] - static_cast<i32>(tokens_[i]);
  }
  // Cost of a tile: its weights are decoded once whatever its tokens, which is worth about 4 MMA
  // tiles of 8 tokens. 0: no tokens.
  __device__ u32 cost(i32 i) const { return tokens_[i] == 0 ? 0 : 4 + (tokens_[i] + 7) / 8; }
  __device__ i32 tokens(i32 i) const { return static_cast<i32>(tokens_[i]); }
  __device__ u32 atoms(i32 i) const { return (tokens_[i] + 127) / 128; }

 private:
  static __device__ i32 lane() { return static_cast<i32>(threadIdx.x) % kWarpLanes; }
  // Of offs, past L1, which would keep what a launch before is about to write over.
  __device__ __forceinline__ i32 entry(const Params& p, i32 i, i32 without_offs) const {
    const u32 g = first_ + i;
    if (g >= static_cast<u32>(p.groups)) return 0;
    return p.offs == nullptr ? without_offs : ptx::ld_relaxed_gpu_i32(p.offs + g);
  }

  static __device__ i32 clamp(i32 value, i32 most) { return max(min(value, most), 0); }

  u32 first_;
  i32 entry_[kEach];
  i32 end_[kEach];
  u32 tokens_[kEach];
  i32 read_ = 0;  // end of all groups read
};

// Of the lanes before this one; `all` gets what all lanes have.
static __device__ __forceinline__ u32 sum_before(u32 mine, u32& all) {
  const i32 lane = static_cast<i32>(threadIdx.x) % kWarpLanes;
  const u32 up_to = static_cast<u32>(warp_inclusive_sum(static_cast<i32>(mine), lane));
  all = __shfl_sync(kAllLanes, up_to, kWarpLanes - 1);
  return up_to - mine;
}

// The search for the run of `worker` among `workers`; every lane of a warp learns it.
class RunSearch {
 public:
  __device__ RunSearch(const Params& p, i32 worker, i32 workers) : p_(p) {
    const u32 groups = static_cast<u32>(p.groups);
    bool counted = false;
    u32 first = 0;
#pragma unroll 1
    while (true) {
      // So few groups stay where they are.
      if (!counted || groups > WarpGroups::kAtOnce) groups_.read(p, first);
      if (counted) {
        find();
      } else {
        count();
      }
      first += WarpGroups::kAtOnce;
      if (first < groups && found_ < 2) continue;
      if (counted) break;
      counted = true;
      first = 0;
      groups_.rewind();
      cut(worker, workers);
    }
  }

  __device__ const Run& run() const { return run_; }

  // Whether it would find the same again. False where that costs as much as to search.
  __device__ bool holds() const {
    return p_.groups <= WarpGroups::kAtOnce && groups_.unchanged(p_);
  }

 private:
  static constexpr i32 kEach = WarpGroups::kEach;

  __device__ __forceinline__ void count() {
    u32 mine = 0, most = 0, least = 0xFFFFFFFF;
#pragma unroll
    for (i32 i = 0; i < kEach; ++i) {
      mine += groups_.cost(i);
      most = max(most, groups_.cost(i));
      least = min(least, groups_.cost(i) - 1);  // 0 comes last
    }
    total_ += __reduce_add_sync(kAllLanes, mine);
    most_ = max(most_, __reduce_max_sync(kAllLanes, most));
    least_ = min(least_, __reduce_min_sync(kAllLanes, least));
  }

  __device__ __forceinline__ void cut(i32 worker, i32 workers) {
    const i32 sets = sets_of(p_.n);
    // As many groups as large as the largest would be as much work.
    const u32 alike = static_cast<u32>(min_of(total_, 0x7FFFFFFF)) / most_;
    tile_sets_ = tile_sets(sets, max(static_cast<i32>(alike), 1));
    tiles_ = (sets + tile_sets_ - 1) / tile_sets_;
    // Lanes look for the run's begin and end by turns.
    const i32 lane = static_cast<i32>(threadIdx.x) % kWarpLanes;
    target_ = share_begin(worker + lane % 2, workers);
    const i32 none = static_cast<i32>(p_.groups);
    run_ = {none, 0, none, 0, Config::kSetsPerWarp * tile_sets_, 0, 0, 0};
  }

  // Shares are multiples of the cheapest tile, of one more for the first workers than for the
  // others, since CTAs begin in this order when those of the launch before end.
  __device__ __forceinline__ i64 share_begin(i32 worker, i32 workers) const {
    const i64 total = total_ * tiles_, least = max(least_ + 1, 1u);
    const i64 whole = total / (workers * least) * least;
    return worker * whole + min_of(worker * least, total - workers * whole);
  }

  // Looks among groups_ for what has not been found.
  __device__ __forceinline__ void find() {
    u32 mine = 0, atoms = 0, all_costs, all_atoms = 0;
#pragma unroll
    for (i32 i = 0; i < kEach; ++i) {
      mine += groups_.cost(i);
      atoms += groups_.atoms(i);
    }
    const i64 lane_before = before_ + sum_before(mine, all_costs);
    before_ += all_costs;
    const i64 lane_atoms = Config::kNvfp4Tokens ? atoms_ + sum_before(atoms, all_atoms) : 0;
    atoms_ += all_atoms;
#pragma unroll 1
    for (; found_ < 2; ++found_) {
      const i64 target = __shfl_sync(kAllLanes, target_, found_);
      // The first group with a tile that starts at or after the target.
      i32 group = -1, tokens = 0;
      u32 cost = 1;
      i64 row = 0, padded = 0, its_before = 0;
      i64 up_to = lane_before + mine, atoms_up_to = lane_atoms + atoms;
#pragma unroll
      for (i32 i = kEach - 1; i >= 0; --i) {
        up_to -= groups_.cost(i);
        atoms_up_to -= groups_.atoms(i);
        if (groups_.cost(i) == 0) continue;
        if ((up_to + groups_.cost(i)) * tiles_ - groups_.cost(i) < target) continue;
        group = groups_.group(i);
        cost = groups_.cost(i);
        its_before = up_to;
        tokens = groups_.tokens(i);
        row = groups_.row(p_, i);
        padded = atoms_up_to;
      }
      const u32 lanes = __ballot_sync(kAllLanes, group >= 0);
      if (lanes == 0) return;
      const i32 from = __ffs(static_cast<i32>(lanes)) - 1;
      const i64 ahead = max_of(target - its_before * tiles_, 0);
      const i32 set = static_cast<i32>(ceil_div(ahead, cost)) * tile_sets_;
      run_.end_group = __shfl_sync(kAllLanes, group, from);
      run_.end_set = __shfl_sync(kAllLanes, set, from);
      if (found_ > 0) continue;
      run_.group = run_.end_group;
      run_.set = run_.end_set;
      run_.tokens = __shfl_sync(kAllLanes, tokens, from);
      run_.row = __shfl_sync(kAllLanes, row, from);
      run_.padded_rows = __shfl_sync(kAllLanes, padded, from) * kAtomRows;
      run_.end_group = static_cast<i32>(p_.groups);
      run_.end_set = 0;
    }
  }

  const Params& p_;
  WarpGroups groups_;
  i64 total_ = 0;           // cost of one tile of every group
  u32 most_ = 1;            // of a tile
  u32 least_ = 0xFFFFFFFF;  // of a tile, less 1
  i32 tile_sets_ = 0;
  i32 tiles_ = 0;  // of a group
  i64 target_ = 0;
  i64 before_ = 0;  // cost of one tile of every group looked at, and their atoms
  i64 atoms_ = 0;
  i32 found_ = 0;
  Run run_;
};

}  // namespace nibblas::portable
