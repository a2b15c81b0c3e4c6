// One warpgroup multiplies 64 x 16 by 8 x 16, in two steps, operands filled by threads.
#include "ptx.h"

__device__ inline u64 descriptor(const void* tile) {
  return (u64)((shared_address(tile) & 0x3ffff) >> 4) | (u64)(128 >> 4) << 16 |
         (u64)(256 >> 4) << 32;
}

__device__ inline void multiply(float (&d)[4], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b));
}

__device__ inline void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void multiply_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ inline void multiply_wait(float (&d)[4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
}

// a: [2 steps, 8 groups, 2, 8, 8] f16 bits as core matrices, b: [2 steps, 1, 2, 8, 8]; out: [64,
// 8].
extern "C" __global__ void __launch_bounds__(128) k(const uint4* a, const uint4* b, float* out) {
  __shared__ alignas(128) uint4 a_tile[2][128];
  __shared__ alignas(128) uint4 b_tile[2][16];
  const int i = threadIdx.x;
  float d[4] = {};
  for (int step = 0; step < 2; ++step) {
    a_tile[step][i] = a[step * 128 + i];
    if (i < 16) b_tile[step][i] = b[step * 16 + i];
  }
  fence_proxy();
  __syncthreads();  // operands are there
  multiply_fence();
  multiply(d, descriptor(a_tile[0]), descriptor(b_tile[0]));
  multiply(d, descriptor(a_tile[1]), descriptor(b_tile[1]));
  multiply_commit();
  multiply_wait(d);
  a_tile[0][i] = make_uint4(0, 0, 0, 0);  // the tile is free now
  const int row = i / 32 * 16 + i % 32 / 4, column = i % 4 * 2;
  out[row * 8 + column] = d[0];
  out[row * 8 + column + 1] = d[1];
  out[(row + 8) * 8 + column] = d[2];
  out[(row + 8) * 8 + column + 1] = d[3];
}
