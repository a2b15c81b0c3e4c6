// 64 live values per thread where 32 registers are allowed.
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* data) {
  float live[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) live[i] = data[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) data[65536 + i * 1024 + threadIdx.x] = live[i] * live[63 - i];
}
