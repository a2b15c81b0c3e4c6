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

  __device__ __forceinline__ void mark(u32 tag) {
    u32 clock;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(clock)::"memory");
    record(tag, clock);
  }

  __device__ __forceinline__ void timer(u32 tag) {
    u32 nanoseconds;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(nanoseconds)::"memory");
    record(tag, nanoseconds);
  }

 private:
  // Without a branch, which would end ptxas's pipeline of wgmma.
  __device__ __forceinline__ void record(u32 tag, u32 value) {
    asm volatile(
        "{ .reg .pred p; setp.ne.u32 p, %3, 0; @p st.global.v2.u32 [%0], {%1, %2}; }" ::"l"(at_),
        "r"(tag), "r"(value), "r"(writes_)
        : "memory");
    at_ += 8;
  }

  u64 at_;
  u32 writes_;
};

}  // namespace nibblas::sm90
