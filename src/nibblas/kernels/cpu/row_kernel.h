// The loop nest of the vector levels and both precisions. One worker, one run of weight rows times
// up to 96 tokens, which some worker has prepared: x -> fp32, or codes -> int8 and scales -> fp32.
//
//     for 16 weight rows  (a tile)
//       for a chunk of K              decode: packed rows --> panel (fp32 or int8, in L1)
//         for a few tokens
//           for a few rows            micro-kernel: panel x tokens --> [token][row][8 lanes] fp32
//       epilogue                      8 lanes --tree--> sum, factors, bias, cast --> out
//
// An accumulator is loaded and stored between chunks, never summed in between, so no bit of a
// result depends on how tokens, rows, chunks or workers are cut: only on K and on the token's type.
#pragma once

#include "epilogue.h"
#include "level.h"
#include "tile.h"

namespace nibblas::cpu {

// Where the parts of a scratch buffer start; accumulators come first.
template <class Kernel>
struct ScratchMap {
  i64 panel;
  i64 total;

  explicit ScratchMap(const Group& group)
      : panel(round_up(accumulator_bytes(group.tokens), kScratchAlignment)),
        total(panel + round_up(Kernel::panel_bytes(), kScratchAlignment)) {}
};

template <class V>
static void clear(float* accumulators, i64 tokens) {
  for (i64 i = 0; i < tokens * kTileRows; ++i) V::store(accumulators + i * kLanes, V::zero());
}

template <class V>
static void write_tile(const Group& group, const Tile& tile, const float* accumulators) {
  const TileColumns columns = load_columns(group, tile);
  for (i64 t = 0; t < group.tokens; ++t) {
    for (i64 r = 0; r < tile.rows; r += kLanes) {
      const typename V::F32 sums = V::reduce_rows(accumulators + (t * kTileRows + r) * kLanes);
      write_columns<V>(group, tile, columns, t, r, sums);
    }
  }
}

template <class V, class Kernel>
static void run_rows(const Group& group, const u8* prepared, i64 row_begin, i64 row_end,
                     u8* scratch) {
  const ScratchMap<Kernel> map(group);
  float* accumulators = reinterpret_cast<float*>(scratch);
  Kernel kernel(group, prepared, scratch + map.panel);
  for (Tile tile{row_begin, 0}; tile.row < row_end; tile.row += kTileRows) {
    tile.rows = min_of(kTileRows, row_end - tile.row);
    clear<V>(accumulators, group.tokens);
    for (i64 k = 0; k < group.k; k += Kernel::kChunk) {
      const KRange range{k, min_of(Kernel::kChunk, group.k - k)};
      kernel.decode_weights(tile, range);
      kernel.multiply(tile, range, accumulators);
    }
    write_tile<V>(group, tile, accumulators);
  }
}

template <class T>
struct KernelTag {
  using Kernel = T;
};

// Calls `use` with a tag of the kernel class that the group's tokens need, of those that a level's
// `Kernels` names.
template <class Kernels, class Use>
static auto with_kernel(const Group& group, Use use) {
  switch (group.x_type) {
    case NIBBLAS_BFLOAT16:
      return use(KernelTag<typename Kernels::Bf16>{});
    case NIBBLAS_FLOAT16:
      return use(KernelTag<typename Kernels::Fp16>{});
    default:
      return use(KernelTag<typename Kernels::Nvfp4>{});
  }
}

template <class Kernels>
static i64 vector_prepared_bytes(const Group& group) {
  return with_kernel<Kernels>(
      group, [&](auto tag) { return group.tokens * decltype(tag)::Kernel::token_bytes(group.k); });
}

template <class Kernels>
static void vector_prepare(const Group& group, i64 begin, i64 end, u8* prepared) {
  with_kernel<Kernels>(group, [&](auto tag) {
    using Kernel = typename decltype(tag)::Kernel;
    for (i64 t = begin; t < end; ++t) {
      Kernel::prepare_token(group, t, prepared + t * Kernel::token_bytes(group.k));
    }
  });
}

template <class Kernels>
static i64 vector_scratch_bytes(const Group& group) {
  return with_kernel<Kernels>(
      group, [&](auto tag) { return ScratchMap<typename decltype(tag)::Kernel>(group).total; });
}

template <class Kernels>
static void vector_run(const Group& group, const u8* prepared, i64 row_begin, i64 row_end,
                       u8* scratch) {
  with_kernel<Kernels>(group, [&](auto tag) {
    using Kernel = typename decltype(tag)::Kernel;
    run_rows<typename Kernels::Vector, Kernel>(group, prepared, row_begin, row_end, scratch);
  });
}

template <class Kernels>
static constexpr Level vector_level(const char* name, i64 worker_cost) {
  constexpr i64 kDecodeCost = 4;
  return {name,
          kTileRows,
          kTokenBlock,
          1,
          kDecodeCost,
          worker_cost,
          vector_prepared_bytes<Kernels>,
          vector_prepare<Kernels>,
          vector_scratch_bytes<Kernels>,
          vector_run<Kernels>};
}

}  // namespace nibblas::cpu
