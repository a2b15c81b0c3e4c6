// NVFP4 values as bfloat16 tile rows for AMX. Code x scale has at most 6 significant bits, so it is
// exact. A dot product may take its terms in any order, as long as both operands agree: 32 values
// of a tile row stand in the order in which VPMULTISHIFTQB, which takes bytes from any bit of their
// own 64-bit part, takes them from four copies of 16 packed bytes,
//
//     place 8 * j + i  holds  k = 4 * i + j         word i of the bytes, nibble j of the word
#pragma once

#include "../common/e4m3.h"
#include "vec_avx512.h"

namespace nibblas::cpu {

constexpr i64 kTileK = 32;        // values of a tile row, 64 bytes
constexpr i64 kStepK = 128;       // values decoded at a time, a cache line of a packed row
constexpr i64 kTileSize = 16;     // rows of a tile, and fp32 columns of a tile of sums
constexpr i64 kTileBytes = 1024;  // of a full tile
constexpr i64 kStepTiles = kStepK / kTileK;

// bfloat16 code x scale by scale byte and code.
struct ScaledCodes {
  alignas(64) u16 of[256][16];
};

static constexpr ScaledCodes make_scaled_codes() {
  ScaledCodes table{};
  for (u32 scale = 0; scale < 256; ++scale) {
    for (u32 code = 0; code < 16; ++code) {
      table.of[scale][code] = to_bf16(canonical(decode_e2m1(code) * decode_e4m3(scale)));
    }
  }
  return table;
}

static constexpr ScaledCodes kScaledCodes = make_scaled_codes();

static inline __m256i scaled_codes(u8 scale) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(kScaledCodes.of[scale]));
}

// How the 64 bytes of a tile row index two blocks' 32 bytes of the table: bit 5 is the block, bits
// 1 to 4 the code, bit 0 the half of the bfloat16.
struct TileIndices {
  alignas(64) u8 from_bit[64];  // of the 64-bit part: one before the code
  alignas(64) u8 block_and_half[64];
};

static constexpr u8 kCodeBits = 0x1E;

static constexpr TileIndices make_tile_indices() {
  TileIndices indices{};
  for (u32 place = 0; place < 32; ++place) {
    const u32 word = place % 8, nibble = place / 8;
    for (u32 half = 0; half < 2; ++half) {
      indices.from_bit[2 * place + half] = static_cast<u8>((word * 16 + nibble * 4 + 63) % 64);
      indices.block_and_half[2 * place + half] = static_cast<u8>(word / 4 * 32 + half);
    }
  }
  return indices;
}

static constexpr TileIndices kTileIndices = make_tile_indices();

// The registers of decode_tile_row, for loops that call it.
struct TileOrder {
  __m512i from_bit;
  __m512i code_bits;
  __m512i block_and_half;

  static TileOrder make() {
    return {load_64_bytes(kTileIndices.from_bit), _mm512_set1_epi8(kCodeBits),
            load_64_bytes(kTileIndices.block_and_half)};
  }
};

// 16 packed bytes, two blocks with a scale each -> a tile row.
static inline __m512i decode_tile_row(const TileOrder& order, const u8* packed, u8 first_scale,
                                      u8 second_scale) {
  const __m512i words =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
  constexpr int kFirstAndSecondOrThird = 0xEA;
  const __m512i index =
      _mm512_ternarylogic_epi32(_mm512_multishift_epi64_epi8(order.from_bit, words),
                                order.code_bits, order.block_and_half, kFirstAndSecondOrThird);
  const __m512i first = _mm512_castsi256_si512(scaled_codes(first_scale));
  return _mm512_permutexvar_epi8(index, _mm512_inserti64x4(first, scaled_codes(second_scale), 1));
}

// Where the words of 32 consecutive values go, for a permutation; each value is the upper half of
// `words` words.
struct WordOrder {
  alignas(64) u16 of[32];
};

static constexpr WordOrder make_word_order(i64 words) {
  WordOrder order{};
  for (i64 place = 0; place < 32; ++place) {
    const i64 k = place % 8 * 4 + place / 8;
    order.of[place] = static_cast<u16>(words * k + words - 1);
  }
  return order;
}

static constexpr WordOrder kOrderOfHalves = make_word_order(1);
static constexpr WordOrder kOrderOfFloats = make_word_order(2);

}  // namespace nibblas::cpu
