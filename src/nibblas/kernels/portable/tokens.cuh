// The token warps' work: tokens made ready for the MMA, once for all multiplying warps: 16-bit
// values in the order in which weights are decoded, or NVFP4 codes decoded.
//
//   global --> registers, batches of tokens ahead --> prepared --> stage
//
// Token t of a stage belongs to token warp t % kTokenWarps.
#pragma once

#include "../common/nvfp4_pairs.cuh"
#include "../common/ptx/global_memory.cuh"
#include "stage.cuh"

namespace nibblas::portable {

#if NIBBLAS_CONFIG_BF16
using Type = Bf16;
#else
using Type = Fp16;
#endif

#if NIBBLAS_CONFIG_NVFP4
// 8 codes and their scale.
struct RawChunk {
  u32 codes;
  u32 scale;
};
#else
// 8 values.
using RawChunk = Chunk;
#endif

// A lane's chunk of each token of a batch.
constexpr i32 kBatch = !Config::kTensorCopies ? 4
                       : Config::kTokens > 16 ? 8
                                              : 8 / Config::kTokenWarps;
struct RawBatch {
  RawChunk of[kBatch];
  i32 batch;     // of its stage; negative: there is none
  bool is_last;  // of its stage
};

// Batches that are on their way at a time: of 16 tokens, two stages'.
constexpr i32 kBatchesAhead = Config::kTensorCopies && Config::kTokens <= 16 ? 4 : 2;

// Tokens of a stage that a warp's lanes read at once, and those of a batch.
constexpr i32 kTokenChunks = kSteps * kStepChunks;
constexpr i32 kTokensAtOnce = kWarpLanes / kTokenChunks * Config::kTokenWarps;
constexpr i32 kBatchTokens = kBatch * kTokensAtOnce;
static_assert(kWarpLanes % kTokenChunks == 0, "lanes share out a token's chunks evenly");
static_assert(Config::kTokens % kBatchTokens == 0, "batches fill a stage");

// Brings what a visit's first stage reads of tokens into L2, a line of a token each lane.
static __device__ __forceinline__ void prefetch_tokens(const Params& p, const Cursor& at) {
  constexpr i32 kLineBytes = 128;
  constexpr i32 kLines = Config::kStageK * (Config::kNvfp4Tokens ? 1 : 4) / 2 / kLineBytes;
  const i32 lane = static_cast<i32>(threadIdx.x) % kWarpLanes;
  const u8* lines = p.x.bytes + at.token_row() * p.x.row_bytes + lane % kLines * kLineBytes;
#pragma unroll 1
  for (i32 i = lane / kLines; i < at.tokens(); i += kWarpLanes / kLines) {
    ptx::prefetch_l2(lines + i * p.x.row_bytes);
  }
}

// Walks the path of stages in batches of tokens.
class Tokens {
 public:
  __device__ Tokens(const Params& p, const Run& run, i32 warp)
      : p_(p),
        at_(p, run),
        lane_(static_cast<i32>(threadIdx.x) % kWarpLanes),
        first_(lane_ / kTokenChunks * Config::kTokenWarps + warp),
        step_(lane_ % kTokenChunks / kStepChunks),
        chunk_(lane_ % kStepChunks) {}

  // Reads the next batch from global memory. Tokens that do not exist repeat the last one, since
  // columns of the product do not mix; values past K are zeros.
  __device__ __forceinline__ void read_next(RawBatch& raw) {
    raw.batch = -1;
    if (at_.done()) return;
    const i32 k = at_.k() + lane_ % kTokenChunks * 8;
    const bool exists = Config::kAligned || k < p_.k;
    read_rows(raw, first_ + batch_ * kBatchTokens, exists ? k : 0);
    if (!exists) set_zero(raw);
    raw.batch = batch_;
    raw.is_last = (batch_ + 1) * kBatchTokens >= at_.tokens();
    if (raw.is_last) {
      batch_ = 0;
      at_.advance();
    } else {
      ++batch_;
    }
  }

