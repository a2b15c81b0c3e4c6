"""A warp-specialised TMA + wgmma kernel, compiled by NVRTC: C = A B^T of one 128 x 128 tile a CTA.

producer warp        waits empty[s] -> expects, loads A and B of a K step -> full[s]
two warpgroups       wait full[s] -> four wgmma of 64 x 128 x 16 -> empty[s]
epilogue             registers -> shared memory -> proxy fence -> tensor store
"""

from __future__ import annotations

SOURCE = r"""
typedef unsigned u32; typedef unsigned long long u64;
struct alignas(64) Map { u64 opaque[16]; };
constexpr int kStages = STAGES, kStepBytes = 2 * 128 * 128;

__device__ __forceinline__ u32 shared(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  asm volatile(
      "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again; }" ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void load(u32 to, const Map& map, int k, int row, u32 barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(&map), "r"(k), "r"(row), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ u64 descriptor(u32 address) {
  return u64(address >> 4 & 0x3FFF) | u64(1) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}
__device__ __forceinline__ void multiply(float (&d)[64], u64 a, u64 b, int keep) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {ACCUMULATORS},"
      " %64, %65, p, 1, 1, 0, 0; }"
      : OUTPUTS : "l"(a), "l"(b), "r"(keep));
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm(const __grid_constant__ Map a, const __grid_constant__ Map b, const __grid_constant__ Map c,
     int k) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ __align__(8) u64 full_[kStages], empty_[kStages];
  const u32 base = shared(memory), full = shared(full_), empty = shared(empty_);
  const int thread = threadIdx.x, warp = thread / 32;
  if (thread == 0) {
    for (int s = 0; s < kStages; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + 8 * s));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 256;" ::"r"(empty + 8 * s));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const int steps = k / 64, row = blockIdx.y * 128, column = blockIdx.x * 128;
  if (warp >= 8) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (thread == 256) {
      for (int step = 0; step < steps; ++step) {
        const int s = step % kStages;
        wait(empty + 8 * s, step / kStages & 1 ^ 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full + 8 * s),
                     "r"(kStepBytes) : "memory");
        load(base + s * kStepBytes, a, step * 64, row, full + 8 * s);
        load(base + s * kStepBytes + kStepBytes / 2, b, step * 64, column, full + 8 * s);
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  float d[64];
  for (int i = 0; i < 64; ++i) d[i] = 0;
  const int group = thread / 128;
  for (int step = 0; step < steps; ++step) {
    const int s = step % kStages;
    wait(full + 8 * s, step / kStages & 1);
    const u32 tile = base + s * kStepBytes;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int i = 0; i < 4; ++i)
      multiply(d, descriptor(tile + group * 8192 + 32 * i),
               descriptor(tile + kStepBytes / 2 + 32 * i), 1);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    arrive(empty + 8 * s);
  }
  // Both warpgroups are done with every stage: [128][128] bf16 begin at stage 0.
  asm volatile("bar.sync 1, 256;" ::: "memory");
  const int lane = thread % 32, quad_row = warp * 16 + lane / 4;
  for (int i = 0; i < 64; i += 2) {
    u32 two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(d[i + 1]), "f"(d[i]));
    const int at_row = quad_row + i / 2 % 2 * 8, at_column = i / 4 * 8 + lane % 4 * 2;
    *reinterpret_cast<u32*>(memory + at_row * 256 + at_column * 2) = two;
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, 256;" ::: "memory");
  if (thread == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
        ::"l"(&c), "r"(column), "r"(row), "r"(base) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
"""


def source(stages: int = 3) -> str:
    """The kernel's text."""
    accumulators = ", ".join(f"%{i}" for i in range(64))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(64))
    text = SOURCE.replace("STAGES", str(stages)).replace("ACCUMULATORS", accumulators)
    return text.replace("OUTPUTS", outputs)


def shared_bytes(stages: int = 3) -> int:
    return stages * 2 * 128 * 128 + 1024
