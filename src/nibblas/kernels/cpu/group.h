// One group's product, or that of a block of its tokens, with every address resolved: what the
// kernels work on.
#pragma once

#include "../common/scale_layout.h"
#include "abi.h"

namespace nibblas::cpu {

// Of prepared tokens and of scratch, in bytes: a cache line, and the widest register.
constexpr i64 kScratchAlignment = 64;

// Block scales of a matrix, and the row its first row has in them.
struct ScaleRows {
  const u8* bytes;
  i64 row_bytes;  // linear only
  i64 first_row;  // blocked only
  i64 k_blocks;
  bool blocked;
};

struct Group {
  i64 tokens;  // rows of x, > 0 wherever a kernel sees the group
  i64 n;
  i64 k;

  const u8* x;  // [tokens, K] bf16 or fp16, or [tokens, K/2] codes
  i64 x_row_bytes;
  i64 x_type;
  ScaleRows x_scales;  // E2M1 tokens only

  const u8* w;  // [n, K/2] codes
  i64 w_row_bytes;
  ScaleRows w_scales;

  const float* w_global;  // [segments], or null
  i64 segments;
  i64 segment_stride;      // elements
  const float* x_global;   // [1] or null
  const float* alpha;      // [1] or null
  const float* row_scale;  // [tokens] or null
  const u8* bias;          // [n] or null
  i64 bias_type;

  u8* out;
  i64 out_type;
  i64 out_row_stride;     // elements
  i64 out_column_stride;  // elements

  bool batch_invariant;
};

static constexpr i64 type_bytes(i64 type) { return type == NIBBLAS_FLOAT32 ? 4 : 2; }

// The product of tokens [begin, begin + count) alone.
static inline Group token_range(const Group& group, i64 begin, i64 count) {
  Group part = group;
  part.tokens = count;
  part.x += begin * group.x_row_bytes;
  if (group.x_scales.blocked) {
    part.x_scales.first_row += begin;
  } else if (group.x_scales.bytes != nullptr) {
    part.x_scales.bytes += begin * group.x_scales.row_bytes;
  }
  if (group.row_scale != nullptr) part.row_scale += begin;
  part.out += begin * group.out_row_stride * type_bytes(group.out_type);
  return part;
}

// Scales of four k-blocks lie together in both layouts: where those of a row begin, and how far it
// is to the next four.
static inline const u8* first_scales(const ScaleRows& scales, i64 row) {
  if (!scales.blocked) return scales.bytes + row * scales.row_bytes;
  return scales.bytes + blocked_offset(scales.first_row + row, 0, scales.k_blocks);
}
static inline i64 bytes_to_next_scales(const ScaleRows& scales) {
  return scales.blocked ? kAtomBytes : kAtomKBlocks;
}

// Copies `count` scales of `row` from `k_block` (a multiple of 4) on, without reading padding.
static inline void copy_scales(const ScaleRows& scales, i64 row, i64 k_block, i64 count, u8* to) {
  if (!scales.blocked) {
    __builtin_memcpy(to, scales.bytes + row * scales.row_bytes + k_block, count);
    return;
  }
  const u8* atom = scales.bytes + blocked_offset(scales.first_row + row, k_block, scales.k_blocks);
  i64 i = 0;
  for (; i + kAtomKBlocks <= count; i += kAtomKBlocks, atom += kAtomBytes) {
    __builtin_memcpy(to + i, atom, kAtomKBlocks);
  }
  for (i64 j = 0; i + j < count; ++j) to[i + j] = atom[j];
}

}  // namespace nibblas::cpu
