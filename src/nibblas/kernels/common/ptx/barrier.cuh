// Barriers of a CTA by number, sm_70 and newer; one function per instruction. Number 0 is that of
// __syncthreads. PTX ISA, "bar, barrier".
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
// Waits until so many threads, whole warps, have come; what they did before is visible after.
template <i32 kThreads>
static __device__ __forceinline__ void barrier_sync(i32 number) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
// Counts as come, without waiting.
template <i32 kThreads>
static __device__ __forceinline__ void barrier_arrive(i32 number) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

}  // namespace nibblas::ptx
