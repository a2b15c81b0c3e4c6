// Clusters of CTAs, sm_90 and newer; one function per instruction. PTX ISA,
// "barrier.cluster".
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
// All threads of the cluster meet; what they did before is visible after.
static __device__ __forceinline__ void barrier_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

}  // namespace nibblas::ptx
