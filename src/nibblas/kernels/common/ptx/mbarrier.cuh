// Barriers in shared memory, sm_80 and newer; one function per instruction. `barrier` is an address
// of shared memory (address.cuh). PTX ISA, "Parallel Synchronization and Communication
// Instructions: mbarrier".
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-init
static __device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
// One arrival, which orders what the thread did before.
static __device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier)
               : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
// The same where `condition` holds, without a branch.
static __device__ __forceinline__ void mbarrier_arrive_if(bool condition, u32 barrier) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 state; setp.ne.b32 p, %1, 0; "
      "@p mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier),
      "r"(static_cast<u32>(condition))
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-cp-async-mbarrier-arrive
// One arrival, made when all cp.async that the thread has issued are complete.
static __device__ __forceinline__ void cp_async_mbarrier_arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-mbarrier-try-wait
// Whether the phase of that parity is complete; sm_90 may wait a while for it.
static __device__ __forceinline__ bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 complete;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(complete)
      : "r"(barrier), "r"(parity)
      : "memory");
#else
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(complete)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return complete != 0;
}

}  // namespace nibblas::ptx
