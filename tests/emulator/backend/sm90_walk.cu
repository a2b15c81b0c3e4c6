// For test_sm90_walk.py: each CTA, of one warp, writes the steps that it would take.
#include "walk.cuh"

namespace nibblas::sm90 {

constexpr i32 kStepWords = 7;
constexpr i32 kTilesWords = 3;

struct WalkParams {
  Params params;
  i32* steps;   // [kCuts, then the best][CTAs][room][kStepWords]
  i32* counts;  // [kCuts, then the best][CTAs]
  i32* best;    // [2]: tokens, units
  i64 room;
  i64 first;  // of the cuts that are walked
};

struct TilesParams {
  Params params;     // masked
  const i32* sizes;  // [CTAs][kWarpLanes] rows of a group
  i32* tiles;        // [kCuts][CTAs][kWarpLanes][kTilesWords]
};

static __device__ void write_steps(const WalkParams& to, Walk& at, const Cut& cut, i32 which) {
  const i64 cta = which * static_cast<i64>(gridDim.x) + blockIdx.x;
  i32 count = 0;
  at.begin(cut);
  for (; at.step().width > 0; at.next(), ++count) {
    const Step& step = at.step();
    if (threadIdx.x != 0 || count >= to.room) continue;
    i32* out = to.steps + (cta * to.room + count) * kStepWords;
    out[0] = step.token_row;
    out[1] = step.group;
    out[2] = step.first_unit;
    out[3] = step.units;
    out[4] = step.tokens;
    out[5] = step.width_index;
    out[6] = step.width;
  }
  if (threadIdx.x == 0) to.counts[cta] = count;
}

static __device__ void walk(const WalkParams& to) {
  __shared__ i32 ends[kMaxGroups];
  read_offs(to.params, [&](i32 group, i32 end) { ends[group] = end; });
  Walk at(to.params, ends);  // begun again for every cut
  for (i32 i = static_cast<i32>(to.first); i < kCutCount; ++i) write_steps(to, at, kCuts[i], i);
  const Cut best = BestCut(to.params).of(ends);
  write_steps(to, at, best, kCutCount);
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  to.best[0] = best.tokens;
  to.best[1] = best.units;
}

static __device__ void tiles(const TilesParams& to) {
  const i32 thread = static_cast<i32>(blockIdx.x * blockDim.x + threadIdx.x);
  for (i32 i = 0; i < kCutCount; ++i) {
    const Tiles found = tiles_of(to.params, to.sizes, thread, kCuts[i]);
    const i64 at = static_cast<i64>(i) * gridDim.x * blockDim.x + thread;
    to.tiles[at * kTilesWords] = found.count;
    to.tiles[at * kTilesWords + 1] = found.tokens;
    to.tiles[at * kTilesWords + 2] = found.width;
  }
}

}  // namespace nibblas::sm90

extern "C" {

__constant__ nibblas::u64 used_shared_bytes = sizeof(nibblas::sm90::Shared);

__global__ void __launch_bounds__(32) walk(const __grid_constant__ nibblas::sm90::WalkParams to) {
  nibblas::sm90::walk(to);
}

__global__ void __launch_bounds__(32) tiles(const __grid_constant__ nibblas::sm90::TilesParams to) {
  nibblas::sm90::tiles(to);
}
}
