// One stage of the ring: kStageK values along K of 128 weight rows and of kTokens tokens.
//
//   weights   [warp][step of 128 k][fragment half][lane] 16 bytes: a lane's 32 codes of one row
//   scales    [warp] linear:  [16 rows][kStageK / 16]      blocked: [atom][4 lines] 16 bytes
//   tokens    16-bit: [step][token][16 chunks] 16 bytes    NVFP4:   [step][token][4 lanes] 16 bytes
//   t.scales  [token][kStageK / 16]                        (NVFP4 tokens only)
//
// Warp w's 16 fragment rows are rows 4w..4w+3 of each 32-row quarter of the tile: exactly the rows
// whose blocked scales share 16-byte lines.
#pragma once

#include "cursor.cuh"

namespace nibblas::portable {

constexpr i32 kThreads = Config::kWarps * kWarpLanes;
constexpr i32 kStep = 128;  // k per step: 4 lanes of a quad take 32 each
constexpr i32 kSteps = Config::kStageK / kStep;
constexpr i32 kChunkBytes = 16;
constexpr i32 kStageBlocks = Config::kStageK / static_cast<i32>(kScaleBlock);

static_assert(Config::kWarps == 8, "blocked scales: 8 warps of 4 rows make one 32-row quarter");
static_assert(Config::kStageK % kStep == 0, "a step is what one decode of a lane's 16 bytes feeds");
static_assert(Config::kTokens % 8 == 0, "mma.m16n8k16 takes 8 tokens");

struct alignas(16) Chunk {
  u32 word[4];
};

struct Stage {
  Chunk weights[Config::kWarps][kSteps][2][kWarpLanes];
  u8 weight_scales[Config::kWarps][16 * kStageBlocks];
  Chunk tokens[kSteps][Config::kTokens][Config::kNvfp4Tokens ? 4 : 16];
  u8 token_scales[Config::kNvfp4Tokens ? Config::kTokens : 1][kStageBlocks];
};

// Offsets of its members (NVRTC has no offsetof).
constexpr u32 kWeightScalesAt = sizeof(Stage::weights);
constexpr u32 kTokensAt = kWeightScalesAt + sizeof(Stage::weight_scales);
constexpr u32 kTokenScalesAt = kTokensAt + sizeof(Stage::tokens);
static_assert(kTokensAt % alignof(Chunk) == 0 &&
                  round_up(kTokenScalesAt + sizeof(Stage::token_scales), alignof(Chunk)) ==
                      sizeof(Stage),
              "members lie back to back");

// Where chunk `chunk` of a 16-bit token's step goes, so that the 8 lanes that read together find it
// in 8 banks of 16 bytes: transposed (the 4 chunks of a lane become 4 reads of neighbours), odd
// tokens in the other half.
static __device__ __forceinline__ i32 token_place(i32 token, i32 chunk) {
  return (chunk % 4 * 4 + chunk / 4) ^ ((token & 1) * 4);
}

// Row within the tile of fragment row i (0..15) of a warp.
static __device__ __forceinline__ i32 tile_row(i32 warp, i32 i) {
  return 32 * (i / 4) + 4 * warp + i % 4;
}

}  // namespace nibblas::portable
