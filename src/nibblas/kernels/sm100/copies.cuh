// Producers that copy through TMA: codes as boxes, blocked scales as whole atoms. One thread each.
//
// With clusters, every CTA copies its share of the token rows to all of them, and the first one the
// token scales. A slot is refilled when all CTAs of the cluster have multiplied what it held.
#pragma once

#include "../common/tcgen05_descriptors.h"
#include "items.cuh"

namespace nibblas::sm100 {

constexpr i32 kSliceRows = kTileM / Config::kCluster;
constexpr u16 kAllCtas = (1 << Config::kCluster) - 1;

// Atoms of 64 values that a stage has, the last one perhaps incomplete.
static __device__ __forceinline__ i32 stage_atoms(i32 k_left) {
  return k_left >= kStageK ? kStageAtoms : static_cast<i32>(ceil_div(k_left, kMmaK));
}

static __device__ __forceinline__ i64 k_atoms(i32 k) { return ceil_div(k, kMmaK); }

// What arrives at a CTA's barrier.
template <bool kTokens, bool kWeights>
static __device__ __forceinline__ u32 stage_bytes(i32 atoms) {
  const u32 atom_bytes = Config::kBulkScales ? atoms * static_cast<u32>(kAtomBytes) : 0;
  return (kTokens ? kTileM * kRowBytes + atom_bytes : 0) +
         (kWeights ? kWBytes + kRowAtoms * atom_bytes : 0);
}

static __device__ __forceinline__ void copy_tokens(const Item& item, i32 k, i32 atoms,
                                                   const Stage& stage, u32 full) {
  const ptx::TensorMap& map = item.entry->x_map;
  const i32 rank = blockIdx.x % Config::kCluster;
  const i32 slice = rank * kSliceRows;
  const u32 to = ptx::shared_address(stage.x) + slice * kRowBytes;
  const i32 row = static_cast<i32>(item.row) + slice;
  if constexpr (Config::kCluster == 1) {
    ptx::cp_async_bulk_tensor_3d(to, map, k / 2, row, 0, full, ptx::kEvictLast);
  } else {
    ptx::cp_async_bulk_tensor_3d_multicast(to, map, k / 2, row, 0, full, kAllCtas, ptx::kEvictLast);
  }
  if constexpr (!Config::kBulkScales) return;
  const i64 atom = item.scale_atom * k_atoms(item.k) + k / kMmaK;
  const u8* from = item.entry->product.x_scales.bytes + atom * kAtomBytes;
  const u32 bytes = atoms * static_cast<u32>(kAtomBytes);
  const u32 scales_to = ptx::shared_address(stage.x_scales);
  if constexpr (!Config::kMulticastScales) {
    ptx::cp_async_bulk(scales_to, from, bytes, full, ptx::kEvictLast);
  } else if (rank == 0) {
    ptx::cp_async_bulk_multicast(scales_to, from, bytes, full, kAllCtas, ptx::kEvictLast);
  }
}

static __device__ __forceinline__ void copy_weights(const Item& item, i32 k, i32 atoms,
                                                    const Stage& stage, u32 full) {
  ptx::cp_async_bulk_tensor_3d(ptx::shared_address(stage.w), item.entry->w_map, k / 2,
                               static_cast<i32>(item.column), item.group, full, ptx::kEvictFirst);
  if constexpr (!Config::kBulkScales) return;
  const Scales& scales = item.entry->product.w_scales;
  const u8* group = scales.bytes + item.group * scales.group_bytes;
#pragma unroll
  for (i32 i = 0; i < kRowAtoms; ++i) {
    // Beyond the last rows: some atom, for columns that are not stored.
    const i64 row_atom = min_of(item.column / kAtomRows + i, (item.n - 1) / kAtomRows);
    const u8* from = group + (row_atom * k_atoms(item.k) + k / kMmaK) * kAtomBytes;
    ptx::cp_async_bulk(ptx::shared_address(stage.w_scales) + i * kRowAtomBytes, from,
                       atoms * static_cast<u32>(kAtomBytes), full, ptx::kEvictFirst);
  }
}

// The first stages of an item that is copied later; of tokens, the CTA's share.
template <bool kTokens, bool kWeights>
static __device__ __forceinline__ void prefetch(const Params& p, const Item& item) {
  const i32 row = static_cast<i32>(item.row) + blockIdx.x % Config::kCluster * kSliceRows;
  for (i32 k = 0; k < item.k && k < p.stages * kStageK; k += kStageK) {
    if (kTokens) ptx::cp_async_bulk_prefetch_tensor_3d(item.entry->x_map, k / 2, row, 0);
    if (kWeights) {
      ptx::cp_async_bulk_prefetch_tensor_3d(item.entry->w_map, k / 2, static_cast<i32>(item.column),
                                            item.group);
    }
  }
}

// Waits until no commit can arrive at the CTA's barriers any more: it may exit then.
static __device__ __forceinline__ void drain(const Params& p, RingPlace& place) {
  for (i32 i = 0; i < p.stages; ++i, place.advance()) place.wait_until_empty();
}

// By one thread.
template <bool kTokens, bool kWeights>
static __device__ void copy_operands(const Params& p, const Control& control, u8* shared) {
  RingPlace place(p, shared);
  for (Items items(p, control); !items.done(); items.advance()) {
    const Item item = items.item();
    for (i32 k = 0; k < item.k; k += kStageK, place.advance()) {
      const i32 atoms = stage_atoms(item.k - k);
      place.wait_until_empty();
      ptx::mbarrier_arrive_expect_tx(place.full(), stage_bytes<kTokens, kWeights>(atoms));
      if constexpr (kTokens) copy_tokens(item, k, atoms, place.stage(), place.full());
      if constexpr (kWeights) copy_weights(item, k, atoms, place.stage(), place.full());
    }
    if constexpr (!Config::kPrefetches) continue;
    Items next = items;
    next.advance();
    if (!next.done()) prefetch<kTokens, kWeights>(p, next.item());
  }
  drain(p, place);
}

}  // namespace nibblas::sm100
