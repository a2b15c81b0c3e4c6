// Ordinary accesses to shared memory by its addresses (address.cuh); one function per instruction.
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
static __device__ __forceinline__ u32 ld_shared_u32(u32 from) {
  u32 value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
}

static __device__ __forceinline__ void ld_shared_v4(u32 (&value)[4], u32 from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
               : "r"(from)
               : "memory");
}

}  // namespace nibblas::ptx
