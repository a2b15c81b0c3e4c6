// The steps of a launch, and which CTA takes which. Walked by the producer of each CTA, which tells
// the multiplying warps.
//
// A step is a tile of a group's tokens with a block of its weight rows: units that follow each
// other, one for each warpgroup or one alone. Tokens are cut into equal tiles of at most so many,
// and blocks have so many units (a Cut): whichever of kCuts should take the least time with the
// sizes that are found in offs.
//
// Until a CTA knows its first step it can do nothing else, and what its one warp does for that is a
// chain of instructions that wait for each other: so one scan, few divisions, and all that does not
// depend on offs before it is read.
//
//   steps    widest tiles first; of one width by group; of a group by kTilesTogether tiles of
//            tokens, block of rows, tile of these
//   round 0  CTA 0 takes step 0, CTA 1 step 1, ...
//   round 1  the other way round, so that who had a long step gets a short one; and so on
#pragma once

#include "../common/ptx/global_memory.cuh"
#include "shared.cuh"

namespace nibblas::sm90 {

struct Cut {
  i32 tokens;       // at most, of a tile
  i32 units;        // of a block: 1 or kMultiplyGroups
  float per_token;  // 1 / tokens
};

constexpr Cut kCuts[] = {NIBBLAS_CONFIG_CUTS};
constexpr i32 kCutCount = sizeof(kCuts) / sizeof(Cut);
constexpr i32 kMaxCuts = 8;
static_assert(kCutCount <= kMaxCuts, "a lane looks at one");
constexpr float kInfinity = 3.4e38f;
constexpr float kAlmostOne = 1 - 1.f / 4096;  // so that rounding does not add a tile

static __device__ __forceinline__ i32 ceil_div_i32(i32 a, i32 b) {
  return static_cast<i32>((static_cast<u32>(a) + static_cast<u32>(b) - 1) / static_cast<u32>(b));
}

// ceil(a / b) without a division, which takes three times as long. `per_b`: 1 / b, to 2^-22. The
// product is less than 1 / b off a / b, so cutting it off leaves the result or one less.
constexpr i32 kQuickBelow = 1 << 20;
static __device__ __forceinline__ i32 quick_ceil_div(i32 a, i32 b, float per_b) {
  const i32 quotient = static_cast<i32>(static_cast<float>(a) * per_b);
  return quotient + (quotient * b < a);
}

static __device__ __forceinline__ i32 units_of(i64 n) {
  return ceil_div_i32(static_cast<i32>(n), kUnitRows);
}

// Steps that are taken at once read some tiles of tokens and some blocks of weight rows: least with
// few tiles and many blocks, since a tile of 256 has 7 times the bytes of a block of 128 rows.
constexpr i32 kTilesTogether = 4;

// a / b, where b is 1 to kTilesTogether.
static __device__ __forceinline__ i32 divided_by_few(i32 a, i32 b) {
  static_assert(kTilesTogether == 4, "each of them");
  const i32 by_three = static_cast<i32>(__umulhi(static_cast<u32>(a), 0xAAAAAAABu) >> 1);
  return b == 3 ? by_three : a >> (b / 2);
}

// Blocks of weight rows.
static __device__ __forceinline__ i32 blocks_of(const Params& p, const Cut& cut) {
  const i32 units = units_of(p.n);
  return cut.units == 1 ? units : ceil_div_i32(units, kMultiplyGroups);
}

// Calls use(group, end) for every group: the row where it ends, clamped into [0, rows] and
// monotone, or how many rows of it are in use when masked. By one warp, a group each lane.
template <class Use>
static __device__ __forceinline__ void read_offs(const Params& p, const Use& use) {
  const i32 lane = lane_of_warp(), groups = static_cast<i32>(p.groups);
  const i32 most = static_cast<i32>(p.max_m > 0 ? p.max_m : p.rows);
  i32 before = 0;
#pragma unroll 1
  for (i32 first = 0; first < groups; first += kWarpLanes) {
    const i32 g = first + lane;
    i32 end = most;
    if (g < groups && p.offs != nullptr) end = ptx::ld_relaxed_gpu_i32(p.offs + g);
    end = max(0, min(end, most));
    if (p.max_m == 0) {
      end = max(end, before);
      if (!__all_sync(kAllLanes, end >= __shfl_up_sync(kAllLanes, end, 1))) {
        end = warp_inclusive_max(end, lane);
      }
      before = __shfl_sync(kAllLanes, end, kWarpLanes - 1);
    }
    if (g < groups) use(g, end);
  }
  __syncwarp();
}

// A group's tokens as tiles.
struct Tiles {
  i32 first_row;
  i32 rows;  // of all
  i32 count;
  i32 tokens;  // of each but the last
  i32 width;   // which of kWidths
};

static __device__ __forceinline__ Tiles tiles_of(const Params& p, const i32* ends, i32 group,
                                                 const Cut& cut) {
  const i32 before = p.max_m > 0 || group == 0 ? 0 : ends[group - 1];
  const i32 rows = ends[group] - before;
  Tiles tiles{before, rows, rows > 0, rows, 0};
  if (rows > cut.tokens) {
    if (rows < kQuickBelow) {
      tiles.count = quick_ceil_div(rows, cut.tokens, cut.per_token);
      tiles.tokens =
          quick_ceil_div(rows, tiles.count, __fdividef(1, static_cast<float>(tiles.count)));
    } else {
      tiles.count = ceil_div_i32(rows, cut.tokens);
      tiles.tokens = ceil_div_i32(rows, tiles.count);
    }
  }
#pragma unroll
  for (i32 i = 0; i < kWidthCount - 1; ++i) tiles.width += tiles.tokens > kWidths[i];
  return tiles;
}

// Of kCuts, the one that should take least time: by a warp, a way by every eighth lane.
class BestCut {
 public:
  // All that is known before offs.
  __device__ __forceinline__ explicit BestCut(const Params& p)
      : groups_(static_cast<i32>(p.groups)), packed_(p.max_m == 0) {
    const i32 way = lane_of_warp() % kMaxCuts;
    cut_ = kCuts[0];
#pragma unroll
    for (i32 i = 1; i < kCutCount; ++i) {
      if (way == i) cut_ = kCuts[i];
    }
    blocks_ = static_cast<float>(blocks_of(p, cut_));
    ctas_ = static_cast<float>(gridDim.x);
    per_ctas_ = __fdividef(1, ctas_);
    // Of 16 values along K of all of a CTA's units; a warpgroup alone does not fill the tensor
    // cores.
    per_cost_ = static_cast<float>(static_cast<i32>(p.k) / 16) *
                (cut_.units == 1 ? Config::kAloneCost : static_cast<float>(kMultiplyGroups));
  }

