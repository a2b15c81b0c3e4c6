// Eight-lane operations in plain C++: what every level must reproduce bit for bit.
#pragma once

#include "../common/e2m1.h"
#include "../common/e4m3.h"
#include "half.h"

namespace nibblas::cpu {

struct E2m1Values {
  float of[16];
};

static constexpr E2m1Values make_e2m1_values() {
  E2m1Values table{};
  for (u32 code = 0; code < 16; ++code) table.of[code] = decode_e2m1(code);
  return table;
}

constexpr E2m1Values kE2m1Values = make_e2m1_values();

struct Portable {
  // GCC's and Clang's vector type: two or four registers where the machine has no wider ones.
  typedef float F32 __attribute__((vector_size(32)));

  static F32 zero() { return broadcast(0.0f); }
  static F32 broadcast(float value) {
    return each([&](i64) { return value; });
  }
  static F32 load(const float* from) {
    F32 v;
    __builtin_memcpy(&v, from, sizeof(v));
    return v;
  }
  static F32 load_to_register(const float* from) { return load(from); }
  static void store(float* to, F32 v) { __builtin_memcpy(to, &v, sizeof(v)); }
  static F32 add(F32 a, F32 b) { return a + b; }
  static F32 multiply(F32 a, F32 b) { return a * b; }
  // Two roundings where FMA has one; the kernels only multiply what has an exact product.
  static F32 multiply_add(F32 a, F32 b, F32 c) { return a * b + c; }

  // Elements 0, 2, .. 14 and 1, 3, .. 15 of 16 consecutive bf16 or fp16.
  static F32 load_bf16_even(const u16* from) {
    return each([&](i64 i) { return from_bf16(from[2 * i]); });
  }
  static F32 load_bf16_odd(const u16* from) {
    return each([&](i64 i) { return from_bf16(from[2 * i + 1]); });
  }
  static F32 load_fp16_even(const u16* from) {
    return each([&](i64 i) { return from_fp16(from[2 * i]); });
  }
  static F32 load_fp16_odd(const u16* from) {
    return each([&](i64 i) { return from_fp16(from[2 * i + 1]); });
  }

  static F32 decode_e4m3(const u8* bytes) {
    return each([&](i64 i) { return nibblas::decode_e4m3(bytes[i]); });
  }

  // 32 packed bytes = 4 blocks -> values of each block's low nibbles and of its high nibbles.
  static void decode_e2m1(const u8* packed, F32 (&low)[4], F32 (&high)[4]) {
    for (i64 b = 0; b < 4; ++b) {
      low[b] = each([&](i64 i) { return kE2m1Values.of[packed[8 * b + i] & 0xF]; });
      high[b] = each([&](i64 i) { return kE2m1Values.of[packed[8 * b + i] >> 4]; });
    }
  }

  // 64 packed bytes = 8 blocks -> table entries in step order: [4][8 blocks][4 bytes], where the
  // four parts are the low then the high nibbles of each block's first and second four bytes.
  static void unpack_step(const u8* packed, const u8* table, u8* to) {
    for (i64 i = 0; i < 64; ++i) {
      const i64 half = i % 8 / 4, place = i / 8 * 4 + i % 4;
      to[half * 64 + place] = table[packed[i] & 0xF];
      to[half * 64 + 32 + place] = table[packed[i] >> 4];
    }
  }

  // Dot products of 8 blocks in step order, plus `offset`; all integers, exact.
  // Bytes are taken in pairs, as 16-bit lanes, which compilers vectorise on any machine; four times
  // two products of at most 24 * 12 fit such a lane.
  static F32 block_dots(const u8* a, const i8* b, const i32* offset) {
    i16 pairs[16] = {};
    for (i64 part = 0; part < 4; ++part) {
      u16 as[16], bs[16];
      __builtin_memcpy(as, a + part * 32, 32);
      __builtin_memcpy(bs, b + part * 32, 32);
      for (i64 i = 0; i < 16; ++i) {
        const i16 a_low = static_cast<i16>(as[i] & 0xFF);
        const i16 a_high = static_cast<i16>(as[i] >> 8);
        const i16 b_low = static_cast<i16>(static_cast<i16>(bs[i] << 8) >> 8);
        const i16 b_high = static_cast<i16>(static_cast<i16>(bs[i]) >> 8);
        pairs[i] = static_cast<i16>(pairs[i] + a_low * b_low + a_high * b_high);
      }
    }
    return each([&](i64 block) {
      return static_cast<float>(pairs[2 * block] + pairs[2 * block + 1] + offset[block]);
    });
  }

  // `factor` times the sum of each of 8 blocks in step order.
  static void scaled_block_sums(const i8* codes, i16 factor, i32* to) {
    for (i64 block = 0; block < 8; ++block) {
      i32 sum = 0;
      for (i64 part = 0; part < 4; ++part) {
        for (i64 i = 0; i < 4; ++i) sum += codes[part * 32 + block * 4 + i];
      }
      to[block] = factor * sum;
    }
  }

  // Lane r = sum of the 8 lanes of rows[r]: ((0+4)+(2+6)) + ((1+5)+(3+7)).
  static F32 reduce_rows(const float* rows) {
    return each([&](i64 r) {
      const float* v = rows + 8 * r;
      return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
    });
  }

  static F32 canonical_nan(F32 v) {
    return each([&](i64 i) { return canonical(v[i]); });
  }

  static void store_bf16(u16* to, F32 v) {
    for (i64 i = 0; i < 8; ++i) to[i] = to_bf16(v[i]);
  }
  static void store_fp16(u16* to, F32 v) {
    for (i64 i = 0; i < 8; ++i) to[i] = to_fp16(v[i]);
  }

 private:
  template <class Lane>
  static F32 each(Lane lane) {
    F32 v;
    for (i64 i = 0; i < 8; ++i) v[i] = lane(i);
    return v;
  }
};

}  // namespace nibblas::cpu
