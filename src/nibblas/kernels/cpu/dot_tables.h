// E2M1 codes as the bytes of integer dot products, which multiply unsigned by signed bytes: one
// operand is 2 * value, the other 2 * value + 12, and the surplus 12 * (sum of the first) is
// subtracted as an integer before the scales come in.
#pragma once

#include "../common/e2m1.h"

namespace nibblas::cpu {

struct DotTables {
  alignas(16) u8 shifted[16];  // 2 * value + kE2m1MaxDoubled, as uint8
  alignas(16) u8 doubled[16];  // 2 * value, as int8
};

static constexpr DotTables make_dot_tables() {
  DotTables tables{};
  for (u32 code = 0; code < 16; ++code) {
    tables.shifted[code] = static_cast<u8>(decode_e2m1_doubled(code) + kE2m1MaxDoubled);
    tables.doubled[code] = static_cast<u8>(decode_e2m1_doubled(code));
  }
  return tables;
}

constexpr DotTables kDotTables = make_dot_tables();

}  // namespace nibblas::cpu
