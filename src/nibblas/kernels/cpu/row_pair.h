// Two neighbouring weight rows, read once from beginning to end: for so few tokens that all sums of
// a pair of rows stay in registers.
#pragma once

#include "row_kernel.h"
#include "vec_avx512.h"

namespace nibblas::cpu {

constexpr i64 kPairStep = 128;  // values along K of both rows: a cache line each, eight blocks

template <class V>
class RowPair {
 public:
  // Rows r and r + 1 of a tile; past its end its last row again.
  RowPair(const Group& group, const Tile& tile, i64 r)
      : RowPair(group, tile.row + min_of(r, tile.rows - 1),
                tile.row + min_of(r + 1, tile.rows - 1)) {}

  i64 full_steps() const { return k_ / kPairStep; }
  bool has_rest() const { return k_ % kPairStep != 0; }

  // Packed codes and scale bytes of a step, of a's eight blocks and of b's.
  struct Step {
    __m512i a;
    __m512i b;
    __m128i scales;
  };

  // Of a full step; prefetches as many bytes in the order of addresses, which is what the
  // processor's own prefetcher can follow.
  Step load(i64 step) const {
    __builtin_prefetch(codes_ahead_ + step * 128, 0, 2);
    __builtin_prefetch(codes_ahead_ + step * 128 + 64, 0, 2);
    const u8* quad_a = scales_[0] + step * 2 * quad_bytes_;
    const u8* quad_b = scales_[1] + step * 2 * quad_bytes_;
    __builtin_prefetch(quad_a + scales_ahead_, 0, 2);
    __builtin_prefetch(quad_b + scales_ahead_, 0, 2);
    const __m128i scales_a = _mm_unpacklo_epi32(load_quad(quad_a), load_quad(quad_a + quad_bytes_));
    const __m128i scales_b = _mm_unpacklo_epi32(load_quad(quad_b), load_quad(quad_b + quad_bytes_));
    return {load_64_bytes(codes_[0] + step * 64), load_64_bytes(codes_[1] + step * 64),
            _mm_unpacklo_epi64(scales_a, scales_b)};
  }

  // Of the step that the end of K cuts short: filled up with zero codes and zero scales, since
  // 0 * NaN would not be zero.
  Step load_rest() const {
    const i64 step = full_steps(), blocks = k_ % kPairStep / kScaleBlock;
    const u64 used = _bzhi_u64(~u64{0}, static_cast<u32>(blocks * 8));
    alignas(16) u8 scales[2][8] = {};
    for (i64 row = 0; row < 2; ++row) {
      for (i64 b = 0; b < blocks; ++b) {
        scales[row][b] = scales_[row][(2 * step + b / 4) * quad_bytes_ + b % 4];
      }
    }
    return {_mm512_maskz_loadu_epi8(used, codes_[0] + step * 64),
            _mm512_maskz_loadu_epi8(used, codes_[1] + step * 64),
            _mm_load_si128(reinterpret_cast<const __m128i*>(scales))};
  }

 private:
  RowPair(const Group& group, i64 a, i64 b)
      : k_(group.k),
        codes_{group.w + a * group.w_row_bytes, group.w + b * group.w_row_bytes},
        scales_{first_scales(group.w_scales, a), first_scales(group.w_scales, b)},
        quad_bytes_(bytes_to_next_scales(group.w_scales)) {
    const i64 ahead = 2 * ceil_div(kBytesAhead, 2 * group.w_row_bytes);
    codes_ahead_ = codes_[0] + ahead * group.w_row_bytes;
    scales_ahead_ = first_scales(group.w_scales, a + ahead) - scales_[0];
  }

  // Far enough for memory, near enough to stay in L2.
  static constexpr i64 kBytesAhead = 16384;

  static __m128i load_quad(const u8* quad) {
    i32 bytes;
    __builtin_memcpy(&bytes, quad, sizeof(bytes));
    return _mm_cvtsi32_si128(bytes);
  }

  i64 k_;
  const u8* codes_[2];
  const u8* scales_[2];
  i64 quad_bytes_;
  const u8* codes_ahead_;
  i64 scales_ahead_;
};

// Computes rows of a group for few tokens. `Stream` adds up some rows for all of K:
//   Stream::multiply(group, tile, row in the tile, prepared, accumulators of that row)
template <class V, class Stream>
static void run_stream(const Group& group, const u8* prepared, i64 row_begin, i64 row_end,
                       float* accumulators) {
  for (Tile tile{row_begin, 0}; tile.row < row_end; tile.row += kTileRows) {
    tile.rows = min_of(kTileRows, row_end - tile.row);
    for (i64 r = 0; r < tile.rows; r += Stream::kRows) {
      Stream::multiply(group, tile, r, prepared, accumulators_of(accumulators, 0, r));
    }
    write_tile<V>(group, tile, accumulators);
  }
}

}  // namespace nibblas::cpu