  // Stores a batch that has been read.
  __device__ __forceinline__ void prepare(const RawBatch& raw, Stage& stage) const {
    const i32 first = first_ + raw.batch * kBatchTokens;
    Chunk* step = stage.tokens[step_][first];
#pragma unroll
    for (i32 i = 0; i < kBatch; ++i) {
      const Pairs pairs = prepared(raw.of[i]);
      step[i * kTokensAtOnce * kStepChunks + token_place(first + i * kTokensAtOnce, chunk_)] = {
          {pairs.of[0], pairs.of[1], pairs.of[2], pairs.of[3]}};
    }
  }

 private:
  // Row of a batch's token, from the first of the stage's.
  __device__ __forceinline__ u32 row_of(i32 first, i32 i) const {
    return static_cast<u32>(min(first + i * kTokensAtOnce, at_.tokens() - 1));
  }

  // Aligned problems' rows are less than 4 GiB apart: see the host's is_aligned.
  __device__ __forceinline__ i64 row_offset(u32 row) const {
    if constexpr (!Config::kAligned) return row * p_.x.row_bytes;
    return static_cast<i64>(static_cast<u64>(row) * static_cast<u32>(p_.x.row_bytes));
  }

  static __device__ __forceinline__ void set_zero(RawBatch& raw) {
#pragma unroll
    for (i32 i = 0; i < kBatch; ++i) raw.of[i] = RawChunk{};
  }

#if NIBBLAS_CONFIG_NVFP4
  __device__ __forceinline__ void read_rows(RawBatch& raw, i32 first, i32 k) const {
    const u8* codes = p_.x.bytes + at_.token_row() * p_.x.row_bytes + k / 2;
    const i64 scale_row = at_.token_scale_row(), block = k / static_cast<i32>(kScaleBlock);
#pragma unroll
    for (i32 i = 0; i < kBatch; ++i) {
      const u32 row = row_of(first, i);
      raw.of[i] = {read_codes(codes + row_offset(row)), scale_of(scale_row + row, block)};
    }
  }

  static __device__ __forceinline__ u32 read_codes(const u8* from) {
    if constexpr (Config::kAligned) return *reinterpret_cast<const u32*>(from);
    return from[0] | from[1] << 8 | from[2] << 16 | static_cast<u32>(from[3]) << 24;
  }

  __device__ __forceinline__ u32 scale_of(i64 row, i64 block) const {
    return p_.x_scales.bytes[p_.x_scales.layout == ScaleLayout::kBlocked
                                 ? blocked_offset(row, block, p_.k / kScaleBlock)
                                 : row * p_.x_scales.row_bytes + block];
  }

  static __device__ __forceinline__ Pairs prepared(const RawChunk& raw) {
    return decode_pairs<Type>(raw.codes, Type::scale_pairs(raw.scale).of[0]);
  }
#else
  __device__ __forceinline__ void read_rows(RawBatch& raw, i32 first, i32 k) const {
    const u8* from = p_.x.bytes + at_.token_row() * p_.x.row_bytes + k * 2;
#pragma unroll
    for (i32 i = 0; i < kBatch; ++i) raw.of[i] = read_values(from + row_offset(row_of(first, i)));
  }

  // K is a multiple of 16, so a chunk is there whole.
  __device__ __forceinline__ RawChunk read_values(const u8* from) const {
    if (Config::kAligned || p_.x.vector == kChunkBytes) {
      return *reinterpret_cast<const Chunk*>(from);
    }
    const u16* values = reinterpret_cast<const u16*>(from);
    RawChunk raw;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
      raw.word[i] = values[2 * i] | static_cast<u32>(values[2 * i + 1]) << 16;
    }
    return raw;
  }

  static __device__ __forceinline__ Pairs prepared(const RawChunk& raw) {
    return interleave_pairs(raw.word[0], raw.word[1], raw.word[2], raw.word[3]);
  }
#endif

  const Params& p_;
  Cursor at_;
  i32 batch_ = 0;
  i32 lane_;
  i32 first_;
  i32 step_;
  i32 chunk_;
};

}  // namespace nibblas::portable
