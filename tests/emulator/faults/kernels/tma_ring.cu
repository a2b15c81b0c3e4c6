// A ring of tiles: one thread loads by tensor copies, 128 threads read and add one.
//
//   producer  -- full[stage]: 1 arrival + kTileBytes -->  128 consumers
//   producer  <-- empty[stage]: 128 arrivals --           consumers
#include "ptx.h"

constexpr int kStages = 3;
constexpr int kTileRows = 16;
constexpr int kTileBytes = kTileRows * 128;
constexpr int kConsumers = 128;

// map: [rows, 32] u32, boxes of 16 rows, 128-byte swizzle. out: the same shape.
extern "C" __global__ void __launch_bounds__(kConsumers + 32)
    k(const __grid_constant__ TensorMap map, uint4* out, int tiles) {
  __shared__ alignas(1024) unsigned char tile[kStages][kTileBytes];
  __shared__ u64 full[kStages];
  __shared__ u64 empty[kStages];
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(&full[stage], 1);
      barrier_init(&empty[stage], kConsumers);
    }
    fence_barrier_init();
  }
  __syncthreads();  // after init
  if (threadIdx.x == kConsumers) {
    for (int t = 0; t < tiles; ++t) {
      const int stage = t % kStages, round = t / kStages;
      if (round > 0) wait(&empty[stage], (round - 1) & 1);
      arrive_expect(&full[stage], kTileBytes);
      load_tile(tile[stage], &map, 0, t * kTileRows, &full[stage]);
    }
  } else if (threadIdx.x < kConsumers) {
    const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
    for (int t = 0; t < tiles; ++t) {
      const int stage = t % kStages, round = t / kStages;
      wait(&full[stage], round & 1);
      const int at = row * 128 + (piece ^ row % 8) * 16;
      uint4 value = *reinterpret_cast<const uint4*>(&tile[stage][at]);
      arrive(&empty[stage]);
      value.x += 1, value.y += 1, value.z += 1, value.w += 1;
      out[(t * kTileRows + row) * 8 + piece] = value;
    }
  }
}
