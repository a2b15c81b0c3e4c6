// Accumulators are touched between two wgmma of one group, so ptxas runs them one by one.
extern "C" __global__ void __launch_bounds__(128, 1)
    serialised(float* out, unsigned long long a, unsigned long long b, int steps) {
  float d[4] = {};
  asm volatile("wgmma.fence.sync.aligned;");
  for (int i = 0; i < steps; ++i) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, "
        "1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a), "l"(b));
    d[0] += 1.0f;
  }
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
