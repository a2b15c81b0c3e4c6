// The steps of a launch, and which cluster takes which. Walked by the producer of each CTA, which
// tells the multiplying warps.
//
// A group's tokens are cut into equal tiles of at most 128, and each tile meets all of the group's
// units of weight rows. A step is one tile of tokens with some units that follow each other: unit j
// of the step is multiplied by warpgroup j / kCluster of CTA j % kCluster.
//
//   steps   g0: t0 (u0..) (u3..) ... t1 (u0..) ...  g1: ...      cluster c takes every so manieth
//
// so that all clusters are at the same few groups, whose tokens and weights stay in L2.
#pragma once

#include "shared.cuh"

namespace nibblas::sm90 {

static __device__ __forceinline__ i32 units_of(i64 n) {
  return static_cast<i32>(ceil_div(n, kAtomRows)) * static_cast<i32>(kAtomRows / kUnitRows);
}

static __device__ __forceinline__ i32 tiles_of(i32 tokens) {
  return (tokens + kMaxTokens - 1) / kMaxTokens;
}

// Tokens that are copied and multiplied for a tile of so many.
static __device__ __forceinline__ i32 width_of(i32 tokens) {
  i32 width = kMaxTokens;
#pragma unroll
  for (i32 i = sizeof(kWidths) / sizeof(i32) - 2; i >= 0; --i) {
    if (tokens <= kWidths[i]) width = kWidths[i];
  }
  return width;
}

// Row where each group ends, clamped into [0, rows] and monotone, or how many rows of it are in use
// when masked: by one warp, into shared memory.
static __device__ __forceinline__ void read_offs(const Params& p, i32 (&ends)[kMaxGroups]) {
  const i32 lane = threadIdx.x % kWarpLanes;
  i32 before = 0;
  for (i32 first = 0; first < p.groups; first += kWarpLanes) {
    const i32 g = first + lane;
    i64 entry = 0;
    if (g < p.groups) entry = p.offs == nullptr ? p.rows : p.offs[g];
    const i64 most = p.max_m > 0 ? p.max_m : p.rows;
    i32 end = static_cast<i32>(clamp_to(entry, 0, most));
    if (p.max_m == 0) {
      end = max(warp_inclusive_max(end, lane), before);
      before = __shfl_sync(kAllLanes, end, kWarpLanes - 1);
    }
    if (g < p.groups) ends[g] = end;
  }
  __syncwarp();
}

static __device__ __forceinline__ i32 tokens_of(const Params& p, const i32* ends, i32 group) {
  if (p.max_m > 0 || group == 0) return ends[group];
  return ends[group] - ends[group - 1];
}

// Units of a step of each CTA: as many as it has warpgroups, or fewer where that makes more
// clusters work at the same time. By one warp.
static __device__ __forceinline__ i32 choose_cta_units(const Params& p, const i32* ends,
                                                       i32 clusters) {
  i32 tiles = 0;
  for (i32 g = threadIdx.x % kWarpLanes; g < p.groups; g += kWarpLanes) {
    tiles += tiles_of(tokens_of(p, ends, g));
  }
  tiles = static_cast<i32>(__reduce_add_sync(kAllLanes, static_cast<u32>(tiles)));
  const u32 all_units = static_cast<u32>(units_of(p.n));
  i32 best = kCtaUnits;
  u64 best_time = ~0ull;
#pragma unroll
  for (i32 units = kCtaUnits; units >= 1; --units) {
    const u32 at_once = static_cast<u32>(units * Config::kCluster);
    const u32 steps = (all_units + at_once - 1) / at_once * static_cast<u32>(tiles);
    const u32 rounds = (steps + static_cast<u32>(clusters) - 1) / static_cast<u32>(clusters);
    const u64 time = static_cast<u64>(rounds) * static_cast<u32>(kStepCost + units);
    if (time < best_time) {
      best = units;
      best_time = time;
    }
  }
  return best;
}

class Walk {
 public:
  __device__ Walk(const Params& p, const i32* ends, i32 cta_units)
      : p_(p),
        ends_(ends),
        units_(units_of(p.n)),
        step_units_(cta_units * Config::kCluster),
        tile_steps_((units_ + step_units_ - 1) / step_units_),
        step_(blockIdx.x / Config::kCluster) {
    start_group();
    find();
  }

  __device__ bool done() const { return group_ >= p_.groups; }

  __device__ void advance() {
    step_ += gridDim.x / Config::kCluster;
    find();
  }

  __device__ Step step() const {
    const i32 tile = static_cast<i32>(static_cast<u32>(step_) / static_cast<u32>(tile_steps_));
    const i32 unit = (step_ - tile * tile_steps_) * step_units_;
    const i32 tokens = min(tokens_ - tile * part_, part_);
    return {row_ + tile * part_, group_, unit, min(units_ - unit, step_units_), tokens,
            width_of(tokens)};
  }

 private:
  __device__ void start_group() {
    tokens_ = part_ = group_steps_ = 0;
    if (group_ >= p_.groups) return;
    tokens_ = tokens_of(p_, ends_, group_);
    if (tokens_ == 0) return;
    const i32 tiles = tiles_of(tokens_);
    part_ = width_of((tokens_ + tiles - 1) / tiles);
    group_steps_ = tiles_of_part() * tile_steps_;
  }

  // Tiles of part_ tokens, of which fewer may do.
  __device__ i32 tiles_of_part() const { return (tokens_ + part_ - 1) / part_; }

  // To the group that has the step.
  __device__ void find() {
    while (group_ < p_.groups && step_ >= group_steps_) {
      step_ -= group_steps_;
      row_ += p_.max_m > 0 ? p_.max_m : tokens_;
      ++group_;
      start_group();
    }
  }

  const Params& p_;
  const i32* ends_;
  i32 units_;
  i32 step_units_;
  i32 tile_steps_;
  i32 step_;  // of the group's
  i32 group_ = 0;
  i64 row_ = 0;     // first row of the group
  i32 tokens_ = 0;  // of the group
  i32 part_ = 0;    // tokens of a tile, but for the last
  i32 group_steps_ = 0;
};

}  // namespace nibblas::sm90
