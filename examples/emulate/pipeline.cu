// A two-stage pipeline: one thread loads tiles by TMA, the others add one and write them out.
//
//   producer  -- full[stage]:  1 arrival + kTileBytes -->  consumers
//   producer  <-- empty[stage]: kConsumers arrivals --     consumers
//
// One line is missing: the consumers read a tile without waiting for it. On a GPU this gives wrong
// numbers now and then; `nibblas emulate pipeline.cu --args pipeline.toml` says which line reads
// what is still being written. With -DWAIT the line is there.
using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(64) TensorMap {
  u64 opaque[16];
};

constexpr int kStages = 2;
constexpr int kConsumers = 128;
constexpr int kTileRows = 16;
constexpr int kTileBytes = kTileRows * 128;

__device__ inline u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ inline void barrier_init(u64* barrier, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}

__device__ inline void arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ inline void arrive_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ inline void wait(u64* barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

__device__ inline void load_tile(void* tile, const TensorMap* map, int row, u64* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {0, %2}], [%3];" ::"r"(shared_address(tile)),
      "l"(map), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// map: [tiles * 16, 32] u32 in boxes of 16 rows; y: the same shape.
extern "C" __global__ void __launch_bounds__(kConsumers + 32)
    add_one(const __grid_constant__ TensorMap map, uint4* y, int tiles) {
  __shared__ alignas(128) unsigned char tile[kStages][kTileBytes];
  __shared__ u64 full[kStages];
  __shared__ u64 empty[kStages];
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(&full[stage], 1);
      barrier_init(&empty[stage], kConsumers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == kConsumers) {
    for (int t = 0; t < tiles; ++t) {
      const int stage = t % kStages, round = t / kStages;
      if (round > 0) wait(&empty[stage], (round - 1) & 1);
      arrive_expect(&full[stage], kTileBytes);
      load_tile(tile[stage], &map, t * kTileRows, &full[stage]);
    }
  } else if (threadIdx.x < kConsumers) {
    for (int t = 0; t < tiles; ++t) {
      const int stage = t % kStages, round = t / kStages;
#ifdef WAIT
      wait(&full[stage], round & 1);
#endif
      uint4 value = reinterpret_cast<const uint4*>(tile[stage])[threadIdx.x];
      arrive(&empty[stage]);
      value.x += 1, value.y += 1, value.z += 1, value.w += 1;
      y[t * kConsumers + threadIdx.x] = value;
    }
  }
}
