// A kernel that never ends, to rehearse the report of one: its second warp waits for a phase of a
// barrier at which nobody arrives. (A parity of 1 is complete from the start: it would end.)
#include "../common/ptx/address.cuh"
#include "../common/ptx/mbarrier.cuh"

extern "C" __global__ void __launch_bounds__(64) nibblas_selftest_hang(nibblas::u32 parity) {
  __shared__ nibblas::u64 never;
  const nibblas::u32 barrier = nibblas::ptx::shared_address(&never);
  if (threadIdx.x == 0) nibblas::ptx::mbarrier_init(barrier, 1);
  __syncthreads();
  if (threadIdx.x < 32) return;
  while (!nibblas::ptx::mbarrier_try_wait(barrier, parity)) {
  }
}
