// The AMX loop nests: 32 weight rows, as two tiles a0 and a1, times tiles of 16 tokens.
//
// Up to 16 tokens (b0): both tiles of sums stay in registers for all of K, and decoding is dealt
// out between the dot products, which take as long and run beside it.
//
//     for 128 values      for 32 of them    sums += a0 x b0, a1 x b0
//                                           decode 8 rows of the next 128 values
//
// More tokens: a chunk of K is decoded into a panel in L1, then multiplied by two tiles of tokens
// at a time (b0, b1). Where L2 holds the tokens of all of K, a block is the 32 rows of a panel, and
// weights are read in the order of addresses; else it has more rows, so that L2 holds the tokens of
// a chunk for all of them.
//
//     for a block         for 256 values    for 32 rows    decode into the panel
//                                             for 32 tokens  load sums
//                                               for 32 values  4 dot products
//                                               store sums
//
// One dot-product instruction adds, for 16 rows and 16 tokens, the products of 32 values: those of
// the even places to one sum, those of the odd places to another, then both to the tile. Loading
// and storing sums changes no bit, so a result depends on K and on the token's type alone.
#pragma once

#include "amx_tokens.h"
#include "amx_weights.h"
#include "epilogue.h"

namespace nibblas::cpu {

constexpr i64 kDealtRows = 8;  // decoded after each pair of dot products of the narrow loop

static_assert(kStepTiles * kDealtRows == kAmxRows, "a step of dot products decodes a step");
static_assert(kTileSize == 2 * kDealtRows, "what is dealt out lies in one tile");

constexpr i64 kPanelSteps = 2;                 // of 128 values: 256, a panel of 16 KiB
constexpr i64 kMostRows = 256;                 // of a block, whose sums are kept
constexpr i64 kTokenBytesInL2 = i64{5} << 18;  // of the 2 MiB that cores with AMX have, at least
constexpr i64 kSumTileFloats = kTileSize * kTileSize;
constexpr i64 kSumPairFloats = 2 * kSumTileFloats;  // of two tiles of rows

static_assert(kPanelSteps >= 2, "the narrow loop needs two places of the panel");

// Stores before a tile load must be done, and those after a tile store must wait: compilers see
// neither instruction touch memory.
static inline void order_memory() { asm volatile("" ::: "memory"); }

// Tile registers: 0 to 3 sums, 4 and 5 weights, 6 and 7 tokens.
class TileRegisters {
 public:
  explicit TileRegisters(i64 columns) {
    struct alignas(64) Config {
      u8 palette = 1;
      u8 start_row = 0;
      u8 reserved[14] = {};
      u16 row_bytes[16] = {};
      u8 rows[16] = {};
    } config;
    static_assert(sizeof(Config) == 64, "ldtilecfg reads 64 bytes");
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = static_cast<u16>(tile == 4 || tile == 5 ? 64 : columns * 4);
      config.rows[tile] = kTileSize;
    }
    order_memory();  // GCC 12 thinks that only the first 8 bytes are read
    _tile_loadconfig(&config);
  }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

class AmxKernel {
 public:
  AmxKernel(const Group& group, const u8* prepared, u8* panel, float* sums)
      : group_(group), tokens_(group), prepared_(prepared), panel_(panel), sums_(sums) {}

  static i64 panel_bytes() { return kPanelSteps * kStepBytes; }
  static i64 sum_bytes(const Group& group) {
    return kMostRows / kAmxRows * ceil_div(group.tokens, kTileSize) * kSumPairFloats * 4;
  }

  template <class V>
  void run(i64 row_begin, i64 row_end) {
    const TileRegisters registers(tokens_.columns);
    if (tokens_.token_tiles > 1) {
      const bool fit = tokens_.value_bytes() <= kTokenBytesInL2;
      return fit ? run_wide<V, kAmxRows>(row_begin, row_end)
                 : run_wide<V, kMostRows>(row_begin, row_end);
    }
    for (i64 row = row_begin; row < row_end; row += kAmxRows) {
      const AmxWeights weights(group_, row, min_of(kAmxRows, row_end - row));
      if (tokens_.parts == 1) {
        multiply_narrow<1>(weights);
      } else {
        multiply_narrow<2>(weights);
      }
      write_rows<V>(row, weights.rows, sums_);
    }
  }

 private:
  template <int kParts>
  void multiply_narrow(const AmxWeights& weights) const {
    const i64 steps = weights.steps();
    _tile_zero(0);
    _tile_zero(1);
    decode_step<AmxWeights::Ahead::kNextRows>(weights, 0, panel_);
    for (i64 step = 0; step < steps; ++step) {
      const u8* a = panel_ + step % 2 * kStepBytes;
      u8* next = panel_ + (step + 1) % 2 * kStepBytes;
      const u8* b = tokens_.tile(prepared_, 0, step * kStepTiles);
      for (i64 k = 0; k < kStepTiles; ++k, a += 2 * kTileBytes) {
        order_memory();
        _tile_loadd(6, b, tokens_.row_bytes());
        if (kParts == 2) _tile_loadd(7, b + tokens_.tile_bytes(), tokens_.row_bytes());
        b += kParts * tokens_.tile_bytes();
        _tile_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (kParts == 2) _tile_dpbf16ps(0, 4, 7);
        _tile_loadd(5, a + kTileBytes, 64);
        _tile_dpbf16ps(1, 5, 6);
        if (kParts == 2) _tile_dpbf16ps(1, 5, 7);
        if (step + 1 < steps) {
          weights.decode<AmxWeights::Ahead::kNextRows>(
              step + 1, k * kDealtRows, (k + 1) * kDealtRows, next + k / 2 * kTileBytes);
        }
      }
    }
    _tile_stored(0, sums_, 64);
    _tile_stored(1, sums_ + kSumTileFloats, 64);
    order_memory();
  }

