// out = factor * x, through shared memory.
#include "../shared/types.h"
#include "config.h"
#include "params.h"

extern "C" {

__constant__ tiny::u64 nibblas_shared_bytes = tiny::kSharedBytes;
__constant__ tiny::u64 nibblas_parameter_bytes = sizeof(tiny::Params);

__global__ void __launch_bounds__(128) tiny_scale(const __grid_constant__ tiny::Params p) {
  extern __shared__ tiny::u32 staged[];
  const tiny::u64 i = blockIdx.x * 128ull + threadIdx.x;
  if (i < p.length) staged[threadIdx.x] = p.x[i];
  __syncthreads();
  if (i < p.length) p.out[i] = tiny::kFactor * staged[threadIdx.x];
}
}
