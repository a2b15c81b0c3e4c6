// The multiplying warpgroups: weights decoded in registers, wgmma with the tokens, fp32 sums.
//
//   wgmma, a word's first 16 k  | runs
//   decode the next word        | runs
//   wgmma, its last 16 k        | runs
//   wait for the first one      |
//
// A word of codes is 32 values along K of the quad: two wgmma.
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
  ptx::wgmma_fence();
#if NIBBLAS_CONFIG_BF16
  ptx::Wgmma<kTokens>::bf16(sums.of, weights, tokens);
#else
  ptx::Wgmma<kTokens>::f16(sums.of, weights, tokens);
#endif
  ptx::wgmma_commit_group();
}

// The tokens of a stage's MMA: 32 bytes of each row of 128.
template <i32 kTokens>
static __device__ __forceinline__ u64 mma_tokens(u32 stage_sixteenth, i32 mma) {
  return ptx::wgmma_descriptor_128b(stage_sixteenth +
                                    (mma / 4 * kTokens * kTokenRowBytes + mma % 4 * 32) / 16);
}

// Sums over all of K of the warpgroup's unit of a step with its tokens.
template <i32 kTokens>
static __device__ __forceinline__ void multiply_unit(const Params& p, const Decoder& decoder,
                                                     RingPlace& place, Sums<kTokens>& sums) {
  constexpr i32 kWords = 4;
  const i32 k_end = static_cast<i32>(p.k);
#pragma unroll 1
  for (i32 k = 0; k < k_end; k += kStageK) {
    place.wait_until_full();
    const u32 tokens = place.stage() / 16;
    const StageWeights weights = decoder.load(place.stage(), k);
    Fragments next = decode(weights, 0);
#pragma unroll
    for (i32 word = 0; word < kWords; ++word) {
      const Fragments fragments = next;
      multiply_add<kTokens>(sums, fragments.of[0], mma_tokens<kTokens>(tokens, 2 * word));
      if (word + 1 < kWords) next = decode(weights, word + 1);
      multiply_add<kTokens>(sums, fragments.of[1], mma_tokens<kTokens>(tokens, 2 * word + 1));
      ptx::wgmma_wait_group<1>();
      // All of the stage before has been multiplied.
      if (word == 0) place.release_before_if(k > 0);
    }
    place.advance();
  }
  ptx::wgmma_wait_group<0>();
  place.release_before_if(true);
}

}  // namespace nibblas::sm90