  __device__ __forceinline__ Cut of(const i32* ends) const {
    const u32 time = __float_as_uint(time_of(ends));  // ordered as the floats: none is negative
    const u32 fastest = __ballot_sync(kAllLanes, time == __reduce_min_sync(kAllLanes, time));
    const i32 lane = __ffs(static_cast<i32>(fastest)) - 1;
    return {__shfl_sync(kAllLanes, cut_.tokens, lane), __shfl_sync(kAllLanes, cut_.units, lane),
            __shfl_sync(kAllLanes, cut_.per_token, lane)};
  }

 private:
  // About how long a launch takes that is cut so, in cycles, but for rounding tiles up to widths.
  // The lanes of a way share the groups.
  __device__ __forceinline__ float time_of(const i32* ends) const {
    float tiles = 0, rows = 0, cost = 0, most = 0, least = kInfinity;
#pragma unroll 1
    for (i32 g = lane_of_warp() / kMaxCuts; g < groups_; g += kWarpLanes / kMaxCuts) {
      const float tokens =
          static_cast<float>(ends[g] - (packed_ && g > 0 ? ends[max(g - 1, 0)] : 0));
      if (tokens == 0) continue;
      const float of_group = floorf(tokens * cut_.per_token + kAlmostOne);
      const float width = fmaxf(__fdividef(tokens, of_group), kWidths[0]);
      const float of_tile = fmaxf(Config::kDecodeCycles + Config::kTokenCycles * width,
                                  Config::kTensorCycles * width);
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
    const float steps = blocks_ * tiles;
    if (steps <= ctas_) return per_cost_ * most;
    const float outputs = blocks_ * rows * Config::kStepTokenCycles + steps * Config::kStepCycles;
    const float all = blocks_ * cost * per_cost_ + outputs;
    // Who takes one step more than others, or a longer one, is half a step late on average.
    const float late = all * per_ctas_ + __fdividef(all, 2 * steps);
    return fmaxf(late, ceilf(__fdividef(steps, ctas_)) * least * per_cost_);
  }

  i32 groups_;
  bool packed_;
  Cut cut_{};  // the lane's
  float blocks_;
  float ctas_;
  float per_ctas_;
  float per_cost_;
};

// By all lanes of a warp together.
class Walk {
 public:
  __device__ Walk(const Params& p, const i32* ends)
      : p_(p), ends_(ends), groups_(static_cast<i32>(p.groups)), units_(units_of(p.n)) {}

