// A sum over the CTA through shared memory, in the old way.
#include "ptx.h"

constexpr int kThreads = 128;

// in: [n] u32; sums: one per CTA; copies: [n], a guarded copy.
extern "C" __global__ void __launch_bounds__(kThreads)
    k(const u32* in, u32* sums, u32* copies, int n) {
  __shared__ u32 partial[kThreads];
  const int i = blockIdx.x * kThreads + threadIdx.x;
  u32 value = 0;
  if (i < n) value = in[i];
  partial[threadIdx.x] = value;
  __syncthreads();  // after the first
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();  // after each half
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
  if (i < n) copies[i] = value;
}
