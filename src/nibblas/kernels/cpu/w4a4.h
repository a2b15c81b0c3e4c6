// NVFP4 tokens times NVFP4 weights: integer dot products of 16-value blocks, each then multiplied
// by its two scales in fp32. A block dot has at most 12 bits, a scale product 8: both are exact.
// Lane j of an accumulator adds blocks j, j + 8, j + 16, ...
//
// maddubs multiplies unsigned by signed bytes: tokens are 2 * value, weights 2 * value + 12, and
// the surplus 12 * (sum of the token's block) is subtracted as an integer before the scales come
// in.
#pragma once

#include "../common/e2m1.h"
#include "tile.h"

namespace nibblas::cpu {

struct DotTables {
  alignas(16) u8 tokens[16];   // 2 * value + kE2m1MaxDoubled, as uint8
  alignas(16) u8 weights[16];  // 2 * value, as int8
};

static constexpr DotTables make_dot_tables() {
  DotTables tables{};
  for (u32 code = 0; code < 16; ++code) {
    tables.tokens[code] = static_cast<u8>(decode_e2m1_doubled(code) + kE2m1MaxDoubled);
    tables.weights[code] = static_cast<u8>(decode_e2m1_doubled(code));
  }
  return tables;
}

constexpr DotTables kDotTables = make_dot_tables();

template <class V>
class W4A4 {
 public:
  // Values along K decoded at a time: the panel takes 24 KiB and stays in L1 while tokens pass by.
  static constexpr i64 kChunk = 1024;

  static i64 panel_bytes() {
    return kTileRows * kChunkSteps * static_cast<i64>(sizeof(WeightStep));
  }
  static i64 token_bytes(i64 tokens, i64 k) {
    return tokens * ceil_div(k, kStep) * static_cast<i64>(sizeof(TokenStep));
  }

  W4A4(const Group& group, u8* panel, u8* tokens)
      : group_(group),
        steps_(ceil_div(group.k, kStep)),
        panel_(reinterpret_cast<WeightStep*>(panel)),
        tokens_(reinterpret_cast<TokenStep*>(tokens)) {}

  void prepare_tokens(const Tile& tile) {
    for (i64 t = 0; t < tile.tokens; ++t) {
      const u8* codes = group_.x + (tile.token + t) * group_.x_row_bytes;
      for (i64 k = 0; k < group_.k; k += kChunk) {
        const KRange range{k, min_of(kChunk, group_.k - k)};
        const ScaleBytes scales = load_scales(group_.x_scales, tile.token + t, range);
        for (i64 s = 0; s < steps_in(range); ++s) {
          fill_token_step(codes, k + s * kStep, scales.of + s * kLanes,
                          tokens_[t * steps_ + k / kStep + s]);
        }
      }
    }
  }

  // Fills the panel, [rows / 8][steps][8 rows].
  void decode_weights(const Tile& tile, KRange k) {
    for (i64 r = 0; r < round_up(tile.rows, kLanes); ++r) {
      const i64 row = tile.row + min_of(r, tile.rows - 1);  // the last row again fills an octet
      const u8* codes = group_.w + row * group_.w_row_bytes;
      const ScaleBytes scales = load_scales(group_.w_scales, row, k);
      for (i64 s = 0; s < steps_in(k); ++s) {
        WeightStep& step = octet(r)[s * kLanes + r % kLanes];
        unpack(codes, k.begin + s * kStep, kDotTables.weights, reinterpret_cast<u8*>(step.codes));
        V::scaled_block_sums(step.codes, -kE2m1MaxDoubled, step.offset);
        V::store(step.scales, V::decode_e4m3(scales.of + s * kLanes));
      }
    }
  }

  void multiply(const Tile& tile, KRange k, float* accumulators) const {
    for (i64 t = 0; t < tile.tokens; ++t) {
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

  void unpack(const u8* row, i64 k, const u8* table, u8* to) const {
    const u8* packed = row + k / 2;
    if (k + kStep <= group_.k) return V::unpack_step(packed, table, to);
    u8 rest[kStep / 2] = {};
    for (i64 i = 0; i < (group_.k - k) / 2; ++i) rest[i] = packed[i];
    V::unpack_step(rest, table, to);
  }

  void fill_token_step(const u8* row, i64 k, const u8* scales, TokenStep& step) const {
    unpack(row, k, kDotTables.tokens, step.codes);
    // Both codes are doubled: a quarter makes the product of values.
    V::store(step.scales, V::multiply(V::decode_e4m3(scales), V::broadcast(0.25f)));
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
  TokenStep* tokens_;
};

}  // namespace nibblas::cpu
