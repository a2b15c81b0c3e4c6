// Addresses of shared memory as PTX instructions take them.
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvta
static __device__ __forceinline__ u32 shared_address(const void* generic) {
  u64 address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(generic));
  return static_cast<u32>(address);
}

// Makes the compiler hold the value in a register, rather than work it out again where it is used.
static __device__ __forceinline__ void keep(u32& value) { asm volatile("" : "+r"(value)); }

}  // namespace nibblas::ptx
