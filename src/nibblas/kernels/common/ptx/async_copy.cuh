// Asynchronous copies from global to shared memory, sm_80 and newer; one function per instruction.
// `to` is an address of shared memory (address.cuh). PTX ISA, "Data Movement and Conversion
// Instructions: cp.async".
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
// Copies 16 bytes past L1.
static __device__ __forceinline__ void cp_async_16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// The same under a predicate, with no branch.
static __device__ __forceinline__ void cp_async_16_if(bool condition, u32 to, const void* from) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16; }" ::"r"(
          to),
      "l"(from), "r"(static_cast<u32>(condition))
      : "memory");
}

// Copies 16 bytes past L1; bytes from `valid` on are zero and are not read.
static __device__ __forceinline__ void cp_async_16(u32 to, const void* from, u32 valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid)
               : "memory");
}

// Copies 8 bytes through L1 under a predicate, with no branch.
static __device__ __forceinline__ void cp_async_8_if(bool condition, u32 to, const void* from) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 8; }" ::"r"(
          to),
      "l"(from), "r"(static_cast<u32>(condition))
      : "memory");
}

// Copies 8 bytes through L1, or writes zeros when `valid` is 0.
static __device__ __forceinline__ void cp_async_8(u32 to, const void* from, u32 valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid)
               : "memory");
}

// Copies 4 bytes through L1, or writes zeros when `valid` is 0.
static __device__ __forceinline__ void cp_async_4(u32 to, const void* from, u32 valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid)
               : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-wait-all
// Waits for all of the thread's copies.
static __device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace nibblas::ptx
