// The copies of the tensor memory accelerator (TMA), sm_90 and newer; one function per instruction.
// Shared memory and barriers are named by their addresses (address.cuh).
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// CUtensorMap of the CUDA Driver API: made by the host, read by the accelerator, opaque here.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-elect-sync
// True in one lane of a whole warp.
static __device__ __forceinline__ bool elect_sync() {
  u32 elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 %0, 1, 0, p; }"
               : "=r"(elected));
  return elected != 0;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
// Copies the box at coordinates c0 (innermost) to c3, where `condition` holds; the barrier counts
// the bytes of a full box. Takes uniform values: other ones cost a loop over the lanes.
static __device__ __forceinline__ void cp_async_bulk_tensor_4d_if(bool condition, u32 to,
                                                                  const TensorMap& map, i32 c0,
                                                                  i32 c1, i32 c2, i32 c3,
                                                                  u32 barrier) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %7, 0; "
      "@p cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6]; }" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier), "r"(static_cast<u32>(condition))
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
// Copies the box at (c0, c1, c2), c0 innermost, by one thread; `policy` is an L2 cache policy.
static __device__ __forceinline__ void cp_async_bulk_tensor_3d(u32 to, const TensorMap& map, i32 c0,
                                                               i32 c1, i32 c2, u32 barrier,
                                                               u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "l"(policy)
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
static __device__ __forceinline__ void cp_async_bulk_tensor_4d(u32 to, const TensorMap& map, i32 c0,
                                                               i32 c1, i32 c2, i32 c3, u32 barrier,
                                                               u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier), "l"(policy)
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
// The same to that place of every CTA of the mask; the barrier of that place in each counts.
static __device__ __forceinline__ void cp_async_bulk_tensor_3d_multicast(
    u32 to, const TensorMap& map, i32 c0, i32 c1, i32 c2, u32 barrier, u16 ctas, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier), "h"(ctas), "l"(policy)
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-prefetch-tensor
// Brings a box into L2.
static __device__ __forceinline__ void cp_async_bulk_prefetch_tensor_3d(const TensorMap& map,
                                                                        i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&map),
               "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-prefetch-tensor
static __device__ __forceinline__ void cp_async_bulk_prefetch_tensor_4d(const TensorMap& map,
                                                                        i32 c0, i32 c1, i32 c2,
                                                                        i32 c3) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
// Copies adjacent bytes, a multiple of 16 from and to multiples of 16.
static __device__ __forceinline__ void cp_async_bulk(u32 to, const void* from, u32 bytes,
                                                     u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk
// The same to that place of every CTA of the mask; the barrier of that place in each counts.
static __device__ __forceinline__ void cp_async_bulk_multicast(u32 to, const void* from, u32 bytes,
                                                               u32 barrier, u16 ctas, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1], %2, [%3], %4, %5;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "h"(ctas), "l"(policy)
      : "memory");
}

// L2 cache policies as createpolicy makes them; CUTLASS, cute/arch/copy_sm90_desc.hpp.
constexpr u64 kEvictFirst = 0x12F0000000000000;
constexpr u64 kEvictLast = 0x14F0000000000000;

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
// One arrival, after which the phase also waits for that many bytes of copies.
static __device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(
          barrier),
      "r"(bytes)
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar-fence
// Makes initialised barriers visible to the accelerator, once the CTA has met.
static __device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar-fence
// Orders the thread's own accesses to shared memory before later ones of the accelerator.
static __device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prefetch-prefetchu
static __device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace nibblas::ptx
