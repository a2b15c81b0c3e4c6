// The steps of a launch, and which cluster takes which. Walked by the producer of each CTA, which
// tells the multiplying warps.
//
// A step is a tile of a group's tokens with a block of its weight rows: units that follow each
// other, one for each CTA of the cluster or one for each of their warpgroups. Tokens are cut into
// equal tiles of at most so many, and blocks have so many units (a Cut): whichever of kCuts should
// take the least time with the sizes that are found in offs.
//
//   steps    widest tiles first; of one width by group; of a group by kTilesTogether tiles of
//            tokens, block of rows, tile of these
//   round 0  cluster 0 takes step 0, cluster 1 step 1, ...
//   round 1  the other way round, so that who had a long step gets a short one; and so on
#pragma once

#include "shared.cuh"

namespace nibblas::sm90 {

struct Cut {
  i32 tokens;  // at most, of a tile
  i32 units;   // of a block and CTA: 1 or kMultiplyGroups
};

constexpr Cut kCuts[] = {NIBBLAS_CONFIG_CUTS};
constexpr i32 kCutCount = sizeof(kCuts) / sizeof(Cut);
constexpr i32 kMaxCuts = 8;
static_assert(kCutCount <= kMaxCuts, "a lane looks at one");
constexpr float kInfinity = 3.4e38f;

// Of what is not negative: cheaper than with signs.
static __device__ __forceinline__ i32 divided(i32 a, i32 b) {
  return static_cast<i32>(static_cast<u32>(a) / static_cast<u32>(b));
}

static __device__ __forceinline__ i32 ceil_div_i32(i32 a, i32 b) {
  return static_cast<i32>((static_cast<u32>(a) + static_cast<u32>(b) - 1) / static_cast<u32>(b));
}

static __device__ __forceinline__ i32 units_of(i64 n) {
  return static_cast<i32>(ceil_div(n, kAtomRows)) * static_cast<i32>(kAtomRows / kUnitRows);
}

// Steps that are taken at once read some tiles of tokens and some blocks of weight rows: least with
// few tiles and many blocks, since a tile of 256 has 7 times the bytes of a block of 128 rows.
constexpr i32 kTilesTogether = 4;

// Blocks of weight rows.
static __device__ __forceinline__ i32 blocks_of(const Params& p, const Cut& cut) {
  const i32 units = units_of(p.n);
  return cut.units == 1 ? ceil_div_i32(units, Config::kCluster)
                        : ceil_div_i32(units, kMultiplyGroups * Config::kCluster);
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

// A group's tokens as tiles.
struct Tiles {
  i32 count;
  i32 tokens;  // of each but the last
  i32 width;   // which of kWidths
};

static __device__ __forceinline__ Tiles tiles_of(i32 tokens, i32 most) {
  Tiles tiles{tokens > 0, tokens, 0};
  if (tokens > most) {
    tiles.count = ceil_div_i32(tokens, most);
    tiles.tokens = ceil_div_i32(tokens, tiles.count);
  }
#pragma unroll
  for (i32 i = 0; i < kWidthCount - 1; ++i) tiles.width += tiles.tokens > kWidths[i];
  return tiles;
}

static __device__ __forceinline__ i32 tokens_of(const Params& p, const i32* ends, i32 group) {
  if (p.max_m > 0 || group == 0) return ends[group];
  return ends[group] - ends[group - 1];
}

// About how long a launch takes that is cut so, in cycles, but for rounding tiles up to widths.
// By a warp: 8 ways at once, a way by every eighth lane, which share the groups.
static __device__ __forceinline__ float time_of(const Params& p, const i32* ends, const Cut& cut) {
  constexpr float kAlmostOne = 1 - 1.f / 4096;  // so that rounding does not add a tile
  const float per_limit = 1.f / static_cast<float>(cut.tokens);
  float tiles = 0, rows = 0, cost = 0, most = 0, least = kInfinity;
  for (i32 g = threadIdx.x % kWarpLanes / kMaxCuts; g < p.groups; g += kWarpLanes / kMaxCuts) {
    const float tokens = static_cast<float>(tokens_of(p, ends, g));
    if (tokens == 0) continue;
    const float of_group = floorf(tokens * per_limit + kAlmostOne);
    const float width = fmaxf(__fdividef(tokens, of_group), kWidths[0]);
    const float of_tile =
        fmaxf(Config::kDecodeCycles + Config::kTokenCycles * width, Config::kTensorCycles * width);
    tiles += of_group;
    rows += tokens;
    cost += of_group * of_tile;
    most = fmaxf(most, of_tile);
    least = fminf(least, of_tile);
  }
#pragma unroll
  for (i32 step = kMaxCuts; step < kWarpLanes; step *= 2) {
    tiles += __shfl_xor_sync(kAllLanes, tiles, step);
    rows += __shfl_xor_sync(kAllLanes, rows, step);
    cost += __shfl_xor_sync(kAllLanes, cost, step);
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    least = fminf(least, __shfl_xor_sync(kAllLanes, least, step));
  }
  // Of 16 values along K of all of a CTA's units; a warpgroup alone does not fill the tensor cores.
  const float per_cost =
      static_cast<float>(static_cast<i32>(p.k) / 16) *
      (cut.units == 1 ? Config::kAloneCost : static_cast<float>(kMultiplyGroups));
  const float blocks = static_cast<float>(blocks_of(p, cut));
  const float clusters = static_cast<float>(static_cast<i32>(gridDim.x) / Config::kCluster);
  const float steps = blocks * tiles;
  if (steps <= clusters) return per_cost * most;
  const float outputs = blocks * rows * Config::kStepTokenCycles + steps * Config::kStepCycles;
  const float all = blocks * cost * per_cost + outputs;
  // Who takes one step more than others, or a longer one, is half a step late on average.
  const float late = __fdividef(all, clusters) + __fdividef(all, 2 * steps);
  return fmaxf(late, ceilf(__fdividef(steps, clusters)) * least * per_cost);
}

// Of kCuts, the one that should take least time: by a warp.
static __device__ __forceinline__ Cut best_cut(const Params& p, const i32* ends) {
  const i32 way = static_cast<i32>(threadIdx.x) % kMaxCuts;
  Cut cut = kCuts[0];
#pragma unroll
  for (i32 i = 1; i < kCutCount; ++i) {
    if (way == i) cut = kCuts[i];
  }
  const u32 time = __float_as_uint(time_of(p, ends, cut));  // ordered as the floats: none negative
  const u32 fastest = __ballot_sync(kAllLanes, time == __reduce_min_sync(kAllLanes, time));
  const i32 lane = __ffs(static_cast<i32>(fastest)) - 1;
  return {__shfl_sync(kAllLanes, cut.tokens, lane), __shfl_sync(kAllLanes, cut.units, lane)};
}

// By all lanes of a warp together.
class Walk {
 public:
  __device__ Walk(const Params& p, const i32* ends, const Cut& cut)
      : p_(p),
        ends_(ends),
        cut_(cut),
        units_(units_of(p.n)),
        block_units_(cut.units * Config::kCluster),
        blocks_(blocks_of(p, cut)) {
    look_at(0);
    u32 found = widths_here();
    for (i32 first = kWarpLanes; first < p.groups; first += kWarpLanes) {
      look_at(first);
      found |= widths_here();
    }
    widths_left_ = __reduce_or_sync(kAllLanes, found);
    if (first_group_ > 0) look_at(0);
    find();
  }

  __device__ bool done() const { return widths_left_ == 0; }

  __device__ void advance() {
    ++round_;
    find();
  }

  // The same for every lane.
  __device__ const Step& step() const { return step_; }

 private:
  static __device__ __forceinline__ i32 lane() { return threadIdx.x % kWarpLanes; }

  __device__ __forceinline__ i32 width() const {
    return 31 - __clz(static_cast<i32>(widths_left_));
  }

  // At 32 groups, one a lane.
  __device__ void look_at(i32 first_group) {
    first_group_ = first_group;
    const i32 g = first_group + lane();
    tiles_ = g < p_.groups ? tiles_of(tokens_of(p_, ends_, g), cut_.tokens) : Tiles{};
  }

  __device__ u32 widths_here() const { return tiles_.count > 0 ? 1u << tiles_.width : 0; }

  // On to the cluster's step of the round.
  __device__ void find() {
    const i32 clusters = static_cast<i32>(gridDim.x) / Config::kCluster;
    const i32 cluster = static_cast<i32>(blockIdx.x) / Config::kCluster;
    const i32 index = round_ * clusters + (round_ % 2 == 0 ? cluster : clusters - 1 - cluster);
    while (widths_left_ != 0) {
      const i32 steps = tiles_.count > 0 && tiles_.width == width() ? tiles_.count * blocks_ : 0;
      const i32 all = static_cast<i32>(__reduce_add_sync(kAllLanes, static_cast<u32>(steps)));
      if (index < before_ + all) {
        take(steps, index);
        return;
      }
      before_ += all;
      if (first_group_ + kWarpLanes < p_.groups) {
        look_at(first_group_ + kWarpLanes);
      } else {
        widths_left_ &= ~(1u << width());
        if (first_group_ > 0) look_at(0);
      }
    }
  }

  // `steps`: of the lane's group.
  __device__ void take(i32 steps, i32 index) {
    const i32 end = before_ + warp_inclusive_sum(steps, lane());
    const u32 owners = __ballot_sync(kAllLanes, index < end);
    const i32 owner = __ffs(static_cast<i32>(owners)) - 1;
    const i32 in_group = index - __shfl_sync(kAllLanes, end - steps, owner);
    const i32 count = __shfl_sync(kAllLanes, tiles_.count, owner);
    const i32 part = __shfl_sync(kAllLanes, tiles_.tokens, owner);
    i32 tile = 0;
    if (count > kTilesTogether) {
      tile = divided(in_group, kTilesTogether * blocks_) * kTilesTogether;
    }
    const i32 in_tiles = in_group - tile * blocks_, tiles = min(count - tile, kTilesTogether);
    const i32 block = tiles > 1 ? divided(in_tiles, tiles) : in_tiles;
    tile += in_tiles - block * tiles;
    const i32 group = first_group_ + owner;
    i64 row = static_cast<i64>(tile) * part;
    if (p_.max_m > 0) {
      row += group * p_.max_m;
    } else if (group > 0) {
      row += ends_[group - 1];
    }
    const i32 unit = block * block_units_;
    i32 tokens_copied = kWidths[0];
#pragma unroll
    for (i32 i = 1; i < kWidthCount; ++i) {
      if (width() == i) tokens_copied = kWidths[i];
    }
    step_ = {row,        group,
             unit,       min(units_ - unit, block_units_),
             cut_.units, min(tokens_of(p_, ends_, group) - tile * part, part),
             width(),    tokens_copied};
  }

  const Params& p_;
  const i32* ends_;
  Cut cut_;
  i32 units_;
  i32 block_units_;
  i32 blocks_;
  u32 widths_left_;  // a bit each; the highest one is being walked
  i32 round_ = 0;
  i32 before_ = 0;  // steps before those of the groups that are looked at
  i32 first_group_ = 0;
  Tiles tiles_{};  // of the lane's group
  Step step_{};
};

}  // namespace nibblas::sm90
