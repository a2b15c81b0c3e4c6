// Loads from and stores to global memory, one function per instruction. PTX ISA, "Data Movement and
// Conversion Instructions".
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
// What all threads of the GPU see there now: not a line that this multiprocessor has read before.
static __device__ __forceinline__ i32 ld_relaxed_gpu_i32(const i32* from) {
  i32 value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prefetch-prefetchu
// Brings the line of that address into L2.
static __device__ __forceinline__ void prefetch_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
// Nothing happens where `condition` is false, and nobody branches.
static __device__ __forceinline__ void st_if(bool condition, void* to, u16 value) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.b16 [%1], %2; }" ::"r"(
                   static_cast<u32>(condition)),
               "l"(to), "h"(value)
               : "memory");
}

static __device__ __forceinline__ void st_if(bool condition, void* to, u32 value) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.b32 [%1], %2; }" ::"r"(
                   static_cast<u32>(condition)),
               "l"(to), "r"(value)
               : "memory");
}

}  // namespace nibblas::ptx
