// The loader for problems whose rows are not all aligned to 16 bytes, or whose K ends inside a
// stage.
#pragma once

#include "../common/ptx/address.cuh"
#include "../common/ptx/async_copy.cuh"
#include "stage.cuh"

namespace nibblas::portable {

// As copy_chunk, byte by byte: for rows that begin anywhere.
static __device__ __noinline__ void copy_unaligned_chunk(u8* to, const u8* from, u32 valid) {
#pragma unroll 1
  for (u32 i = 0; i < kChunkBytes; ++i) to[i] = i < valid ? from[i] : 0;
}

// Copies 16 bytes of which `valid` exist, the rest become zero. `vector` is their alignment.
static __device__ __forceinline__ void copy_chunk(void* to, const u8* from, i64 valid, i64 vector) {
  const u32 bytes = static_cast<u32>(clamp_to(valid, 0, kChunkBytes));
  const u32 address = ptx::shared_address(to);
  if (vector == 16) {
    ptx::cp_async_16(address, from, bytes);
  } else if (vector == 8) {
    ptx::cp_async_8(address, from, bytes >= 8 ? 8 : 0);
    ptx::cp_async_8(address + 8, bytes > 8 ? from + 8 : from, bytes > 8 ? 8 : 0);
  } else {
    copy_unaligned_chunk(static_cast<u8*>(to), from, bytes);
  }
}

// Fills one stage; all threads of the CTA together. Takes any K, any alignment, any tail.
class AnyLoader {
 public:
  __device__ explicit AnyLoader(const Params& p)
      : p_(p),
        warp_(static_cast<i32>(threadIdx.x) / kWarpLanes),
        lane_(static_cast<i32>(threadIdx.x) % kWarpLanes) {}

  __device__ void load(const Cursor& at, Stage& stage) {
    load_weights(at, stage);
    if (p_.w_scales.layout == ScaleLayout::kBlocked) {
      load_blocked_weight_scales(at, stage);
    } else {
      load_linear_weight_scales(at, stage);
    }
    if constexpr (Config::kNvfp4Tokens) {
      load_token_codes(at, stage);
      load_token_scales(at, stage);
    } else {
      load_tokens(at, stage);
    }
  }

 private:
  // Rows past N repeat the last one; their results are not stored.
  __device__ i64 weight_row(const Cursor& at, i32 i) const {
    return min_of(at.first_row() + tile_row(warp_, i), p_.n - 1);
  }

  __device__ void load_weights(const Cursor& at, Stage& stage) const {
    const i64 byte = at.k() / 2 + lane_ % 4 * kChunkBytes;
    const u8* group = p_.w.bytes + at.group() * p_.w.group_bytes;
    for (i32 half = 0; half < 2; ++half) {
      const u8* row = group + weight_row(at, lane_ / 4 + 8 * half) * p_.w.row_bytes;
      for (i32 step = 0; step < kSteps; ++step) {
        const i64 from = byte + step * (kStep / 2);
        const i64 valid = p_.k / 2 - from;
        copy_chunk(&stage.weights[warp_][step][half][lane_], row + (valid > 0 ? from : 0), valid,
                   p_.w.vector);
      }
    }
  }

  __device__ void load_linear_weight_scales(const Cursor& at, Stage& stage) const {
    const Scales& scales = p_.w_scales;
    const i32 piece = static_cast<i32>(min_of(scales.vector, kStageBlocks));
    const i32 pieces = kStageBlocks / piece;
    const u8* group = scales.bytes + at.group() * scales.group_bytes;
    for (i32 i = lane_; i < 16 * pieces; i += kWarpLanes) {
      const i64 block = at.k() / kScaleBlock + i % pieces * piece;
      if (block >= p_.k / kScaleBlock) continue;
      const u8* from = group + weight_row(at, i / pieces) * scales.row_bytes + block;
      copy_scales(stage.weight_scales[warp_] + i / pieces * kStageBlocks + i % pieces * piece, from,
                  piece);
    }
  }

