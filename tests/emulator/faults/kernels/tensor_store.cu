// A of an MMA stored to tensor memory by the threads, multiplied, shifted by a row, and multiplied
// again; twice, with other values.
#define GROUP 1
#include "tcgen05.h"

constexpr int kColumns = 16;  // of the products
constexpr int kRounds = 2;
constexpr u32 kTensorColumns = 64;

// in: [kRounds, 128, 8] u32, pairs of f16, A. weights: B [kColumns, 16] f16 as 2 x 2 core matrices
// of 8 rows and 16 bytes, along K first. out: [kRounds, 2, 128, kColumns].
extern "C" __global__ void __launch_bounds__(128) k(const u32* in, const u32* weights, float* out) {
  __shared__ alignas(128) u32 b[128];
  __shared__ u64 done;
  __shared__ u32 tensor;
  const int i = threadIdx.x, warp = i / 32;
  b[i] = weights[i];
  fence_proxy();
  if (warp == 0) tensor_alloc(&tensor, kTensorColumns);
  if (i == 0) barrier_init(&done, 1);
  __syncthreads();  // after init
  const u32 rows = tensor + (warp * 32 << 16);
  const u32 a = 2 * kColumns;
  for (int round = 0; round < kRounds; ++round) {
    u32 values[8];
    for (int j = 0; j < 8; ++j) values[j] = in[(round * 128 + i) * 8 + j];
    store_8(rows + a, values);
    wait_stores_to_tensor();
    fence_before();   // A
    __syncthreads();  // A is there
    if (i == 0) {
      fence_after();  // A
      const u64 from = (u64)((shared_address(b) & 0x3FFFF) >> 4) | (u64)(128 >> 4) << 16 |
                       (u64)(256 >> 4) << 32 | 1ull << 46;
      const u32 instruction = 1 << 4 | kColumns >> 3 << 17 | 128 >> 4 << 24;
      multiply_f16(tensor, tensor + a, from, instruction);
      for (u32 lane = 0; lane < 128; lane += 32) shift_down(tensor + a + (lane << 16));
      multiply_f16(tensor + kColumns, tensor + a, from, instruction);
      commit(&done);
    }
    wait(&done, round & 1);
    fence_after();  // sums
    for (int product = 0; product < 2; ++product) {
      float sums[16];
      load_sums(sums, rows + product * kColumns);
      wait_loads(sums);
      float* to = out + ((round * 2 + product) * 128 + i) * kColumns;
      for (int j = 0; j < kColumns; ++j) to[j] = sums[j];
    }
  }
  fence_before();   // the loads
  __syncthreads();  // before the deallocation
  if (warp == 0) {
    fence_after();  // the deallocation
    tensor_dealloc(tensor, kTensorColumns);
  }
}
