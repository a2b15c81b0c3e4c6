// The ring of sm_80: every thread copies 16 bytes ahead of what all threads read.
#include "ptx.h"

constexpr int kThreads = 64;
constexpr int kStages = 3;

// in, out: [tiles, kThreads] uint4. A thread writes what another one has copied.
extern "C" __global__ void __launch_bounds__(kThreads) k(const uint4* in, uint4* out, int tiles) {
  __shared__ uint4 ring[kStages][kThreads];
  const int i = threadIdx.x;
  for (int t = 0; t < kStages - 1; ++t) {
    if (t < tiles) copy_16(&ring[t][i], in + t * kThreads + i);
    commit_copies();  // of the first tiles
  }
  for (int t = 0; t < tiles; ++t) {
    wait_copies<kStages - 2>();
    __syncthreads();
    const int next = t + kStages - 1;
    if (next < tiles) copy_16(&ring[next % kStages][i], in + next * kThreads + i);
    commit_copies();  // of the next tile
    out[t * kThreads + i] = ring[t % kStages][kThreads - 1 - i];
  }
}