  __device__ void load_blocked_weight_scales(const Cursor& at, Stage& stage) const {
    constexpr i32 kLines = 4 * kStageBlocks / static_cast<i32>(kAtomKBlocks);
    if (lane_ >= kLines) return;
    const i64 block = at.k() / kScaleBlock + lane_ / 4 * kAtomKBlocks;
    const i64 k_blocks = p_.k / kScaleBlock;
    if (block >= k_blocks) return;
    const u8* from = p_.w_scales.bytes + at.group() * p_.w_scales.group_bytes +
                     blocked_offset(at.first_row() + 4 * warp_ + lane_ % 4, block, k_blocks);
    copy_scales(stage.weight_scales[warp_] + lane_ * kChunkBytes, from,
                static_cast<i32>(p_.w_scales.vector), kChunkBytes);
  }

  __device__ void load_tokens(const Cursor& at, Stage& stage) const {
    constexpr i32 kStepChunks = kStep * 2 / kChunkBytes;
    constexpr i32 kChunks = Config::kStageK * 2 / kChunkBytes;
    for (i32 i = static_cast<i32>(threadIdx.x); i < at.tokens() * kChunks; i += kThreads) {
      const i32 token = i / kChunks, chunk = i % kChunks % kStepChunks;
      const i64 from = at.k() * 2 + i % kChunks * kChunkBytes;
      const i64 valid = p_.k * 2 - from;
      const u8* row = p_.x.bytes + (at.token_row() + token) * p_.x.row_bytes;
      copy_chunk(&stage.tokens[i % kChunks / kStepChunks][token][token_place(token, chunk)],
                 row + (valid > 0 ? from : 0), valid, p_.x.vector);
    }
  }

  __device__ void load_token_codes(const Cursor& at, Stage& stage) const {
    constexpr i32 kChunks = Config::kStageK / 2 / kChunkBytes;
    for (i32 i = static_cast<i32>(threadIdx.x); i < at.tokens() * kChunks; i += kThreads) {
      const i32 token = i / kChunks, chunk = i % kChunks;
      const i64 from = at.k() / 2 + chunk * kChunkBytes;
      const i64 valid = p_.k / 2 - from;
      const u8* row = p_.x.bytes + (at.token_row() + token) * p_.x.row_bytes;
      copy_chunk(&stage.tokens[chunk / 4][token][chunk % 4], row + (valid > 0 ? from : 0), valid,
                 p_.x.vector);
    }
  }

  // Four scales at a time: in both layouts neighbours along K, never across an atom.
  __device__ void load_token_scales(const Cursor& at, Stage& stage) const {
    constexpr i32 kPieces = kStageBlocks / static_cast<i32>(kAtomKBlocks);
    const i64 k_blocks = p_.k / kScaleBlock;
    const bool blocked = p_.x_scales.layout == ScaleLayout::kBlocked;
    for (i32 i = static_cast<i32>(threadIdx.x); i < at.tokens() * kPieces; i += kThreads) {
      const i32 token = i / kPieces;
      const i64 block = at.k() / kScaleBlock + i % kPieces * kAtomKBlocks;
      if (block >= k_blocks) continue;
      const i64 row = at.token_scale_row() + token;
      const i64 offset =
          blocked ? blocked_offset(row, block, k_blocks) : row * p_.x_scales.row_bytes + block;
      u8* to = &stage.token_scales[token][i % kPieces * kAtomKBlocks];
      const i64 exist = blocked ? kAtomKBlocks : min_of(kAtomKBlocks, k_blocks - block);
      if (p_.x_scales.vector >= 4) {
        ptx::cp_async_4(ptx::shared_address(to), p_.x_scales.bytes + offset, 4);
      } else {
        for (i64 j = 0; j < exist; ++j) to[j] = p_.x_scales.bytes[offset + j];
      }
    }
  }

  // `count` bytes aligned to `vector`, in pieces of it.
  static __device__ __forceinline__ void copy_scales(u8* to, const u8* from, i32 vector,
                                                     i32 count) {
#pragma unroll 1
    for (i32 i = 0; i < count; i += vector) copy_scales(to + i, from + i, vector);
  }

  static __device__ __forceinline__ void copy_scales(u8* to, const u8* from, i32 bytes) {
    switch (bytes) {
      case 16:
        return ptx::cp_async_16(ptx::shared_address(to), from, 16);
      case 8:
        return ptx::cp_async_8(ptx::shared_address(to), from, 8);
      case 4:
        return ptx::cp_async_4(ptx::shared_address(to), from, 4);
      default:
        *to = *from;
    }
  }

  const Params& p_;
  i32 warp_;
  i32 lane_;
};

}  // namespace nibblas::portable
