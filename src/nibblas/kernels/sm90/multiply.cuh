// The multiplying warpgroups: weights decoded in registers, wgmma with the tokens, fp32 sums.
//
//   wait until the MMAs of the piece before last are complete: they have read their operands
//   decode a piece of 32 k        | the MMAs of the piece before run, and other warpgroups'
//   wgmma with its first 16 k     |
//   wgmma with its last 16 k      |
#pragma once

#include "../common/ptx/wgmma.cuh"
#include "decode.cuh"
#include "walk.cuh"

namespace nibblas::sm90 {

template <i32 kTokens>
struct Sums {
  // [8 tokens][row g: tokens 2t, 2t + 1; row g + 8: the same]
  float of[kTokens / 2];
};

template <i32 kTokens>
static __device__ __forceinline__ void multiply_add(Sums<kTokens>& sums, const u32 (&weights)[4],
                                                    u64 tokens) {
#if NIBBLAS_CONFIG_BF16
  ptx::Wgmma<kTokens>::bf16(sums.of, weights, tokens);
#else
  ptx::Wgmma<kTokens>::f16(sums.of, weights, tokens);
#endif
}

// From a stage's tokens to those of one of its MMAs, 32 bytes of each row of 128; in 16 bytes.
template <i32 kTokens>
static __device__ constexpr u32 tokens_of_mma(i32 mma) {
  return (mma / 4 * kTokens * kTokenRowBytes + mma % 4 * 32) / 16;
}

// Sums over all of K of the warpgroup's unit of a step with its tokens. The last stage is not
// released.
template <i32 kTokens>
static __device__ __forceinline__ void multiply_unit(const Params& p, Decoder& decoder,
                                                     RingPlace& place, Sums<kTokens>& sums) {
  constexpr i32 kPieces = 4;
  const i32 k_end = static_cast<i32>(p.k);
  i32 k = 0;
#pragma unroll 1
  do {  // K is positive
    place.wait_until_full();
    const u32 stage = place.stage();
    // The same for all lanes, which ptxas cannot know: descriptors are made in uniform registers.
    const u64 tokens = ptx::wgmma_descriptor_128b(__shfl_sync(kAllLanes, stage / 16, 0));
    const StageScales scales = decoder.load_scales(stage);
    Codes codes = decoder.load(stage, 0);
#pragma unroll
    for (i32 piece = 0; piece < kPieces; ++piece) {
      // All of the stage before has been multiplied.
      if (piece == 1) place.release_before_if(k > 0);
      const Fragments fragments = decoder.decode(codes, scales, piece);
      if (piece + 1 < kPieces) codes = decoder.load(stage, piece + 1);
      ptx::wgmma_fence();
      multiply_add<kTokens>(sums, fragments.of[0], tokens + tokens_of_mma<kTokens>(2 * piece));
      multiply_add<kTokens>(sums, fragments.of[1], tokens + tokens_of_mma<kTokens>(2 * piece + 1));
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<1>();
    }
    place.advance();
    k += kStageK;
  } while (k < k_end);
  ptx::wgmma_wait_group<0>();
}

}  // namespace nibblas::sm90