  template <class V, i64 kBlockRows>
  void run_wide(i64 row_begin, i64 row_end) const {
    const i64 row_sums = tokens_.token_tiles * kSumPairFloats;  // of 32 rows
    constexpr AmxWeights::Ahead kAhead =
        kBlockRows == kAmxRows ? AmxWeights::Ahead::kNextRows : AmxWeights::Ahead::kSameStep;
    for (i64 first = row_begin; first < row_end; first += kBlockRows) {
      const i64 last = min_of(first + kBlockRows, row_end);
      const i64 steps = ceil_div(group_.k, kStepK);
      for (i64 step = 0; step < steps; step += kPanelSteps) {
        const i64 chunk = min_of(kPanelSteps, steps - step);
        float* sums = sums_;
        for (i64 row = first; row < last; row += kAmxRows, sums += row_sums) {
          decode_panel<kAhead>(AmxWeights(group_, row, min_of(kAmxRows, last - row)), step, chunk);
          multiply_panel(step, chunk, sums);
        }
      }
      const float* sums = sums_;
      for (i64 row = first; row < last; row += kAmxRows, sums += row_sums) {
        write_rows<V>(row, min_of(kAmxRows, last - row), sums);
      }
    }
  }

  template <AmxWeights::Ahead kAhead>
  void decode_panel(const AmxWeights& weights, i64 step, i64 chunk) const {
    for (i64 s = 0; s < chunk; ++s) {
      decode_step<kAhead>(weights, step + s, panel_ + s * kStepBytes);
    }
  }

  template <AmxWeights::Ahead kAhead>
  static void decode_step(const AmxWeights& weights, i64 step, u8* to) {
    weights.decode<kAhead>(step, 0, kTileSize, to);
    weights.decode<kAhead>(step, kTileSize, kAmxRows, to + kTileBytes);
  }

  void multiply_panel(i64 step, i64 chunk, float* sums) const {
    i64 tile = 0;
    for (; tile + 2 <= tokens_.token_tiles; tile += 2) multiply_tokens<2>(step, chunk, tile, sums);
    if (tile < tokens_.token_tiles) multiply_tokens<1>(step, chunk, tile, sums);
  }

  template <int kTokenTiles>
  void multiply_tokens(i64 step, i64 chunk, i64 tile, float* all_sums) const {
    float* sums = all_sums + tile * kSumPairFloats;
    order_memory();
    if (step == 0) {
      _tile_zero(0);
      _tile_zero(1);
      if (kTokenTiles == 2) {
        _tile_zero(2);
        _tile_zero(3);
      }
    } else {
      _tile_loadd(0, sums, 64);
      _tile_loadd(1, sums + kSumTileFloats, 64);
      if (kTokenTiles == 2) {
        _tile_loadd(2, sums + 2 * kSumTileFloats, 64);
        _tile_loadd(3, sums + 3 * kSumTileFloats, 64);
      }
    }
    const u8* a = panel_;
    const u8* b0 = tokens_.tile(prepared_, tile, step * kStepTiles);
    const u8* b1 = tokens_.tile(prepared_, tile + kTokenTiles - 1, step * kStepTiles);
    for (i64 k = 0; k < chunk * kStepTiles; ++k, a += 2 * kTileBytes) {
      _tile_loadd(4, a, 64);
      _tile_loadd(5, a + kTileBytes, 64);
      for (i64 part = 0; part < tokens_.parts; ++part) {
        _tile_loadd(6, b0, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        b0 += kTileBytes;
        if (kTokenTiles == 2) {
          _tile_loadd(7, b1, 64);
          _tile_dpbf16ps(2, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
          b1 += kTileBytes;
        }
      }
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + kSumTileFloats, 64);
    if (kTokenTiles == 2) {
      _tile_stored(2, sums + 2 * kSumTileFloats, 64);
      _tile_stored(3, sums + 3 * kSumTileFloats, 64);
    }
    order_memory();
  }

  // Sums are [token tiles][2 tiles of rows][16 rows][16 tokens].
  template <class V>
  void write_rows(i64 row, i64 rows, const float* sums) const {
    for (i64 r = 0; r < rows; r += kTileSize, sums += kSumTileFloats) {
      const Tile tile{row + r, min_of(kTileSize, rows - r)};
      const TileColumns columns = load_columns(group_, tile);
      for (i64 t = 0; t < tokens_.token_tiles; ++t) {
        write_tile<V>(tile, columns, t * kTileSize, sums + t * kSumPairFloats);
      }
    }
  }

  // Not inlined, so that the registers are its own.
  template <class V>
  __attribute__((noinline)) void write_tile(const Tile& tile, const TileColumns& columns, i64 token,
                                            const float* sums) const {
    __m512i m[kTileSize];
    for (i64 r = 0; r < kTileSize; ++r) m[r] = load_64_bytes(sums + r * kTileSize);
    transpose(m);
    const Group group = group_;  // a copy, since compilers must take it that outputs overlap group_
    const i64 count = min_of(kTileSize, group.tokens - token);
    for (i64 t = 0; t < count; ++t) {
      write_columns<V>(group, tile, columns, token + t, 0, _mm512_castsi512_ps(m[t]));
    }
  }

  const Group& group_;
  const AmxTokens tokens_;
  const u8* prepared_;
  u8* panel_;
  float* sums_;
};

}  // namespace nibblas::cpu
