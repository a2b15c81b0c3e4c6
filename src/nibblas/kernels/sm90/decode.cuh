// Weights decoded in registers, as wgmma's register operand. Lane t of a quad takes 16 bytes of a
// row that lie together: k = 32t..32t+31 of a stage of 128. Each of its four words of 8 codes feeds
// two MMAs, so every MMA adds the 16 products of 4 k from each lane of the quad: the portable
// kernel's order. Tokens are put into that order beforehand (prepare_tokens.cu).
#pragma once

#include "../common/nvfp4_pairs.cuh"
#include "../common/ptx/shared_memory.cuh"
#include "shared.cuh"

namespace nibblas::sm90 {

#if NIBBLAS_CONFIG_BF16
using Type = Bf16;
#else
using Type = Fp16;
#endif

// A lane's part of a stage: 32 codes each of its rows g and g + 8, g = lane / 4, and their scales.
struct StageWeights {
  u32 low[4];
  u32 high[4];
  ScalePairs low_scales;
  ScalePairs high_scales;
};

// Of a word of each row: two of wgmma's A operands.
struct Fragments {
  u32 of[2][4];
};

// Reads and decodes a lane's part of its warpgroup's unit.
class Decoder {
 public:
  __device__ explicit Decoder(const Params& p) {
    const u32 lane = threadIdx.x % kWarpLanes, quarter = threadIdx.x / kWarpLanes % kGroupWarps;
    const u32 line = lane / 4, t = lane % 4, row = 16 * quarter + line;
    const bool blocked = p.w_scales.layout == ScaleLayout::kBlocked;
    // TMA's 64-byte swizzle moves 16-byte pieces of a row.
    codes_ = sizeof(Stage::tokens) + warpgroup() * kCodesBytes + row * kRowBytes +
             (t ^ row / 2 % 4) * 16;
    scales_ = sizeof(Stage::tokens) + sizeof(Stage::weights) + warpgroup() * kLinearScalesBytes +
              (blocked ? t / 2 * 256 + line * 16 + quarter * 4 + t % 2 * 2 : row * 16 + t * 2);
    next_stage_ = blocked ? 0 : 8;
  }

  // Of the stage that begins at `k`.
  __device__ __forceinline__ StageWeights load(u32 stage, i32 k) const {
    StageWeights loaded;
    ptx::ld_shared_v4(loaded.low, stage + codes_);
    ptx::ld_shared_v4(loaded.high, stage + codes_ + 8 * kRowBytes);
    const u32 scales = stage + scales_ + (k & kStageK ? next_stage_ : 0);
    loaded.low_scales = Type::scale_pairs(ptx::ld_shared_u16(scales));
    loaded.high_scales = Type::scale_pairs(ptx::ld_shared_u16(scales + 8 * 16));
    return loaded;
  }

 private:
  static constexpr u32 kRowBytes = kStageK / 2;

  u32 codes_;
  u32 scales_;
  u32 next_stage_;
};

static __device__ __forceinline__ Fragments decode(const StageWeights& weights, i32 word) {
  const Pairs low = decode_pairs<Type>(weights.low[word], weights.low_scales.of[word / 2]);
  const Pairs high = decode_pairs<Type>(weights.high[word], weights.high_scales.of[word / 2]);
  return {{{low.of[0], high.of[0], low.of[1], high.of[1]},
           {low.of[2], high.of[2], low.of[3], high.of[3]}}};
}

}  // namespace nibblas::sm90
