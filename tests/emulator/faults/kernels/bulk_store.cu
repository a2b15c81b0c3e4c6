// Threads fill a tile in shared memory, one of them sends it out by a bulk copy, again and again.
#include "ptx.h"

constexpr int kThreads = 64;

// in, out: [tiles, kThreads] u32; out = 3 * in.
extern "C" __global__ void __launch_bounds__(kThreads) k(const u32* in, u32* out, int tiles) {
  __shared__ alignas(128) u32 staged[kThreads];
  const int i = threadIdx.x;
  for (int t = 0; t < tiles; ++t) {
    staged[i] = 3 * in[t * kThreads + i];
    fence_proxy();
    __syncthreads();  // before the store
    if (i == 0) {
      store_bytes(out + t * kThreads, staged, sizeof(staged));
      commit_stores();
      wait_stores_read();
    }
    __syncthreads();  // before the next
  }
  if (i == 0) wait_stores();
}
