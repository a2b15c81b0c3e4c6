// The fifth-generation tensor core and tensor memory, sm_100 and its family; one function per
// instruction. kCtas is the instruction's cta_group: 1, or 2 for a pair of CTAs, the same in all of
// a kernel. A tensor address has the lane in its upper and the column in its lower half. PTX ISA,
// "TensorCore 5th Generation Family Instructions".
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-alloc-dealloc-relinquish-alloc-permit
// Allocates columns, a power of two from 32 to 512, and writes their address to shared memory. By a
// whole warp, of each CTA of a pair; waits while other CTAs hold the columns.
template <i32 kCtas = 1>
static __device__ __forceinline__ void tcgen05_alloc(u32 address_to, u32 columns) {
  asm volatile(
      "tcgen05.alloc.cta_group::%2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(address_to),
      "r"(columns), "n"(kCtas)
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-alloc-dealloc-relinquish-alloc-permit
// The CTA will allocate no more.
template <i32 kCtas = 1>
static __device__ __forceinline__ void tcgen05_relinquish_alloc_permit() {
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::%0.sync.aligned;" ::"n"(kCtas));
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-alloc-dealloc-relinquish-alloc-permit
// By the whole warp that allocated, of each CTA of a pair.
template <i32 kCtas = 1>
static __device__ __forceinline__ void tcgen05_dealloc(u32 tensor, u32 columns) {
  asm volatile("tcgen05.dealloc.cta_group::%2.sync.aligned.b32 %0, %1;" ::"r"(tensor), "r"(columns),
               "n"(kCtas)
               : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-cp
// 32 rows of 16 bytes to 4 columns of 32 lanes, and the same to the other three quarters of lanes:
// one atom of blocked scales. Runs before later MMAs of the thread. Each CTA of a pair copies from
// its own shared to its own tensor memory.
template <i32 kCtas = 1>
static __device__ __forceinline__ void tcgen05_cp_32x128b_warpx4(u32 tensor, u64 from) {
  asm volatile("tcgen05.cp.cta_group::%2.32x128b.warpx4 [%0], %1;" ::"r"(tensor), "l"(from),
               "n"(kCtas)
               : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-mma-instructions-mma
// d[128 x N] (+)= a[128 x 64] * b[N x 64]: packed E2M1 with a scale for every 16 values along K. A
// pair multiplies 256 rows of a: its even CTA has the first half of the rows of a, b and d, its odd
// one the others, and both have all scales of b.
template <i32 kCtas = 1>
static __device__ __forceinline__ void tcgen05_mma_nvfp4(u32 d, u64 a, u64 b, u32 instruction,
                                                         u32 a_scales, u32 b_scales,
                                                         bool accumulates) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %6, 0; "
      "tcgen05.mma.cta_group::%7.kind::mxf4nvf4.block_scale.block16 "
      "[%0], %1, %2, %3, [%4], [%5], p; }" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales),
      "r"(static_cast<u32>(accumulates)), "n"(kCtas)
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-commit
// One arrival at the barrier when all that the thread has issued (cp, mma) is complete.
static __device__ __forceinline__ void tcgen05_commit(u32 barrier) {
  asm volatile(
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-commit
// The same at the barrier of that place in every CTA of the mask.
template <i32 kCtas = 1>
static __device__ __forceinline__ void tcgen05_commit_multicast(u32 barrier, u16 ctas) {
  asm volatile(
      "tcgen05.commit.cta_group::%2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
      "[%0], %1;" ::"r"(barrier),
      "h"(ctas), "n"(kCtas)
      : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-ld
// 16 columns of the lane that is the thread's own in its warp's quarter; by a whole warp. The
// values are there after tcgen05_wait_ld.
static __device__ __forceinline__ void tcgen05_ld_32x32b_x16(u32 (&d)[16], u32 tensor) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]),
        "=r"(d[7]), "=r"(d[8]), "=r"(d[9]), "=r"(d[10]), "=r"(d[11]), "=r"(d[12]), "=r"(d[13]),
        "=r"(d[14]), "=r"(d[15])
      : "r"(tensor));
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-wait
// Waits for the thread's loads. The registers pass through, so that no use of them comes before.
static __device__ __forceinline__ void tcgen05_wait_ld(u32 (&d)[16]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]),
                 "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]),
                 "+r"(d[13]), "+r"(d[14]), "+r"(d[15])::"memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-fence
// What the thread has done with tensor memory comes before what others do after a synchronisation.
static __device__ __forceinline__ void tcgen05_fence_before_thread_sync() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#tcgen05-instructions-tcgen05-fence
// What the thread does with tensor memory comes after what others did before a synchronisation.
static __device__ __forceinline__ void tcgen05_fence_after_thread_sync() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

}  // namespace nibblas::ptx
