// One stage of the ring: kStageK values along K of a visit's sets of weight rows and of kTokens
// tokens.
//
//   weights   [set][line][kStageK / 32] 16 bytes: 32 codes
//   scales    [set] linear:  [16 lines][kStageK / 16]     blocked: [atom][4 lines] 16 bytes
//   tokens    [step of 128 k][token][16 chunks] 16 bytes: 8 values as 4 pairs
//
// Tokens come in whole tiles of 8; those that do not exist are zeros.
#pragma once

#include "cursor.cuh"

namespace nibblas::portable {

constexpr i32 kStep = 128;  // k per step: 4 lanes of a quad take 32 each
constexpr i32 kSteps = Config::kStageK / kStep;
constexpr i32 kChunkBytes = 16;
constexpr i32 kStepChunks = kStep * 2 / kChunkBytes;           // of a token's 16-bit values
constexpr i32 kRowChunks = Config::kStageK / 2 / kChunkBytes;  // of a row of codes
constexpr i32 kStageBlocks = Config::kStageK / static_cast<i32>(kScaleBlock);

static_assert(Config::kStageK % kStep == 0, "a step is what one decode of a lane's 16 bytes feeds");
static_assert(Config::kTokens % 8 == 0, "mma.m16n8k16 takes 8 tokens");

struct alignas(16) Chunk {
  u32 word[4];
};

struct alignas(1024) Stage {
  Chunk weights[kVisitSets][kSetRows][kRowChunks];
  u8 weight_scales[kVisitSets][kSetRows * kStageBlocks];
  Chunk tokens[kSteps][Config::kTokens][kStepChunks];
};

// The line of a set that an MMA's fragment row (0..15) is. 8 lanes read rows i and i + 1 together,
// 4 chunks each: their lines are those that weight_place puts in different banks.
static __device__ __forceinline__ i32 fragment_line(i32 i) {
  return kRowChunks % 8 == 0 ? (i & 8) | (i & 1) << 2 | (i & 7) >> 1 : i;
}

// Where chunk `chunk` of a line's codes goes: lines of 128 bytes as TMA's 128-byte swizzle has it.
static __device__ __forceinline__ i32 weight_place(i32 line, i32 chunk) {
  return kRowChunks % 8 == 0 ? chunk ^ (line % 8) : chunk;
}

// Where chunk `chunk` of a token's step goes, so that the 8 lanes that read together find it in 8
// banks of 16 bytes: transposed (the 4 chunks of a lane become 4 reads of neighbours), odd tokens
// in the other half.
static __device__ __forceinline__ i32 token_place(i32 token, i32 chunk) {
  return (chunk % 4 * 4 + chunk / 4) ^ ((token & 1) * 4);
}

}  // namespace nibblas::portable
