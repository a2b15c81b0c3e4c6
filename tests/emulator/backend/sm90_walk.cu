// For test_sm90_walk.py: each CTA, of one warp, writes the steps that it would take.
#include "walk.cuh"

namespace nibblas::sm90 {

constexpr i32 kStepWords = 8;

struct WalkParams {
  Params params;
  i32* steps;   // [kCuts, then the best][CTAs][room][kStepWords]
  i32* counts;  // [kCuts, then the best][CTAs]
  i32* best;    // [2]: tokens, units
  i64 room;
};

static __device__ void write_steps(const WalkParams& to, const i32* ends, const Cut& cut,
                                   i32 which) {
  const i64 cta = which * static_cast<i64>(gridDim.x) + blockIdx.x;
  i32 count = 0;
  for (Walk at(to.params, ends, cut); !at.done(); at.advance(), ++count) {
    const Step& step = at.step();
    if (threadIdx.x != 0 || count >= to.room) continue;
    i32* out = to.steps + (cta * to.room + count) * kStepWords;
    out[0] = static_cast<i32>(step.token_row);
    out[1] = step.group;
    out[2] = step.first_unit;
    out[3] = step.units;
    out[4] = step.cta_units;
    out[5] = step.tokens;
    out[6] = step.width_index;
    out[7] = step.width;
  }
  if (threadIdx.x == 0) to.counts[cta] = count;
}

static __device__ void walk(const WalkParams& to) {
  __shared__ i32 ends[kMaxGroups];
  read_offs(to.params, ends);
  for (i32 i = 0; i < kCutCount; ++i) write_steps(to, ends, kCuts[i], i);
  const Cut best = best_cut(to.params, ends);
  write_steps(to, ends, best, kCutCount);
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  to.best[0] = best.tokens;
  to.best[1] = best.units;
}

}  // namespace nibblas::sm90

extern "C" __global__ void __launch_bounds__(32)
    walk(const __grid_constant__ nibblas::sm90::WalkParams to) {
  nibblas::sm90::walk(to);
}
