// Warps that load with ordinary loads what bulk copies cannot: scales that are linear or whose rows
// are not aligned, and codes whose rows are not. Blocks and codes beyond K become zeros, rows that
// do not exist too. What a thread has stored it passes on to the tensor core's proxy itself.
#pragma once

#include "copies.cuh"

namespace nibblas::sm100 {

// `count` bytes, at most 16, from an address of that alignment; the others are zeros.
static __device__ __forceinline__ uint4 load_bytes(const u8* from, i64 vector, i32 count) {
  if (vector == 16 && count >= 16) return *reinterpret_cast<const uint4*>(from);
  if (vector >= 4 && count % 4 == 0) {
    const u32* words = reinterpret_cast<const u32*>(from);
    return {count > 0 ? words[0] : 0, count > 4 ? words[1] : 0, count > 8 ? words[2] : 0,
            count > 12 ? words[3] : 0};
  }
  u64 low = 0, high = 0;
#pragma unroll 1
  for (i32 i = min_of(count, 16) - 1; i >= 0; --i) {
    high = high << 8 | low >> 56;
    low = low << 8 | from[i];
  }
  return {static_cast<u32>(low), static_cast<u32>(low >> 32), static_cast<u32>(high),
          static_cast<u32>(high >> 32)};
}

// The scales of a row's 16 blocks from `block` on, of which `count` exist.
static __device__ __forceinline__ uint4 load_scales(const Scales& scales, const u8* matrix, i64 row,
                                                    i32 block, i32 count, i64 k_blocks) {
  if (scales.layout == ScaleLayout::kLinear) {
    return load_bytes(matrix + row * scales.row_bytes + block, scales.vector, count);
  }
  const u8* atoms = matrix + blocked_offset(row, block, k_blocks);
  const auto quad = [&](i32 i) {
    const i32 left = static_cast<i32>(clamp_to(count - 4 * i, 0, 4));
    return load_bytes(atoms + i * kAtomBytes, scales.vector, left).x;
  };
  return {quad(0), quad(1), quad(2), quad(3)};
}

// Puts a row's scales into its place in a stage's four atoms.
static __device__ __forceinline__ void store_scales(u8* atoms, i32 row, const uint4& scales) {
  u8* to = atoms + row % 32 * 16 + row / 32 * 4;
  *reinterpret_cast<u32*>(to) = scales.x;
  *reinterpret_cast<u32*>(to + kAtomBytes) = scales.y;
  *reinterpret_cast<u32*>(to + 2 * kAtomBytes) = scales.z;
  *reinterpret_cast<u32*>(to + 3 * kAtomBytes) = scales.w;
}

// One arrival for a warp that has written a part of a stage.
static __device__ __forceinline__ void publish(u32 full) {
  ptx::fence_proxy_async();
  __syncwarp();
  if (threadIdx.x % kWarpLanes == 0) ptx::mbarrier_arrive(full);
}

// The matrix of an item's scales, the first row's number in it, and how many rows exist.
struct ScaleRows {
  const Scales& scales;
  const u8* matrix;
  i64 first;
  i64 count;
};

static __device__ __forceinline__ ScaleRows token_scales(const Item& item) {
  const Scales& scales = item.entry->product.x_scales;
  const bool linear = scales.layout == ScaleLayout::kLinear;
  return {scales, scales.bytes, linear ? item.row : item.scale_atom * kAtomRows, item.rows};
}

static __device__ __forceinline__ ScaleRows weight_scales(const Item& item) {
  const Scales& scales = item.entry->product.w_scales;
  return {scales, scales.bytes + item.group * scales.group_bytes, item.column,
          item.n - item.column};
}

// By one warp: the scales of tokens, or else of weights.
template <bool kTokens>
static __device__ void gather_scales(const Params& p, const Control& control, u8* shared) {
  const i32 lane = threadIdx.x % kWarpLanes;
  RingPlace place(p, shared);
  for (Items items(p, control); !items.done(); items.advance()) {
    const Item item = items.item();
    const ScaleRows from = kTokens ? token_scales(item) : weight_scales(item);
    // Whole atoms are copied to tensor memory.
    const i64 rows = kTokens ? round_up(padded_tokens(item), kAtomRows) : Config::kTileN;
    const i32 k_blocks = item.k / static_cast<i32>(kScaleBlock);
    for (i32 block = 0; block < k_blocks; block += kStageK / kScaleBlock, place.advance()) {
      const i32 count = static_cast<i32>(min_of(k_blocks - block, kStageK / kScaleBlock));
      place.wait_until_empty();
      u8* to = kTokens ? place.stage().x_scales : place.stage().w_scales;
#pragma unroll 1
      for (i32 row = lane; row < rows; row += kWarpLanes) {
        uint4 scales{};
        if (row < from.count) {
          scales = load_scales(from.scales, from.matrix, from.first + row, block, count, k_blocks);
        }
        store_scales(to + row / kAtomRows * kRowAtomBytes, row % kAtomRows, scales);
      }
      publish(place.full());
    }
  }
}

// 16 bytes of a row's codes into their place under the 128-byte swizzle.
static __device__ __forceinline__ void store_codes(u8* matrix, i32 row, i32 piece,
                                                   const uint4& codes) {
  *reinterpret_cast<uint4*>(matrix + row * kRowBytes + (piece ^ row % 8) * 16) = codes;
}

// By one of kProducers warps: its part of a matrix's rows.
static __device__ __forceinline__ void gather_rows(const Rows& rows, const u8* matrix, i64 existing,
                                                   i32 wanted, i32 k, i32 k_end, u8* to) {
  constexpr i32 kPieces = kRowBytes / 16;
  const i32 thread = threadIdx.x - kFirstProducer * kWarpLanes;
#pragma unroll 2
  for (i32 i = thread; i < wanted * kPieces; i += Config::kProducers * kWarpLanes) {
    const i32 row = i / kPieces, piece = i % kPieces;
    const i32 begin = k / 2 + piece * 16;
    const i32 count = static_cast<i32>(clamp_to(k_end / 2 - begin, 0, 16));
    uint4 codes{};
    if (row < existing && count > 0) {
      codes = load_bytes(matrix + row * rows.row_bytes + begin, rows.vector, count);
    }
    store_codes(to, row, piece, codes);
  }
}

static __device__ void gather_operands(const Params& p, const Control& control, u8* shared) {
  RingPlace place(p, shared);
  for (Items items(p, control); !items.done(); items.advance()) {
    const Item item = items.item();
    const Rows& x = item.entry->product.x;
    const Rows& w = item.entry->product.w;
    const u8* tokens = x.bytes + item.row * x.row_bytes;
    const u8* weights = w.bytes + item.group * w.group_bytes + item.column * w.row_bytes;
    for (i32 k = 0; k < item.k; k += kStageK, place.advance()) {
      place.wait_until_empty();
      gather_rows(x, tokens, item.rows, padded_tokens(item), k, item.k, place.stage().x);
      gather_rows(w, weights, item.n - item.column, Config::kTileN, k, item.k, place.stage().w);
      publish(place.full());
    }
  }
  drain(p, place);
}

}  // namespace nibblas::sm100
