// From a filled stage to fp32 sums: decode in registers, mma.sync m16n8k16.
//
// Weights are the MMA's 16-row operand, tokens its 8 columns. Lane t of a quad holds k =
// 32t..32t+31 of a step of 128; each of the lane's four words of 8 codes feeds two MMAs, so every
// MMA adds the 16 products of 4 k from each lane of the quad. That order depends on K alone.
#pragma once

#include "../common/nvfp4_pairs.cuh"
#include "../common/ptx/mma.cuh"
#include "stage.cuh"

namespace nibblas::portable {

constexpr i32 kTokenTiles = Config::kTokens / 8;

#if NIBBLAS_CONFIG_BF16
using Type = Bf16;
#else
using Type = Fp16;
#endif

struct Sums {
  // [8 tokens][row g: tokens 2t, 2t + 1; row g + 8: the same]
  float of[kTokenTiles][4];
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
      : p_(p),
        warp_(static_cast<i32>(threadIdx.x) / kWarpLanes),
        g_(static_cast<i32>(threadIdx.x) % kWarpLanes / 4),
        t_(static_cast<i32>(threadIdx.x) % 4) {}

  // Adds the stage's products for the tokens at hand. Token tiles are taken in powers of two, so
  // that each count is straight-line code; what a tile without tokens computes is not stored.
  __device__ void multiply(const Cursor& at, const Stage& stage, Sums& sums) const {
    const i32 tokens = at.tokens();
    if (kTokenTiles == 1 || tokens <= 8) return multiply_tiles<1>(at, stage, sums);
    if (kTokenTiles == 2 || tokens <= 16) return multiply_tiles<2>(at, stage, sums);
    if (kTokenTiles == 4 || tokens <= 32) return multiply_tiles<4>(at, stage, sums);
    multiply_tiles<kTokenTiles>(at, stage, sums);
  }

 private:
  template <i32 kTiles>
  __device__ __forceinline__ void multiply_tiles(const Cursor& at, const Stage& stage,
                                                 Sums& sums) const {
#pragma unroll
    for (i32 step = 0; step < kSteps; ++step) {
      if (Config::kAligned || at.k() + step * kStep < p_.k) {
        multiply_step<kTiles>(at, stage, step, sums);
      }
    }
  }

  template <i32 kTiles>
  __device__ __forceinline__ void multiply_step(const Cursor& at, const Stage& stage, i32 step,
                                                Sums& sums) const {
    const i32 blocks_left = blocks_from(at.k() + step * kStep);
    const i32 lane = 4 * g_ + t_;
    const Chunk low = stage.weights[warp_][step][0][lane];
    const Chunk high = stage.weights[warp_][step][1][lane];
    const ScalePairs low_scales = scale_pairs(weight_scales(stage, step, 0), blocks_left);
    const ScalePairs high_scales = scale_pairs(weight_scales(stage, step, 1), blocks_left);
#pragma unroll
    for (i32 word = 0; word < 4; ++word) {
      const Pairs row_g = decode_pairs<Type>(low.word[word], low_scales.of[word / 2]);
      const Pairs row_g8 = decode_pairs<Type>(high.word[word], high_scales.of[word / 2]);
      const u32 a[2][4] = {{row_g.of[0], row_g8.of[0], row_g.of[1], row_g8.of[1]},
                           {row_g.of[2], row_g8.of[2], row_g.of[3], row_g8.of[3]}};
#pragma unroll
      for (i32 tile = 0; tile < kTiles; ++tile) {
        const Pairs b = token_pairs(stage, step, tile, word, blocks_left);
        mma(sums.of[tile], a[0], b.of[0], b.of[1]);
        mma(sums.of[tile], a[1], b.of[2], b.of[3]);
      }
    }
  }

  // Block scales that exist from the lane's first one on: padding must not be multiplied.
  __device__ i32 blocks_from(i64 k) const {
    if constexpr (Config::kAligned) return 2;
    return static_cast<i32>(min_of(p_.k / kScaleBlock - k / kScaleBlock - 2 * t_, 2));
  }

  // The lane's two scale bytes of row g (+ 8).
  __device__ u32 weight_scales(const Stage& stage, i32 step, i32 half) const {
    const u8* scales = stage.weight_scales[warp_];
    const i32 row = g_ + 8 * half;
    const i32 offset = p_.w_scales.layout == ScaleLayout::kBlocked
                           ? (2 * step + t_ / 2) * 64 + row % 4 * 16 + row / 4 * 4 + t_ % 2 * 2
                           : row * kStageBlocks + step * 8 + t_ * 2;
    return *reinterpret_cast<const u16*>(scales + offset);
  }

  // Zero for blocks that do not exist: what their bytes hold might be NaN.
  static __device__ __forceinline__ ScalePairs scale_pairs(u32 two_bytes, i32 blocks_left) {
    ScalePairs scales = Type::scale_pairs(two_bytes);
    if constexpr (!Config::kAligned) {
      if (blocks_left < 1) scales.of[0] = 0;
      if (blocks_left < 2) scales.of[1] = 0;
    }
    return scales;
  }

  // Tokens past the group's end hold whatever the stage held before: their columns of the product
  // are not stored, and columns do not mix.
  __device__ Pairs token_pairs(const Stage& stage, i32 step, i32 tile, i32 word,
                               i32 blocks_left) const {
    const i32 token = 8 * tile + g_;
    if constexpr (Config::kNvfp4Tokens) {
      const u32 bytes =
          *reinterpret_cast<const u16*>(&stage.token_scales[token][step * 8 + t_ * 2]);
      const ScalePairs scales = scale_pairs(bytes, blocks_left);
      return decode_pairs<Type>(stage.tokens[step][token][t_].word[word], scales.of[word / 2]);
    } else {
      const Chunk values = stage.tokens[step][token][token_place(token, 4 * t_ + word)];
      return interleave_pairs(values.word[0], values.word[1], values.word[2], values.word[3]);
    }
  }

  const Params& p_;
  i32 warp_;
  i32 g_;
  i32 t_;
};

}  // namespace nibblas::portable
