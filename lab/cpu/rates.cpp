// Prints one level's rate on one group, small enough for a quiet moment of a busy machine. One
// thread, CPU time: the best try and the first quartile. Speed only; tests/kernels checks the
// results.
//   g++ -O2 -Isrc/nibblas/kernels/cpu lab/cpu/rates.cpp BUILD/libnibblas_cpu.so -Wl,-rpath,BUILD -o
//   rates
//   ./rates M N K TYPE LEVEL [COPIES]     TYPE 0 bf16, 1 fp16, 3 NVFP4; weights rotate over COPIES
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "abi.h"

namespace {

double seconds(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

constexpr uint8_t kOneScale = 0x38;
constexpr double kWallSeconds = 2;

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  const int64_t m = atol(argv[1]), n = atol(argv[2]), k = atol(argv[3]), type = atol(argv[4]);
  const int32_t level = atoi(argv[5]);
  const int64_t copies = argc > 6 ? atol(argv[6]) : 1;

  std::vector<uint8_t> x(m * k * 2), x_scales(m * k / 16, kOneScale);
  std::vector<uint8_t> w(copies * n * k / 2), w_scales(copies * n * k / 16, kOneScale);
  std::vector<uint16_t> out(m * n);
  for (uint8_t& byte : w) byte = static_cast<uint8_t>(rand());
  for (size_t i = 0; i < x.size(); ++i) {  // 16-bit tokens stay near one
    x[i] = type == NIBBLAS_E2M1X2 || i % 2 == 0 ? static_cast<uint8_t>(rand()) : 0x3C;
  }

  NibblasProblem p{};
  p.struct_size = sizeof(p);
  p.groups = 1;
  p.rows = m, p.n = n, p.k = k;
  p.x = x.data(), p.x_type = type, p.x_row_bytes = type == NIBBLAS_E2M1X2 ? k / 2 : 2 * k;
  p.x_scales = x_scales.data(), p.x_scale_row_bytes = k / 16;
  p.w_row_bytes = k / 2, p.w_scale_row_bytes = k / 16, p.w_segments = 1;
  p.out = out.data(), p.out_type = NIBBLAS_BFLOAT16, p.out_row_stride = n, p.out_column_stride = 1;

  std::vector<double> tries;
  const double start = seconds(CLOCK_MONOTONIC);
  for (int64_t i = 0; seconds(CLOCK_MONOTONIC) - start < kWallSeconds; ++i) {
    p.w = w.data() + i % copies * (n * k / 2);
    p.w_scales = w_scales.data() + i % copies * (n * k / 16);
    const double before = seconds(CLOCK_THREAD_CPUTIME_ID);
    const int32_t status = nibblas_cpu_grouped_mm(&p, 1, level, 1, nullptr);
    if (status != NIBBLAS_OK) return printf("%s\n", nibblas_cpu_status_text(status)), 1;
    tries.push_back(seconds(CLOCK_THREAD_CPUTIME_ID) - before);
  }
  std::sort(tries.begin(), tries.end());
  const double quartile = tries[tries.size() / 4], weights = static_cast<double>(n * k);
  printf("best %8.1f us, quartile %8.1f us: %6.1f GMAC/s, %6.2f G weights/s\n", tries[0] * 1e6,
         quartile * 1e6, static_cast<double>(m) * weights / quartile / 1e9,
         weights / quartile / 1e9);
}
