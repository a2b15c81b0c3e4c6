// NVFP4 tokens times NVFP4 weights: integer dot products of 16-value blocks, each then multiplied
// by its two scales in fp32. A block dot has at most 12 bits, a scale product 8: both are exact.
// Lane j of an accumulator adds blocks j, j + 8, j + 16, ...
//
// Tokens are the unsigned operand, so that weights, used once, can be read by the instruction.
#pragma once

#include "dot_tables.h"
#include "tile.h"

namespace nibblas::cpu {

template <class V>
class W4A4 {
 public:
  // Values along K decoded at a time: the panel takes 24 KiB and stays in L1 while tokens pass by.
  static constexpr i64 kChunk = 1024;

  static i64 panel_bytes() {
    return kTileRows * kChunkSteps * static_cast<i64>(sizeof(WeightStep));
  }
  static i64 token_bytes(i64 k) { return ceil_div(k, kStep) * static_cast<i64>(sizeof(TokenStep)); }

  static void prepare_token(const Group& group, i64 token, u8* prepared) {
    TokenStep* steps = reinterpret_cast<TokenStep*>(prepared);
    const u8* codes = group.x + token * group.x_row_bytes;
    for (i64 k = 0; k < group.k; k += kChunk) {
      const KRange range{k, min_of(kChunk, group.k - k)};
      const ScaleBytes scales = load_scales(group.x_scales, token, range);
      for (i64 s = 0; s < steps_in(range); ++s) {
        TokenStep& step = steps[k / kStep + s];
        unpack(codes, k + s * kStep, group.k, kDotTables.shifted, step.codes);
        // Both codes are doubled: a quarter makes the product of values.
        V::store(step.scales,
                 V::multiply(V::decode_e4m3(scales.of + s * kLanes), V::broadcast(0.25f)));
      }
    }
  }

  W4A4(const Group& group, const u8* prepared, u8* panel)
      : group_(group),
        steps_(ceil_div(group.k, kStep)),
        panel_(reinterpret_cast<WeightStep*>(panel)),
        tokens_(reinterpret_cast<const TokenStep*>(prepared)) {}

  // Fills the panel, [rows / 8][steps][8 rows].
  void decode_weights(const Tile& tile, KRange k) {
    for (i64 r = 0; r < round_up(tile.rows, kLanes); ++r) {
      const i64 row = tile.row + min_of(r, tile.rows - 1);  // the last row again fills an octet
      const u8* codes = group_.w + row * group_.w_row_bytes;
      const ScaleBytes scales = load_scales(group_.w_scales, row, k);
      for (i64 s = 0; s < steps_in(k); ++s) {
        WeightStep& step = octet(r)[s * kLanes + r % kLanes];
        unpack(codes, k.begin + s * kStep, group_.k, kDotTables.doubled,
               reinterpret_cast<u8*>(step.codes));
        V::scaled_block_sums(step.codes, -kE2m1MaxDoubled, step.offset);
        V::store(step.scales, V::decode_e4m3(scales.of + s * kLanes));
      }
    }
  }

  void multiply(const Tile& tile, KRange k, float* accumulators) const {
    for (i64 t = 0; t < group_.tokens; ++t) {
      for (i64 row = 0; row < tile.rows; row += kLanes) {
        micro_kernel(octet(row), tokens_ + t * steps_ + k.begin / kStep, steps_in(k),
                     accumulators_of(accumulators, t, row));
      }
    }
  }

 private:
  static constexpr i64 kStep = kLanes * kScaleBlock;  // one block per lane
  static constexpr i64 kChunkSteps = kChunk / kStep;

  struct alignas(32) TokenStep {
    u8 codes[kStep];
    float scales[kLanes];
  };
  struct alignas(32) WeightStep {
    i8 codes[kStep];
    i32 offset[kLanes];
    float scales[kLanes];
  };

  struct ScaleBytes {
    u8 of[kChunk / kScaleBlock];
  };

  static i64 steps_in(KRange k) { return ceil_div(k.count, kStep); }
  WeightStep* octet(i64 r) const { return panel_ + r / kLanes * (kChunkSteps * kLanes); }

  // Scales past the end of K are zero, as the codes there are: 0 * NaN would not be.
  static ScaleBytes load_scales(const ScaleRows& scales, i64 row, KRange k) {
    ScaleBytes bytes{};
    copy_scales(scales, row, k.begin / kScaleBlock, k.count / kScaleBlock, bytes.of);
    return bytes;
  }

  static void unpack(const u8* row, i64 k, i64 k_end, const u8* table, u8* to) {
    const u8* packed = row + k / 2;
    if (k + kStep <= k_end) return V::unpack_step(packed, table, to);
    u8 rest[kStep / 2] = {};
    for (i64 i = 0; i < (k_end - k) / 2; ++i) rest[i] = packed[i];
    V::unpack_step(rest, table, to);
  }

  static void micro_kernel(const WeightStep* weights, const TokenStep* token, i64 steps,
                           float* accumulators) {
    typename V::F32 sums[kLanes];
    for (i64 r = 0; r < kLanes; ++r) sums[r] = V::load(accumulators + r * kLanes);
    for (i64 s = 0; s < steps; ++s, ++token, weights += kLanes) {
      const typename V::F32 token_scales = V::load(token->scales);
      for (i64 r = 0; r < kLanes; ++r) {
        const typename V::F32 dots =
            V::block_dots(token->codes, weights[r].codes, weights[r].offset);
        const typename V::F32 scales = V::multiply(token_scales, V::load(weights[r].scales));
        sums[r] = V::multiply_add(dots, scales, sums[r]);
      }
    }
    for (i64 r = 0; r < kLanes; ++r) V::store(accumulators + r * kLanes, sums[r]);
  }

  const Group& group_;
  i64 steps_;
  WeightStep* panel_;
  const TokenStep* tokens_;
};

}  // namespace nibblas::cpu
