// An NVFP4 product by a pair of CTAs: each loads half of A, half of B and its scales into a ring,
// the even one multiplies for both, and each stores the sums of its half of the rows.
#define GROUP 2
#include "tcgen05.h"

constexpr int kRows = 128;    // of A, per CTA
constexpr int kColumns = 64;  // of the product
constexpr int kStages = 2;
constexpr u32 kTensorColumns = 128;

struct alignas(1024) Stage {
  unsigned char a[kRows * 128];
  unsigned char b[kColumns / 2 * 128];
  unsigned char a_scales[2048];
  unsigned char b_scales[2048];
};

__device__ inline u64 operand(const void* p) {
  return (u64)((shared_address(p) & 0x3FFFF) >> 4) | (u64)(1024 >> 4) << 32 | 1ull << 46 |
         2ull << 61;
}

__device__ inline u64 scales(const void* p) {
  return (u64)((shared_address(p) & 0x3FFFF) >> 4) | (u64)(128 >> 4) << 32 | 1ull << 46;
}

// a, b: [rows, 128 steps] bytes of codes. a_scales: [steps, 2 CTAs, 16, 128], b_scales: [steps, 16,
// 128]. out: [2 * kRows, kColumns].
extern "C" __global__ void __launch_bounds__(192)
    k(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
      const __grid_constant__ TensorMap a_scales, const __grid_constant__ TensorMap b_scales,
      float* out, int steps) {
  extern __shared__ __align__(1024) Stage stages[];
  __shared__ u64 full[kStages];
  __shared__ u64 empty[kStages];
  __shared__ u64 done;
  __shared__ u32 tensor;
  const u32 rank = cluster_rank();
  const int i = threadIdx.x, warp = i / 32;
  if (warp == 5) {
    tensor_alloc(&tensor, kTensorColumns);
    fence_before();  // the address
  }
  if (i == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(&full[stage], 1);
      barrier_init(&empty[stage], 1);
    }
    barrier_init(&done, 1);
    fence_barrier_init();
  }
  cluster_sync();  // after init
  fence_after();   // tensor memory
  if (i == 4 * 32) {
    for (int t = 0; t < steps; ++t) {
      const int stage = t % kStages, round = t / kStages;
      Stage& to = stages[stage];
      if (round > 0) wait(&empty[stage], (round - 1) & 1);
      if (rank == 0) arrive_expect(&full[stage], 2 * sizeof(Stage));
      load_tile_of_pair(to.a, &a, 128 * t, kRows * rank, &full[stage]);
      load_tile_of_pair(to.b, &b, 128 * t, kColumns / 2 * rank, &full[stage]);
      load_tile_of_pair(to.a_scales, &a_scales, 0, 16 * (2 * t + rank), &full[stage]);
      load_tile_of_pair(to.b_scales, &b_scales, 0, 16 * t, &full[stage]);
    }
    for (int t = steps; t < steps + kStages; ++t) wait(&empty[t % kStages], (t / kStages - 1) & 1);
  } else if (i == 5 * 32 && rank == 0) {
    const u32 instruction = 1 << 7 | 1 << 10 | kColumns >> 3 << 17 | 2 * kRows >> 7 << 27;
    for (int t = 0; t < steps; ++t) {
      const int stage = t % kStages, round = t / kStages;
      const Stage& from = stages[stage];
      const u32 columns = tensor + kColumns + 32 * stage;
      wait(&full[stage], round & 1);
      fence_after();  // the stage
      for (int atom = 0; atom < 4; ++atom) {
        copy_scales(columns + 4 * atom, scales(from.a_scales + 512 * atom));
        copy_scales(columns + 16 + 4 * atom, scales(from.b_scales + 512 * atom));
      }
      for (int atom = 0; atom < 4; ++atom) {
        multiply_fp4(tensor, operand(from.a) + 2 * atom, operand(from.b) + 2 * atom, instruction,
                     columns + 4 * atom, columns + 16 + 4 * atom, t + atom > 0);
      }
      commit_to(&empty[stage], 0b11);
    }
    commit_to(&done, 0b11);
  } else if (warp < 4) {
    wait(&done, 0);
    fence_after();  // sums
    for (int column = 0; column < kColumns; column += 16) {
      float sums[16];
      load_sums(sums, tensor + (warp * 32 << 16) + column);
      wait_loads(sums);
      for (int j = 0; j < 16; ++j) out[(rank * kRows + i) * kColumns + column + j] = sums[j];
    }
    fence_before();  // the loads
  }
  __syncwarp();
  cluster_sync();  // before the deallocation
  if (warp == 5) {
    fence_after();  // before the deallocation
    tensor_dealloc(tensor, kTensorColumns);
  }
}
