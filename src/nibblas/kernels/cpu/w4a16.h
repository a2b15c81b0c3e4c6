// 16-bit tokens times NVFP4 weights: weights become fp32 code * scale (at most 6 significant bits),
// tokens are widened to fp32 (at most 11 bits), so every product is exact in fp32. Both come with
// the even k of a block before its odd k, as nibbles do: lane j of an accumulator adds, block by
// block, k = 2j then k = 2j + 1.
#pragma once

#include "../common/e2m1.h"
#include "tile.h"

namespace nibblas::cpu {

template <class V>
struct Bf16Tokens {
  static typename V::F32 even(const u16* from) { return V::load_bf16_even(from); }
  static typename V::F32 odd(const u16* from) { return V::load_bf16_odd(from); }
};

template <class V>
struct Fp16Tokens {
  static typename V::F32 even(const u16* from) { return V::load_fp16_even(from); }
  static typename V::F32 odd(const u16* from) { return V::load_fp16_odd(from); }
};

template <class V, class Tokens>
class W4A16 {
 public:
  // Values along K decoded at a time: the panel takes 32 KiB and stays in L1 or L2 while tokens
  // pass.
  static constexpr i64 kChunk = 512;

  static i64 panel_bytes() { return kTileRows * kChunk * static_cast<i64>(sizeof(float)); }
  static i64 token_bytes(i64 k) { return k * static_cast<i64>(sizeof(float)); }

  // [K / 16][8 even k, 8 odd k]
  static void prepare_token(const Group& group, i64 token, u8* prepared) {
    const u16* from = reinterpret_cast<const u16*>(group.x + token * group.x_row_bytes);
    float* to = reinterpret_cast<float*>(prepared);
    for (i64 k = 0; k < group.k; k += kScaleBlock) {
      V::store(to + k, Tokens::even(from + k));
      V::store(to + k + 8, Tokens::odd(from + k));
    }
  }

  W4A16(const Group& group, const u8* prepared, u8* panel)
      : group_(group),
        panel_(reinterpret_cast<float*>(panel)),
        tokens_(reinterpret_cast<const float*>(prepared)) {}

  // Fills the panel, [rows / 4][K / 16][even, odd][4 rows][8 values].
  void decode_weights(const Tile& tile, KRange k) {
    for (i64 r = 0; r < round_up(tile.rows, kOctet); ++r) {
      const i64 row = tile.row + min_of(r, tile.rows - 1);  // the last row again fills an octet
      float scales[kChunkBlocks];
      load_scales(row, k, scales);
      decode_row(group_.w + row * group_.w_row_bytes + k.begin / 2, k.count, scales, panel_row(r));
    }
  }

  void multiply(const Tile& tile, KRange k, float* accumulators) const {
    const i64 tokens = group_.tokens;
    if (tokens == 1) return multiply_tokens<kOctet, 1>(tile.rows, 0, k, accumulators);
    i64 t = 0;
    for (; t + 3 <= tokens; t += 3) multiply_tokens<kQuad, 3>(tile.rows, t, k, accumulators);
    if (tokens - t == 2) multiply_tokens<kQuad, 2>(tile.rows, t, k, accumulators);
    if (tokens - t == 1) multiply_tokens<kQuad, 1>(tile.rows, t, k, accumulators);
  }

 private:
  static constexpr i64 kQuad = 4;   // rows interleaved in the panel, and of a micro-kernel
  static constexpr i64 kOctet = 8;  // rows of the micro-kernel for one token: as many FMA chains
  static constexpr i64 kBlockFloats = kQuad * kScaleBlock;
  static constexpr i64 kChunkBlocks = kChunk / kScaleBlock;
  static constexpr i64 kUnpacked = 64;  // values unpacked at a time

  float* panel_row(i64 r) const {
    return panel_ + r / kQuad * (kChunkBlocks * kBlockFloats) + r % kQuad * kLanes;
  }

  void load_scales(i64 row, KRange k, float* scales) const {
    u8 bytes[kChunkBlocks] = {};
    copy_scales(group_.w_scales, row, k.begin / kScaleBlock, k.count / kScaleBlock, bytes);
    for (i64 b = 0; b < kChunkBlocks; b += kLanes) {
      V::store(scales + b, V::decode_e4m3(bytes + b));
    }
  }

  static void decode_row(const u8* packed, i64 count, const float* scales, float* to) {
    i64 k = 0;
    for (; k + kUnpacked <= count; k += kUnpacked) {
      decode_blocks(packed + k / 2, kUnpacked / kScaleBlock, scales, to);
      scales += kUnpacked / kScaleBlock;
      to += kUnpacked / kScaleBlock * kBlockFloats;
    }
    if (k < count) {
      u8 rest[kUnpacked / 2] = {};
      for (i64 i = 0; i < (count - k) / 2; ++i) rest[i] = packed[k / 2 + i];
      decode_blocks(rest, (count - k) / kScaleBlock, scales, to);
    }
  }

  // `packed` holds 32 bytes whatever `blocks` is.
  static void decode_blocks(const u8* packed, i64 blocks, const float* scales, float* to) {
    typename V::F32 even[kUnpacked / kScaleBlock], odd[kUnpacked / kScaleBlock];
    V::decode_e2m1(packed, even, odd);
#pragma GCC unroll 4
    for (i64 b = 0; b < blocks; ++b, to += kBlockFloats) {
      const typename V::F32 scale = V::broadcast(scales[b]);
      V::store(to, V::multiply(even[b], scale));
      V::store(to + kQuad * kLanes, V::multiply(odd[b], scale));
    }
  }

  template <i64 kRows, i64 kTokens>
  void multiply_tokens(i64 rows, i64 token, KRange k, float* accumulators) const {
    for (i64 row = 0; row < rows; row += kRows) {
      micro_kernel<kRows, kTokens>(row, token, k, accumulators);
    }
  }

  template <i64 kRows, i64 kTokens>
  void micro_kernel(i64 row, i64 token, KRange k, float* accumulators) const {
    typename V::F32 sums[kRows][kTokens];
#pragma GCC unroll 4
    for (i64 t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
      for (i64 r = 0; r < kRows; ++r) {
        sums[r][t] = V::load(accumulators_of(accumulators, token + t, row + r));
      }
    }
    const float* w = panel_row(row);
    const float* x = tokens_ + token * group_.k + k.begin;
    for (i64 i = 0; i < k.count; i += kLanes, w += kQuad * kLanes, x += kLanes) {
      add_products<kRows, kTokens>(w, x, group_.k, sums);
    }
#pragma GCC unroll 4
    for (i64 t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
      for (i64 r = 0; r < kRows; ++r) {
        V::store(accumulators_of(accumulators, token + t, row + r), sums[r][t]);
      }
    }
  }

  template <i64 kRows, i64 kTokens>
  static void add_products(const float* w, const float* x, i64 token_stride,
                           typename V::F32 (&sums)[kRows][kTokens]) {
    typename V::F32 tokens[kTokens];
    for (i64 t = 0; t < kTokens; ++t) tokens[t] = V::load_to_register(x + t * token_stride);
#pragma GCC unroll 8
    for (i64 r = 0; r < kRows; ++r) {
      const i64 quad = r / kQuad * (kChunkBlocks * kBlockFloats);
      const typename V::F32 weights = V::load_to_register(w + quad + r % kQuad * kLanes);
      for (i64 t = 0; t < kTokens; ++t) {
        sums[r][t] = V::multiply_add(weights, tokens[t], sums[r][t]);
      }
    }
  }

  const Group& group_;
  float* panel_;
  const float* tokens_;
};

}  // namespace nibblas::cpu
