// Loads from global memory, one function per instruction. PTX ISA, "Data Movement and Conversion
// Instructions".
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

}  // namespace nibblas::ptx
