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
constexpr i64 kCacheLine = 64;
constexpr i64 kScratchAlignment = kCacheLine;

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

static inline void prefetch_bytes(const u8* from, i64 bytes) {
  for (i64 i = 0; i < bytes; i += kCacheLine) (void)0;
}

// Asks for what a row's place in the panel will need next: the codes of the row's next chunk of
// `chunk` values or, at the end of K, the first codes and the scales of the next tile's row. Rows
// are too far apart, and visits to them too short, for the processor's own prefetching.
static inline void prefetch_weights(const Group& group, i64 row, KRange k, i64) {
  row += kTileRows;
  if (row >= group.n) return;
  prefetch_bytes(group.w + row * group.w_row_bytes + k.begin / 2, k.count / 2);
  if (k.begin == 0 && !group.w_scales.blocked) {
    prefetch_bytes(group.w_scales.bytes + row * group.w_scales.row_bytes, group.k / kScaleBlock);
  }
}

}  // namespace nibblas::cpu
