// Clocks of a CTA's roles, for a copy of the kernels that instrument.py has made: pairs of a tag
// and the low 32 bits of the clock, by one lane of each warpgroup; a tag of 0 ends them.
#pragma once

#include "../common/types.h"

extern "C" {
__device__ nibblas::u32 nibblas_marks[132 * 4 * 2048 * 2];  // [CTA][warpgroup][record][tag, clock]
}

namespace nibblas::sm90 {

class Marks {
 public:
  __device__ __forceinline__ Marks()
      : at_(reinterpret_cast<u64>(nibblas_marks) +
            (blockIdx.x * 4 + threadIdx.x / 128) * (2048ull * 8)),
        writes_(threadIdx.x % 128 == 0) {}

  // Without a branch, which would end ptxas's pipeline of wgmma.
  __device__ __forceinline__ void mark(u32 tag) {
    asm volatile(
        "{ .reg .pred p; .reg .u32 c; mov.u32 c, %%clock; setp.ne.u32 p, %2, 0; "
        "@p st.global.v2.u32 [%0], {%1, c}; }" ::"l"(at_),
        "r"(tag), "r"(writes_)
        : "memory");
    at_ += 8;
  }

  __device__ __forceinline__ void timer(u32 tag) {
    asm volatile(
        "{ .reg .pred p; .reg .u32 c; mov.u32 c, %%globaltimer_lo; setp.ne.u32 p, %2, 0; "
        "@p st.global.v2.u32 [%0], {%1, c}; }" ::"l"(at_),
        "r"(tag), "r"(writes_)
        : "memory");
    at_ += 8;
  }

 private:
  u64 at_;
  u32 writes_;
};

}  // namespace nibblas::sm90
