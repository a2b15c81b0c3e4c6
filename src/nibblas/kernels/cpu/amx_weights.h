// Weight rows as AMX reads them: tiles of 16 rows by 32 values, decoded into a panel
//
//     [K / 32][2 tiles][16 rows][32 values]                              bfloat16, in tile order
#pragma once

#include "bf16_tiles.h"
#include "group.h"

namespace nibblas::cpu {

constexpr i64 kAmxRows = 32;  // two tiles, whose sums two chains of dot products add up
constexpr i64 kStepBytes = kStepTiles * 2 * kTileBytes;  // of the panel

// Up to 32 weight rows from a multiple of 32 on.
class AmxWeights {
 public:
  AmxWeights(const Group& group, i64 row, i64 rows)
      : rows(rows),
        k_(group.k),
        codes_(group.w + row * group.w_row_bytes),
        row_bytes_(group.w_row_bytes),
        scales_(first_scales(group.w_scales, row)) {
    const ScaleRows& scales = group.w_scales;
    scale_row_bytes_ = scales.blocked ? 16 : scales.row_bytes;
    quad_bytes_ = bytes_to_next_scales(scales);
    next_scales_ = first_scales(scales, row + kAmxRows) - scales_;
  }

  const i64 rows;

  i64 steps() const { return ceil_div(k_, kStepK); }

  // Which bytes a step prefetches into L2.
  enum class Ahead {
    kNextRows,  // the next 32 rows from their beginning on, in the order of addresses, which is
                // what the processor's own prefetcher can follow; for all steps one after the other
    kSameStep,  // of the next 32 rows
  };

  // Rows [begin, end) of the 128 values of a step; all of one tile, whose place in the panel `to`
  // is. Not inlined, so that the registers are its own.
  template <Ahead kAhead>
  __attribute__((noinline)) void decode(i64 step, i64 begin, i64 end, u8* to) const {
    const i64 last = min_of(end, rows);
    to += begin % kTileSize * 64;
    if ((step + 1) * kStepK > k_) return decode_rest(step, begin, last, to);
    const u8* codes = codes_ + begin * row_bytes_ + step * (kStepK / 2);
    const u8* ahead = codes + kAmxRows * row_bytes_;
    i64 ahead_bytes = row_bytes_;
    if (kAhead == Ahead::kNextRows) {
      ahead = codes_ + kAmxRows * row_bytes_ + (step * kAmxRows + begin) * 64;
      ahead_bytes = 64;
    }
    prefetch_scales(step, begin);
    const TileOrder order = TileOrder::make();
    const i64 row_bytes = row_bytes_, scale_row_bytes = scale_row_bytes_, quad_bytes = quad_bytes_;
    const u8* scales = scales_of(step, begin);
    for (i64 r = begin; r < last; ++r) {
      __builtin_prefetch(ahead, 0, 2);
      decode_row(order, codes, scales, scales + quad_bytes, to);
      ahead += ahead_bytes;
      codes += row_bytes;
      scales += scale_row_bytes;
      to += 64;
    }
  }

 private:
  const u8* scales_of(i64 step, i64 row) const {
    return scales_ + row * scale_row_bytes_ + step * 2 * quad_bytes_;
  }

  // Of the next 32 rows: linear scales in the order of addresses, an eighth of the codes; blocked
  // ones of the same step, four rows of which share a cache line.
  void prefetch_scales(i64 step, i64 begin) const {
    const u8* next = scales_ + next_scales_;
    if (quad_bytes_ == kAtomKBlocks) {
      __builtin_prefetch(next + (step * kAmxRows + begin) * 8, 0, 2);
    } else {
      next += begin * 16 + step * 2 * kAtomBytes;
      __builtin_prefetch(next, 0, 2);
      __builtin_prefetch(next + kAtomBytes, 0, 2);
    }
  }

  // 64 packed bytes and 8 scales -> one row of four tiles.
  static void decode_row(const TileOrder& order, const u8* codes, const u8* quad0, const u8* quad1,
                         u8* to) {
    const __m512i values0 = decode_tile_row(order, codes, quad0[0], quad0[1]);
    const __m512i values1 = decode_tile_row(order, codes + 16, quad0[2], quad0[3]);
    const __m512i values2 = decode_tile_row(order, codes + 32, quad1[0], quad1[1]);
    const __m512i values3 = decode_tile_row(order, codes + 48, quad1[2], quad1[3]);
    _mm512_store_si512(to, values0);
    _mm512_store_si512(to + 2 * kTileBytes, values1);
    _mm512_store_si512(to + 4 * kTileBytes, values2);
    _mm512_store_si512(to + 6 * kTileBytes, values3);
  }

  // The last step, filled up with zero codes and zero scales: 0 * NaN would not be zero.
  void decode_rest(i64 step, i64 begin, i64 end, u8* to) const {
    const i64 blocks = (k_ - step * kStepK) / kScaleBlock;
    for (i64 r = begin; r < end; ++r, to += 64) {
      const u8* from = codes_ + r * row_bytes_ + step * (kStepK / 2);
      const u8* from_scales = scales_of(step, r);
      u8 codes[kStepK / 2] = {}, scales[8] = {};
      for (i64 i = 0; i < blocks * 8; ++i) codes[i] = from[i];
      for (i64 b = 0; b < blocks; ++b) scales[b] = from_scales[b / 4 * quad_bytes_ + b % 4];
      decode_row(TileOrder::make(), codes, scales, scales + 4, to);
    }
  }

  const i64 k_;
  const u8* codes_;
  const i64 row_bytes_;
  const u8* scales_;
  i64 scale_row_bytes_;
  i64 quad_bytes_;  // from four k-blocks' scales to those of the next four
  i64 next_codes_;  // from a row's codes and scales to those 32 rows further on
  i64 next_scales_;
};

}  // namespace nibblas::cpu
