// The loop nest of every level and precision. One worker, one run of a group's weight rows:
//
//   for 96 tokens of the group        prepare: x -> fp32, or codes -> int8 + scales -> fp32
//     for 16 weight rows  (a tile)
//       for a chunk of K              decode: packed rows --> panel (fp32 or uint8, in L1)
//         for 4 or 8 rows
//           for 3 or 1 tokens         micro-kernel: panel x tokens --> [token][row][8 lanes] fp32
//       epilogue                      8 lanes --tree--> sum, factors, bias, cast --> out
//
// An accumulator is loaded and stored between chunks, never summed in between, so no bit of a
// result depends on how tokens, rows, chunks or workers are cut: only on K and on the token's type.
#pragma once

#include "epilogue.h"
#include "level.h"
#include "w4a16.h"
#include "w4a4.h"

namespace nibblas::cpu {

// Where the parts of a scratch buffer start.
template <class Kernel>
struct ScratchMap {
  i64 panel;
  i64 tokens;
  i64 total;

  explicit ScratchMap(const Group& group) {
    const i64 block = min_of(group.tokens, kTokenBlock);
    panel = round_up(accumulator_bytes(block), kScratchAlignment);
    tokens = panel + round_up(Kernel::panel_bytes(), kScratchAlignment);
    total = tokens + round_up(Kernel::token_bytes(block, group.k), kScratchAlignment);
  }
};

template <class V>
static void clear(float* accumulators, i64 tokens) {
  for (i64 i = 0; i < tokens * kTileRows; ++i) V::store(accumulators + i * kLanes, V::zero());
}

template <class V, class Kernel>
static void run_rows(const Group& group, i64 row_begin, i64 row_end, u8* scratch) {
  const ScratchMap<Kernel> map(group);
  float* accumulators = reinterpret_cast<float*>(scratch);
  Kernel kernel(group, scratch + map.panel, scratch + map.tokens);
  for (i64 token = 0; token < group.tokens; token += kTokenBlock) {
    Tile tile{0, 0, token, min_of(kTokenBlock, group.tokens - token)};
    kernel.prepare_tokens(tile);
    for (tile.row = row_begin; tile.row < row_end; tile.row += kTileRows) {
      tile.rows = min_of(kTileRows, row_end - tile.row);
      clear<V>(accumulators, tile.tokens);
      for (i64 k = 0; k < group.k; k += Kernel::kChunk) {
        const KRange range{k, min_of(Kernel::kChunk, group.k - k)};
        kernel.decode_weights(tile, range);
        kernel.multiply(tile, range, accumulators);
      }
      write_tile<V>(group, tile, accumulators);
    }
  }
}

template <class T>
struct KernelTag {
  using Kernel = T;
};

// Calls `use` with a tag of the kernel class that the group's tokens need.
template <class V, class Use>
static auto with_kernel(const Group& group, Use use) {
  switch (group.x_type) {
    case NIBBLAS_BFLOAT16:
      return use(KernelTag<W4A16<V, Bf16Tokens<V>>>{});
    case NIBBLAS_FLOAT16:
      return use(KernelTag<W4A16<V, Fp16Tokens<V>>>{});
    default:
      return use(KernelTag<W4A4<V>>{});
  }
}

template <class V>
static i64 level_scratch_bytes(const Group& group) {
  return with_kernel<V>(
      group, [&](auto tag) { return ScratchMap<typename decltype(tag)::Kernel>(group).total; });
}

template <class V>
static void level_run(const Group& group, i64 row_begin, i64 row_end, u8* scratch) {
  with_kernel<V>(group, [&](auto tag) {
    run_rows<V, typename decltype(tag)::Kernel>(group, row_begin, row_end, scratch);
  });
}

}  // namespace nibblas::cpu
