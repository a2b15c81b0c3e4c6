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
  __device__ explicit Multiplier(const Params& p) {
    const i32 warp = static_cast<i32>(threadIdx.x) / kWarpLanes;
    const i32 g = static_cast<i32>(threadIdx.x) % kWarpLanes / 4;
    const i32 t = static_cast<i32>(threadIdx.x) % 4;
    const i32 line = fragment_line(g);  // of fragment row g; row g + 8 is 8 lines later
    const bool blocked = p.w_scales.layout == ScaleLayout::kBlocked;
    weights_at_ = warp * kSetRows * kRowChunks + line * kRowChunks + weight_place(line, t);
    scales_at_ = warp * kSetScaleBytes;
    scales_at_ += blocked ? t / 2 * 64 + line / 4 * 16 + line % 4 * 4 + t % 2 * 2
                          : line * kStageBlocks + t * 2;
    scales_half_ = blocked ? kBlockedHalf : kLinearHalf;
    scales_step_ = blocked ? kBlockedStep : kLinearStep;
    for (i32 i = 0; i < 2; ++i) tokens_at_[i] = g * kStepChunks + token_place(g, 4 * t + i);
  }

  // Adds the stage's products for the warp's first kSets sets. Past K codes and scales are zeros;
  // what the columns of tokens that do not exist add up to is not stored.
  template <i32 kSets, i32 kTiles>
  __device__ __forceinline__ void add(const Stage& stage, Sums<kTiles> (&sums)[kSets]) const {
#pragma unroll
    for (i32 step = 0; step < kSteps; ++step) add_step<kSets, kTiles>(stage, step, sums);
  }

 private:
  // Of set i of the warp, one step: 8 words of codes and their scales.
  struct SetStep {
    Chunk low;
    Chunk high;
    ScalePairs low_scales;
    ScalePairs high_scales;
  };

  __device__ __forceinline__ SetStep load_step(const Stage& stage, i32 step, i32 set) const {
    // Chunk 4 * step + t of a line is in the place of chunk t with these bits flipped.
    const Chunk* weights = &stage.weights[set * Config::kWarps][0][0] + (weights_at_ ^ 4 * step);
    return {weights[0], weights[8 * kRowChunks], weight_scales(stage, step, set, 0),
            weight_scales(stage, step, set, 1)};
  }

  template <i32 kSets, i32 kTiles>
  __device__ __forceinline__ void add_step(const Stage& stage, i32 step,
                                           Sums<kTiles> (&sums)[kSets]) const {
    SetStep w[kSets];
#pragma unroll
    for (i32 set = 0; set < kSets; ++set) w[set] = load_step(stage, step, set);
#pragma unroll
    for (i32 word = 0; word < 4; ++word) {
      // Words 2 and 3 of a token lie 8 chunks after words 0 and 1: see token_place.
      const Chunk* tokens = &stage.tokens[step][0][0] + tokens_at_[word % 2] + word / 2 * 8;
      Chunk b[kTiles];
#pragma unroll
      for (i32 tile = 0; tile < kTiles; ++tile) b[tile] = tokens[8 * tile * kStepChunks];
#pragma unroll
      for (i32 set = 0; set < kSets; ++set) {
        const Pairs row_g =
            decode_pairs<Type>(w[set].low.word[word], w[set].low_scales.of[word / 2]);
        const Pairs row_g8 =
            decode_pairs<Type>(w[set].high.word[word], w[set].high_scales.of[word / 2]);
        const u32 a[2][4] = {{row_g.of[0], row_g8.of[0], row_g.of[1], row_g8.of[1]},
                             {row_g.of[2], row_g8.of[2], row_g.of[3], row_g8.of[3]}};
#pragma unroll
        for (i32 tile = 0; tile < kTiles; ++tile) {
          mma(sums[set].of[tile], a[0], b[tile].word[0], b[tile].word[1]);
          mma(sums[set].of[tile], a[1], b[tile].word[2], b[tile].word[3]);
        }
      }
    }
  }

  static_assert(kSteps <= 2, "a line's chunks are at most two steps'");

  static constexpr i32 kSetScaleBytes = kSetRows * kStageBlocks;

  // Bytes from a scale to the one 8 lines later, and to the next step's.
  static constexpr i32 kBlockedHalf = 32, kLinearHalf = 8 * kStageBlocks;
  static constexpr i32 kBlockedStep = 128, kLinearStep = 8;

  // The lane's two scales of row g (+ 8).
  __device__ __forceinline__ ScalePairs weight_scales(const Stage& stage, i32 step, i32 set,
                                                      i32 half) const {
    const u8* at = stage.weight_scales[set * Config::kWarps] + scales_at_ + half * scales_half_ +
                   step * scales_step_;
    return Type::scale_pairs(*reinterpret_cast<const u16*>(at));
  }

  // In chunks or bytes, from the warp's or the step's first.
  i32 weights_at_;
  i32 scales_at_;
  i32 scales_half_;
  i32 scales_step_;
  i32 tokens_at_[2];
};

}  // namespace nibblas::portable
