// Prints what one core of this machine can do: fp32 FMA, int8 block dots from registers and from
// L1, and DRAM reads.
//   g++ -O3 -march=native -pthread lab/cpu/peaks.cpp -o peaks && ./peaks
#include <immintrin.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Body>
double best_seconds(int tries, Body body) {
  double best = 1e9;
  for (int i = 0; i < tries; ++i) {
    const double start = now();
    body();
    const double seconds = now() - start;
    if (seconds < best) best = seconds;
  }
  return best;
}

volatile float sink;

// Hides a value's origin from the optimiser.
template <class Vector>
void keep(Vector& v) {
  asm volatile("" : "+x"(v));
}

double fma_macs_per_s() {
  constexpr int kSteps = 200'000;
  const double seconds = best_seconds(300, [] {
    __m256 a[12];
    for (auto& v : a) v = _mm256_set1_ps(1.0f), keep(v);
    const __m256 b = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(0.001f);
    for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 12
      for (auto& v : a) v = _mm256_fmadd_ps(v, b, c);
    }
    __m256 sum = a[0];
    for (auto& v : a) sum = _mm256_add_ps(sum, v);
    sink = _mm256_cvtss_f32(sum);
  });
  return 12.0 * 8 * kSteps / seconds;
}

// The 12 operations of one 128-value step of the w4a4 kernel, operands in L1.
double block_dot_macs_per_s() {
  constexpr int kRepeats = 1'000, kSteps = 64;
  alignas(32) static unsigned char w[kSteps * 128];
  alignas(32) static signed char x[128];
  memset(w, 3, sizeof(w));
  memset(x, 2, sizeof(x));
  const double seconds = best_seconds(300, [] {
    __m256 acc[8];
    for (auto& v : acc) v = _mm256_setzero_ps(), keep(v);
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256 scale = _mm256_set1_ps(0.25f);
    for (int i = 0; i < kRepeats; ++i) {
      __m256i tokens[4];
      for (int j = 0; j < 4; ++j) {
        tokens[j] = _mm256_load_si256(reinterpret_cast<const __m256i*>(x) + j);
        keep(tokens[j]);
      }
      for (int s = 0; s < kSteps; s += 8) {
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) {
          const __m256i* row = reinterpret_cast<const __m256i*>(w + (s + r) * 128);
          __m256i sum = _mm256_maddubs_epi16(row[0], tokens[0]);
          for (int j = 1; j < 4; ++j)
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(row[j], tokens[j]));
          __m256i dots = _mm256_add_epi32(_mm256_madd_epi16(sum, ones), tokens[0]);
          const __m256 product = _mm256_mul_ps(scale, _mm256_castsi256_ps(row[0]));
          acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), product, acc[r]);
        }
      }
    }
    __m256 sum = acc[0];
    for (auto& v : acc) sum = _mm256_add_ps(sum, v);
    sink = _mm256_cvtss_f32(sum);
  });
  return 128.0 * kRepeats * kSteps / seconds;
}

double maddubs_macs_per_s() {
  constexpr int kSteps = 200'000;
  const double seconds = best_seconds(300, [] {
    __m256i a[8];
    for (auto& v : a) v = _mm256_set1_epi8(1), keep(v);
    __m256i b = _mm256_set1_epi8(1);
    for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 8
      for (auto& v : a) v = _mm256_maddubs_epi16(v, b);
    }
    __m256i sum = a[0];
    for (auto& v : a) sum = _mm256_add_epi16(sum, v);
    sink = static_cast<float>(_mm256_extract_epi16(sum, 0));
  });
  return 8.0 * 32 * kSteps / seconds;
}

double read_bytes_per_s(int threads) {
  constexpr size_t kBytes = size_t{256} << 20;
  std::vector<std::vector<char>> data(threads, std::vector<char>(kBytes, 1));
  return threads * kBytes / best_seconds(10, [&] {
           std::vector<std::thread> team;
           for (int t = 0; t < threads; ++t) {
             team.emplace_back([&, t] {
               __m256i sum = _mm256_setzero_si256();
               for (size_t i = 0; i < kBytes; i += 32)
                 sum = _mm256_add_epi8(
                     sum, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data[t].data() + i)));
               sink = static_cast<float>(_mm256_extract_epi16(sum, 0));
             });
           }
           for (auto& thread : team) thread.join();
         });
}

}  // namespace

int main() {
  printf("fp32 FMA                 %6.1f GMAC/s\n", fma_macs_per_s() / 1e9);
  printf("maddubs alone            %6.1f GMAC/s\n", maddubs_macs_per_s() / 1e9);
  printf("16-block dot, 12 ops/128 %6.1f GMAC/s\n", block_dot_macs_per_s() / 1e9);
  for (int threads : {1, 2})
    printf("DRAM read, %d thread%s     %6.1f GB/s\n", threads, threads > 1 ? "s" : " ",
           read_bytes_per_s(threads) / 1e9);
}
