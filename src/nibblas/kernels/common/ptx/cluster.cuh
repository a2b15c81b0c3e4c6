// Clusters of CTAs, sm_90 and newer; one function per instruction. PTX ISA, "barrier.cluster",
// "mapa", "mbarrier".
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
// All threads of the cluster meet; what they did before is visible after.
static __device__ __forceinline__ void barrier_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
// All threads of the cluster meet, and what they wrote may still be on its way: without the fence
// of the whole GPU that .release costs.
static __device__ __forceinline__ void barrier_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::
                   : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mapa
// Where the CTA of that rank has what this CTA has at an address of shared memory.
static __device__ __forceinline__ u32 mapa(u32 address, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
// One arrival, where `condition` holds, at a barrier of any CTA of the cluster. It orders what the
// thread has read, not what it wrote for other CTAs: that takes .release.cluster, and costs a fence
// of the whole GPU.
static __device__ __forceinline__ void mbarrier_arrive_cluster_if(bool condition, u32 barrier) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cluster.b64 _, [%0]; }" ::
          "r"(barrier),
      "r"(static_cast<u32>(condition))
      : "memory");
}

}  // namespace nibblas::ptx
