// Sizes shared by the loop nest, the two precisions and the epilogue.
#pragma once

#include "group.h"

namespace nibblas::cpu {

// fp32 lanes of every (token, row) accumulator; a sum ends with one fixed tree over them.
constexpr i64 kLanes = 8;
// Weight rows decoded and multiplied together by the vector kernels.
constexpr i64 kTileRows = 16;
// Most tokens that share one decoding of a tile's weights in the vector kernels.
constexpr i64 kTokenBlock = 96;

static_assert(kTileRows % kLanes == 0, "the epilogue reduces 8 rows at a time");
static_assert(kTokenBlock % 3 == 0, "the w4a16 micro-kernels take 3 tokens at a time");

// Rows [row, row + rows) of a group's weights.
struct Tile {
  i64 row;
  i64 rows;
};

// Values [begin, begin + count) along K.
struct KRange {
  i64 begin;
  i64 count;
};

// What to prefetch while the values `k` of a tile are decoded: as many bytes of the next tile's
// rows, in the order of addresses, which is what the processor's own prefetcher can follow.
static inline const u8* next_tile(const Group& group, const Tile& tile, KRange k) {
  return group.w + (tile.row + kTileRows) * group.w_row_bytes + k.begin / 2 * kTileRows;
}

// Partial sums, [tokens][kTileRows][kLanes].
static constexpr i64 accumulator_bytes(i64 tokens) {
  return tokens * kTileRows * kLanes * static_cast<i64>(sizeof(float));
}

static inline float* accumulators_of(float* accumulators, i64 token, i64 row) {
  return accumulators + (token * kTileRows + row) * kLanes;
}

}  // namespace nibblas::cpu
