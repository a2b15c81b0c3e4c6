// From a filled stage to fp32 sums: weights decoded in registers, mma.sync m16n8k16.
//
// Weights are the MMA's 16-row operand, tokens its 8 columns. Lane t of a quad holds k =
// 32t..32t+31 of a step of 128; each of the lane's four words of 8 codes feeds two MMAs, so every
// MMA adds the 16 products of 4 k from each lane of the quad. That order depends on K alone.
#pragma once

#include "../common/ptx/mma.cuh"
#include "tokens.cuh"

namespace nibblas::portable {

// Sums of kTiles tiles of 8 tokens.
template <i32 kTiles>
struct Sums {
  // [8 tokens][row g: tokens 2t, 2t + 1; row g + 8: the same]
  float of[kTiles][4];
};

static __device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if NIBBLAS_CONFIG_BF16
  ptx::mma_m16n8k16_bf16(c, a, b0, b1);
#else
  ptx::mma_m16n8k16_f16(c, a, b0, b1);
#endif
}

class Multiplier {
 public:
  __device__ explicit Multiplier(const Params& p)
      : warp_(static_cast<i32>(threadIdx.x) / kWarpLanes) {
    const i32 g = static_cast<i32>(threadIdx.x) % kWarpLanes / 4;
    const i32 t = static_cast<i32>(threadIdx.x) % 4;
    const i32 line = fragment_line(g);  // of fragment row g; row g + 8 is 8 lines later
    const bool blocked = p.w_scales.layout == ScaleLayout::kBlocked;
    weights_at_ = line * kRowChunks + weight_place(line, t);
    scales_at_ = blocked ? t / 2 * 64 + line % 4 * 16 + line / 4 * 4 + t % 2 * 2
                         : line * kStageBlocks + t * 2;
    scales_half_ = blocked ? kBlockedHalf : kLinearHalf;
    for (i32 i = 0; i < 2; ++i) tokens_at_[i] = g * kStepChunks + token_place(g, 4 * t + i);
  }

  // Adds the stage's products. Past K codes and scales are zeros; what the columns of tokens that
  // do not exist add up to is not stored.
  template <i32 kTiles>
  __device__ __forceinline__ void add(const Stage& stage, Sums<kTiles>& sums) const {
#pragma unroll
    for (i32 step = 0; step < kSteps; ++step) add_step<kTiles>(stage, step, sums);
  }

 private:
  template <i32 kTiles>
  __device__ __forceinline__ void add_step(const Stage& stage, i32 step, Sums<kTiles>& sums) const {
    // Chunk 4 * step + t of a line is in the place of chunk t with these bits flipped.
    const Chunk* weights = &stage.weights[warp_][0][0] + (weights_at_ ^ 4 * step);
    const Chunk low = weights[0];
    const Chunk high = weights[8 * kRowChunks];
    const ScalePairs low_scales = weight_scales(stage, step, 0);
    const ScalePairs high_scales = weight_scales(stage, step, 1);
#pragma unroll
    for (i32 word = 0; word < 4; ++word) {
      const Pairs row_g = decode_pairs<Type>(low.word[word], low_scales.of[word / 2]);
      const Pairs row_g8 = decode_pairs<Type>(high.word[word], high_scales.of[word / 2]);
      const u32 a[2][4] = {{row_g.of[0], row_g8.of[0], row_g.of[1], row_g8.of[1]},
                           {row_g.of[2], row_g8.of[2], row_g.of[3], row_g8.of[3]}};
      // Words 2 and 3 of a token lie 8 chunks after words 0 and 1: see token_place.
      const Chunk* tokens = &stage.tokens[step][0][0] + tokens_at_[word % 2] + word / 2 * 8;
#pragma unroll
      for (i32 tile = 0; tile < kTiles; ++tile) {
        const Chunk b = tokens[8 * tile * kStepChunks];
        mma(sums.of[tile], a[0], b.word[0], b.word[1]);
        mma(sums.of[tile], a[1], b.word[2], b.word[3]);
      }
    }
  }

  static_assert(kSteps <= 2, "a line's chunks are at most two steps'");

  // Bytes from a scale to the one 8 lines later, and to the next step's.
  static constexpr i32 kBlockedHalf = 8, kLinearHalf = 8 * kStageBlocks;
  static constexpr i32 kBlockedStep = 128, kLinearStep = 8;

  // The lane's two scales of row g (+ 8).
  __device__ __forceinline__ ScalePairs weight_scales(const Stage& stage, i32 step,
                                                      i32 half) const {
    const i32 next_step = kBlockedHalf + kLinearHalf - scales_half_;
    static_assert(kSteps == 1 || (kBlockedStep == kLinearHalf && kLinearStep == kBlockedHalf),
                  "the layouts swap their steps: one register holds both");
    const u8* at = stage.weight_scales[warp_] + scales_at_ + half * scales_half_ + step * next_step;
    return Type::scale_pairs(*reinterpret_cast<const u16*>(at));
  }

  i32 warp_;
  // In chunks or bytes, from the warp's or the step's first.
  i32 weights_at_;
  i32 scales_at_;
  i32 scales_half_;
  i32 tokens_at_[2];
};

}  // namespace nibblas::portable
