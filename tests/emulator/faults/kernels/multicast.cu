// Two CTAs of a cluster: a thread of each loads half of every tile into both, and the consumers of
// both must have read a stage before either loads it again. At the end each reads a word from the
// other's shared memory.
#include "ptx.h"

constexpr int kConsumers = 64;
constexpr int kHalfRows = 8;
constexpr int kHalfBytes = kHalfRows * 64;
constexpr int kTileBytes = 2 * kHalfBytes;
constexpr int kStages = 2;

__device__ inline void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

// map: [rows, 16] u32, boxes of 8 rows, no swizzle. out: [2 CTAs, tiles + 1, 2 * 8 * 16] u32; the
// last row holds what each read from its peer.
extern "C" __global__ void __launch_bounds__(kConsumers + 32)
    k(const __grid_constant__ TensorMap map, uint4* out, int tiles) {
  __shared__ alignas(128) unsigned char tile[kStages][kTileBytes];
  __shared__ u64 full[kStages];
  __shared__ u64 empty[kStages];
  __shared__ u32 last[kConsumers];
  const u32 rank = cluster_rank(), peer = rank ^ 1;
  const int i = threadIdx.x;
  if (i == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(&full[stage], 1);
      barrier_init(&empty[stage], 2);
    }
    fence_barrier_init();
  }
  cluster_sync();  // after init
  uint4* rows = out + rank * (tiles + 1) * kConsumers;
  if (i == kConsumers) {
    for (int t = 0; t < tiles; ++t) {
      const int stage = t % kStages, round = t / kStages;
      if (round > 0) wait(&empty[stage], (round - 1) & 1);
      arrive_expect(&full[stage], kTileBytes);
      load_tile_to(&tile[stage][rank * kHalfBytes], &map, 0, (2 * t + rank) * kHalfRows,
                   &full[stage], 0b11);
    }
  } else if (i < kConsumers) {
    for (int t = 0; t < tiles; ++t) {
      const int stage = t % kStages, round = t / kStages;
      wait(&full[stage], round & 1);
      const uint4 value = *reinterpret_cast<const uint4*>(&tile[stage][16 * i]);
      sync_consumers();  // all have read
      if (i == 0) {
        arrive_at(&empty[stage], rank);
        arrive_at(&empty[stage], peer);
      }
      rows[t * kConsumers + i] = value;
      last[i] = value.x;
    }
  }
  __syncwarp();
  cluster_sync();  // before reading the peer
  u32 other = 0;
  if (i < kConsumers) other = load_remote(&last[i], peer);
  cluster_sync();  // before exit
  if (i < kConsumers) rows[tiles * kConsumers + i] = make_uint4(other, 0, 0, 0);
}
