// Copies from rows that may be unaligned and may end inside a chunk.
#pragma once

#include "../common/ptx/address.cuh"
#include "../common/ptx/async_copy.cuh"
#include "stage.cuh"

namespace nibblas::portable {

// As copy_chunk, byte by byte: for rows that begin anywhere.
static __device__ __forceinline__ void copy_unaligned_chunk(u8* to, const u8* from, u32 valid) {
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

// `bytes` of 16, 8, 4 or 1, aligned to as much.
static __device__ __forceinline__ void copy_piece(u8* to, const u8* from, i32 bytes) {
  switch (bytes) {
    case 16:
      return ptx::cp_async_16(ptx::shared_address(to), from);
    case 8:
      return ptx::cp_async_8(ptx::shared_address(to), from, 8);
    case 4:
      return ptx::cp_async_4(ptx::shared_address(to), from, 4);
    default:
      *to = *from;
  }
}

// `count` bytes in pieces of `piece`.
static __device__ __forceinline__ void copy_pieces(u8* to, const u8* from, i32 piece, i32 count) {
#pragma unroll 1
  for (i32 i = 0; i < count; i += piece) copy_piece(to + i, from + i, piece);
}

static __device__ __forceinline__ void set_zero(u8* to, i64 bytes) {
#pragma unroll 1
  for (i64 i = 0; i < bytes; ++i) to[i] = 0;
}

}  // namespace nibblas::portable