  // At the CTA's first step of a launch that is cut so.
  __device__ __forceinline__ void begin(const Cut& cut) {
    cut_ = cut;
    blocks_ = blocks_of(p_, cut);
    widths_left_ = (1u << kWidthCount) - 1;
    widths_seen_ = 0;
    round_ = before_ = first_group_ = 0;
    looked_at_ = -1;
    find();
  }

  // On to the next.
  __device__ __forceinline__ void next() {
    ++round_;
    find();
  }

  // The same for every lane.
  __device__ const Step& step() const { return step_; }

 private:
  __device__ __forceinline__ i32 width() const {
    return 31 - __clz(static_cast<i32>(widths_left_));
  }

  // At 32 groups, one a lane.
  __device__ __forceinline__ void look() {
    looked_at_ = first_group_;
    const i32 g = first_group_ + lane_of_warp();
    tiles_ = g < groups_ ? tiles_of(p_, ends_, g, cut_) : Tiles{};
    if (tiles_.count > 0) widths_seen_ |= 1u << tiles_.width;
  }

  // The step of the round.
  __device__ __forceinline__ void find() {
    const i32 ctas = static_cast<i32>(gridDim.x), cta = static_cast<i32>(blockIdx.x);
    const i32 index = round_ * ctas + (round_ % 2 == 0 ? cta : ctas - 1 - cta);
    step_.width = 0;
#pragma unroll 1
    while (widths_left_ != 0) {
      if (looked_at_ != first_group_) look();
      const i32 steps = tiles_.count > 0 && tiles_.width == width() ? tiles_.count * blocks_ : 0;
      const i32 end = before_ + warp_inclusive_sum(steps, lane_of_warp());
      const u32 owners = __ballot_sync(kAllLanes, index < end);
      if (owners != 0) {
        take(__ffs(static_cast<i32>(owners)) - 1, index - (end - steps));
        return;
      }
      before_ = __shfl_sync(kAllLanes, end, kWarpLanes - 1);
      first_group_ += kWarpLanes;
      if (first_group_ < groups_) continue;
      first_group_ = 0;
      // Once all groups have been looked at, it is known which widths there are.
      widths_left_ &= __reduce_or_sync(kAllLanes, widths_seen_) & ~(1u << width());
    }
  }

  // Of the owner's group; `index_here`: what the step's index would be in the lane's group.
  __device__ __forceinline__ void take(i32 owner, i32 index_here) {
    const i32 index = __shfl_sync(kAllLanes, index_here, owner);
    const i32 count = __shfl_sync(kAllLanes, tiles_.count, owner);
    const i32 part = __shfl_sync(kAllLanes, tiles_.tokens, owner);
    const i32 rows = __shfl_sync(kAllLanes, tiles_.rows, owner);
    const i32 first_row = __shfl_sync(kAllLanes, tiles_.first_row, owner);
    i32 tile = 0;
    if (count > kTilesTogether) {
      const u32 together = static_cast<u32>(kTilesTogether * blocks_);
      tile = static_cast<i32>(static_cast<u32>(index) / together) * kTilesTogether;
    }
    const i32 in_tiles = index - tile * blocks_, tiles = min(count - tile, kTilesTogether);
    const i32 block = divided_by_few(in_tiles, tiles);
    tile += in_tiles - block * tiles;
    step_.group = first_group_ + owner;
    step_.token_row = first_row + tile * part + step_.group * static_cast<i32>(p_.max_m);
    step_.first_unit = block * cut_.units;
    step_.units = min(units_ - step_.first_unit, cut_.units);
    step_.tokens = min(rows - tile * part, part);
    step_.width_index = width();
    step_.width = kWidths[0];
#pragma unroll
    for (i32 i = 1; i < kWidthCount; ++i) {
      if (step_.width_index == i) step_.width = kWidths[i];
    }
  }

  const Params& p_;
  const i32* ends_;
  i32 groups_;
  i32 units_;
  Cut cut_{};
  i32 blocks_ = 0;
  u32 widths_left_ = 0;  // a bit each; the highest one is being walked
  u32 widths_seen_ = 0;  // by the lane
  i32 round_ = 0;
  i32 before_ = 0;  // steps before those of the groups that are looked at
  i32 first_group_ = 0;
  i32 looked_at_ = -1;
  Tiles tiles_{};  // of the lane's group
  Step step_{};
};

}  // namespace nibblas::sm90
