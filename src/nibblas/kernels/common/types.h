// Fixed-width types and the function marker shared by host and device code. Compiles with plain
// C++, nvcc and NVRTC, so it includes nothing.
#pragma once

// Functions in these headers are also `static`: a host build compiles them once per instruction
// set, and the linker must never swap one build's copy for another's.
#if defined(__CUDACC__)
#define NIBBLAS_HD __host__ __device__
#else
#define NIBBLAS_HD
#endif

namespace nibblas {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

static_assert(sizeof(i16) == 2 && sizeof(i32) == 4 && sizeof(i64) == 8,
              "types.h assumes the LP64 or LLP64 data model");

// Values that share one E4M3 scale.
constexpr i64 kScaleBlock = 16;

NIBBLAS_HD static constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
NIBBLAS_HD static constexpr i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }
NIBBLAS_HD static constexpr i64 min_of(i64 a, i64 b) { return a < b ? a : b; }
NIBBLAS_HD static constexpr i64 max_of(i64 a, i64 b) { return a > b ? a : b; }
NIBBLAS_HD static constexpr i64 clamp_to(i64 a, i64 low, i64 high) {
  return max_of(low, min_of(a, high));
}

}  // namespace nibblas
