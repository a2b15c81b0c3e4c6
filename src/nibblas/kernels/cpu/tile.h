// Sizes shared by the loop nest, the two precisions and the epilogue, and the scratch they use.
#pragma once

#include "group.h"

namespace nibblas::cpu {

// fp32 lanes of every (token, row) accumulator; a sum ends with one fixed tree over them.
constexpr i64 kLanes = 8;
// Weight rows decoded and multiplied together; also the scheduler's unit.
constexpr i64 kTileRows = 16;
// Tokens that share one decoding of a tile's weights.
constexpr i64 kTokenBlock = 96;
constexpr i64 kScratchAlignment = 64;

static_assert(kTileRows % kLanes == 0, "the epilogue reduces 8 rows at a time");
static_assert(kTokenBlock % 3 == 0, "the w4a16 micro-kernel takes 3 tokens at a time");

// Rows [row, row + rows) of a group's weights times tokens [token, token + tokens).
struct Tile {
  i64 row;
  i64 rows;
  i64 token;
  i64 tokens;
};

// Values [begin, begin + count) along K.
struct KRange {
  i64 begin;
  i64 count;
};

// Partial sums, [tokens][kTileRows][kLanes].
static constexpr i64 accumulator_bytes(i64 tokens) {
  return tokens * kTileRows * kLanes * static_cast<i64>(sizeof(float));
}

static inline float* accumulators_of(float* accumulators, i64 token, i64 row) {
  return accumulators + (token * kTileRows + row) * kLanes;
}

}  // namespace nibblas::cpu
