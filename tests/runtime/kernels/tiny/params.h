#pragma once

#include "../shared/types.h"

namespace tiny {

struct Params {
  const u32* x;  // [length]
  u32* out;      // [length]
  u64 length;
};

}  // namespace tiny
