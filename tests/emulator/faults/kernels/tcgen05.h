// Tensor memory and its MMAs, one function for each instruction, for GROUP CTAs together.
#pragma once

#include "ptx.h"

#if GROUP == 2
#define CTA_GROUP ".cta_group::2"
#else
#define CTA_GROUP ".cta_group::1"
#endif

__device__ inline void tensor_alloc(u32* address, u32 columns) {
  asm volatile("tcgen05.alloc" CTA_GROUP
               ".sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared_address(address)),
               "r"(columns)
               : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit" CTA_GROUP ".sync.aligned;");
}

__device__ inline void tensor_dealloc(u32 tensor, u32 columns) {
  asm volatile("tcgen05.dealloc" CTA_GROUP ".sync.aligned.b32 %0, %1;" ::"r"(tensor), "r"(columns)
               : "memory");
}

__device__ inline void fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

__device__ inline void fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

__device__ inline void load_sums(float (&d)[16], u32 tensor) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]),
        "=f"(d[7]), "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]),
        "=f"(d[14]), "=f"(d[15])
      : "r"(tensor));
}

__device__ inline void wait_loads(float (&d)[16]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
                 "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
                 "+f"(d[13]), "+f"(d[14]), "+f"(d[15])::"memory");
}

__device__ inline void store_8(u32 tensor, const u32 (&d)[8]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"r"(tensor),
      "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]), "r"(d[4]), "r"(d[5]), "r"(d[6]), "r"(d[7])
      : "memory");
}

__device__ inline void wait_stores_to_tensor() {
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

__device__ inline void shift_down(u32 tensor) {
  asm volatile("tcgen05.shift" CTA_GROUP ".down [%0];" ::"r"(tensor) : "memory");
}

__device__ inline void copy_scales(u32 tensor, u64 from) {
  asm volatile("tcgen05.cp" CTA_GROUP ".32x128b.warpx4 [%0], %1;" ::"r"(tensor), "l"(from)
               : "memory");
}

__device__ inline void multiply_fp4(u32 d, u64 a, u64 b, u32 instruction, u32 a_scales,
                                    u32 b_scales, bool adds) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma" CTA_GROUP
      ".kind::mxf4nvf4.block_scale.block16 [%0], %1, %2, %3, [%4], [%5], p;\n"
      "}" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales), "r"((u32)adds)
      : "memory");
}

__device__ inline void multiply_f16(u32 d, u32 a, u64 b, u32 instruction) {
  asm volatile("tcgen05.mma" CTA_GROUP ".kind::f16 [%0], [%1], %2, %3, 0;" ::"r"(d), "r"(a), "l"(b),
               "r"(instruction)
               : "memory");
}

__device__ inline void commit(u64* barrier) {
  asm volatile("tcgen05.commit" CTA_GROUP
               ".mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

__device__ inline void commit_to(u64* barrier, u16 mask) {
  asm volatile("tcgen05.commit" CTA_GROUP
               ".mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "h"(mask)
               : "memory");
}

// A tile whose bytes count on the even CTA's barrier.
__device__ inline void load_tile_of_pair(void* tile, const TensorMap* map, int x, int y,
                                         u64* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d" CTA_GROUP
      ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(tile)),
      "l"(map), "r"(x), "r"(y), "r"(shared_address(barrier) & 0xFEFFFFFF)
      : "memory");
}
