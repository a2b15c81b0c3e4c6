// Where a block scale lies. Linear: row-major [rows, K/16]. Blocked 128x4: atoms of 128 rows x 4
// k-blocks = 512 bytes, K atoms contiguous, rows padded to 128 and k-blocks to 4; the layout that
// cuBLAS calls "1D block scaling factors" and PyTorch SWIZZLE_32_4_4.
#pragma once

#include "types.h"

namespace nibblas {

constexpr i64 kAtomRows = 128;
constexpr i64 kAtomKBlocks = 4;
constexpr i64 kAtomBytes = kAtomRows * kAtomKBlocks;

static_assert(kAtomBytes == 512, "tcgen05.cp.32x128b copies one atom");

NIBBLAS_HD static constexpr i64 padded_rows(i64 rows) { return round_up(rows, kAtomRows); }
NIBBLAS_HD static constexpr i64 padded_k_blocks(i64 k_blocks) {
  return round_up(k_blocks, kAtomKBlocks);
}

// Byte offset of the scale of (row, k_block) in a blocked buffer of `k_blocks` logical k-blocks.
NIBBLAS_HD static constexpr i64 blocked_offset(i64 row, i64 k_block, i64 k_blocks) {
  const i64 atom = row / kAtomRows * ceil_div(k_blocks, kAtomKBlocks) + k_block / kAtomKBlocks;
  const i64 row_in_atom = row % kAtomRows;
  return atom * kAtomBytes + row_in_atom % 32 * 16 + row_in_atom / 32 * 4 + k_block % kAtomKBlocks;
}

// Which multiple of 128 rows the scales of a token group start at.
enum class GroupStart : i32 {
  kTorch = 0,       // packed: each group right after the padded rows of the one before
  kFlashInfer = 1,  // packed: a function of the group's first row alone
  kStacked = 2,     // masked: every group has room for max_m rows
};

// First scale row of group `group`, whose tokens start at row `first_row`. `torch_start` is the sum
// of padded_rows(m) of the groups before it; `max_m` the rows reserved per group when masked.
NIBBLAS_HD static constexpr i64 group_start_row(GroupStart rule, i64 group, i64 first_row,
                                                i64 torch_start, i64 max_m) {
  switch (rule) {
    case GroupStart::kTorch:
      return torch_start;
    case GroupStart::kFlashInfer:
      return (first_row + (kAtomRows - 1) * group) / kAtomRows * kAtomRows;
    case GroupStart::kStacked:
      return group * padded_rows(max_m);
  }
  return 0;
}

}  // namespace nibblas
