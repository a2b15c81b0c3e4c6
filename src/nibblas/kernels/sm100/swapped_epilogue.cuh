// The epilogue of swapped.cu: a thread has one column of out, and turns its sums into outputs 16
// tokens at a time (factors.cuh). Rows of out run across the threads: each warp sorts its 32
// columns through its own piece of shared memory and stores vectors.
//
//   sums [32 columns][16 tokens]  -->  staging [16 tokens][32 columns]  -->  out, 16 bytes a thread
//
// Warps w and w + 4 share 32 columns and take turns with the tokens.
#pragma once

#include "factors.cuh"
#include "swapped_shared.cuh"

namespace nibblas::sm100 {

constexpr i32 kChunk = 16;  // tokens
constexpr i32 kQuarters = 4;
constexpr i32 kSharers = kEpilogueWarps / kQuarters;
constexpr i32 kVectorBytes = 16;

static_assert(kChunk * kWarpLanes * 4 == kWarpStagingBytes, "outputs of up to 4 bytes");

// Where a thread's sums go, of one item.
class ColumnOutput {
 public:
  // `first`: the warp's first column, which exists.
  __device__ ColumnOutput(const Item& item, i64 first, u8* staging)
      : p_(item.entry->product),
        rows_(item.rows),
        row_(item.row),
        first_(first),
        columns_(static_cast<i32>(min_of(item.n - first, kWarpLanes))),
        element_(static_cast<i32>(bytes_of(p_.out_type))),
        vectors_(takes_vectors(p_)),
        staging_(staging) {
    const GroupFactors factors(p_, item.group);
    const i64 column = min_of(first + lane(), item.n - 1);
    scale_ = factors.of_segment(segment_of(p_, column));
    if (p_.bias != nullptr) bias_ = factors.bias(column);
  }

  // Writes kChunk tokens from `token` of the item on, those that exist; by the whole warp.
  __device__ __forceinline__ void write(const u32 (&sums)[kChunk], i32 token) const {
    float y[kChunk];
    const i32 count = static_cast<i32>(min_of(rows_ - token, kChunk));
#pragma unroll
    for (i32 i = 0; i < kChunk; ++i) y[i] = __uint_as_float(sums[i]) * scale_;
    if (p_.row_scale != nullptr) {
#pragma unroll
      for (i32 i = 0; i < kChunk; ++i) {
        if (i < count) y[i] *= p_.row_scale[row_ + token + i];
      }
    }
    if (p_.bias != nullptr) {
#pragma unroll
      for (i32 i = 0; i < kChunk; ++i) y[i] = __fadd_rn(y[i], bias_);
    }
    if (vectors_) {
      stage(y);
      write_vectors(token, count);
    } else if (lane() < columns_) {
      u8* to = out_at(token, lane());
#pragma unroll
      for (i32 i = 0; i < kChunk; ++i) {
        if (i < count) store_element(to + i * p_.out_row_stride * element_, p_.out_type, y[i]);
      }
    }
  }

 private:
  static __device__ i32 lane() { return threadIdx.x % kWarpLanes; }

  __device__ u8* out_at(i32 token, i32 column) const {
    const i64 place = (row_ + token) * p_.out_row_stride + (first_ + column) * p_.out_column_stride;
    return static_cast<u8*>(p_.out) + place * element_;
  }

  __device__ __forceinline__ void stage(const float (&y)[kChunk]) const {
    __syncwarp();  // the last chunk has been read
#pragma unroll
    for (i32 i = 0; i < kChunk; ++i) {
      store_element(staging_ + (i * kWarpLanes + lane()) * element_, p_.out_type, y[i]);
    }
    __syncwarp();
  }

  // A thread stores a vector of some token's columns, the warp all of its chunk. Columns beyond N
  // are left out one by one.
  __device__ __forceinline__ void write_vectors(i32 token, i32 count) const {
    const i32 row_bytes = kWarpLanes * element_;
#pragma unroll
    for (i32 at = lane() * kVectorBytes; at < count * row_bytes; at += kWarpLanes * kVectorBytes) {
      const i32 column = at % row_bytes / element_;
      u8* to = out_at(token + at / row_bytes, column);
      const i32 existing = (columns_ - column) * element_;
      if (existing >= kVectorBytes) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(staging_ + at);
        continue;
      }
      for (i32 i = 0; i < existing; i += 2) {
        *reinterpret_cast<u16*>(to + i) = *reinterpret_cast<const u16*>(staging_ + at + i);
      }
    }
  }

  const Product& p_;
  i32 rows_;
  i64 row_;
  i64 first_;
  i32 columns_;
  i32 element_;
  bool vectors_;
  u8* staging_;
  float scale_;
  float bias_ = 0;
};

// The warp's sums have been read: the even CTA may have them overwritten.
static __device__ __forceinline__ void release_sums(u32 sums_empty) {
  ptx::tcgen05_fence_before_thread_sync();
  __syncwarp();
  arrive_at_leader_if(threadIdx.x % kWarpLanes == 0, sums_empty);
}

static __device__ void write_outputs(const Params& p, Control& control) {
  const i32 warp = threadIdx.x / kWarpLanes;
  const i32 quarter = warp % kQuarters * kWarpLanes;
  const u32 tensor = control.tensor + (static_cast<u32>(quarter) << 16);
  u8* staging = control.staging() + warp * kWarpStagingBytes;
  Turn turn(2);
  for (Items items(p, control); !items.done(); items.advance(), turn.advance()) {
    const Item item = items.item();
    const u32 sums = tensor + sums_begin(p, turn.slot(), padded_tokens(item));
    const u32 sums_empty = ptx::shared_address(&control.sums_empty[turn.slot()]);
    const i64 first = item.column + quarter;
    const i32 tokens = first < item.n ? item.rows : 0;
    const i32 begin = warp / kQuarters * kChunk;
    const ColumnOutput output(item, min_of(first, item.n - 1), staging);
    wait(ptx::shared_address(&control.sums_full[turn.slot()]), turn.round());
    ptx::tcgen05_fence_after_thread_sync();
#pragma unroll 1
    for (i32 token = begin; token < tokens; token += kSharers * kChunk) {
      u32 values[kChunk];
      ptx::tcgen05_ld_32x32b_x16(values, sums + token);
      ptx::tcgen05_wait_ld(values);
      if (token + kSharers * kChunk >= tokens) release_sums(sums_empty);
      output.write(values, token);
    }
    if (begin >= tokens) release_sums(sums_empty);
  }
}

}  // namespace nibblas::sm100
