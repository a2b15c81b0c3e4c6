// Prints what cores with AMX can do, one alone and two at once: dot products, tile loads, the
// kernels' decoder, and reads of weights in the orders that kernels could take. Speed only.
//   g++ -O2 -march=sapphirerapids -std=c++17 -pthread -w -Isrc/nibblas/kernels/cpu
//   lab/cpu/amx_probe.cpp -o probe && taskset -c 2,4 ./probe
#include <immintrin.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "amx_kernel.h"

using namespace nibblas;
using namespace nibblas::cpu;

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Body>
double best_seconds(Body body) {
  double best = 1e9;
  for (int i = 0; i < 15; ++i) {
    const double start = now();
    body();
    best = std::min(best, now() - start);
  }
  return best;
}

// By a chain of additions of one cycle each.
double ghz() {
  constexpr long kSteps = 20'000'000;
  const double seconds = best_seconds([] {
    long a = 1;
    for (long i = 0; i < kSteps / 4; ++i) {
      asm volatile("add %0, %0\n add %0, %0\n add %0, %0\n add %0, %0" : "+r"(a));
    }
  });
  return kSteps / seconds * 1e-9;
}

double cycles_per_second;
constexpr size_t kTilesBytes = 1 << 21;

// bfloat16 between 2^-8 and 1, or zeros.
void fill_tiles(u8* tiles, bool zeros) {
  for (size_t i = 0; i < kTilesBytes; i += 2) {
    tiles[i] = zeros ? 0 : static_cast<u8>(rand());
    tiles[i + 1] = zeros ? 0 : static_cast<u8>(0x3C + rand() % 4);
  }
}

constexpr int kRounds = 1 << 13;

// 32 rows of 2048 values to decode, in L1 and L2.
struct Decoded {
  std::vector<u8> w = std::vector<u8>(64 * 1024), scales = std::vector<u8>(64 * 128);
  Group group{};

  Decoded() {
    for (u8& byte : w) byte = static_cast<u8>(rand());
    for (u8& byte : scales) byte = static_cast<u8>(0x28 + rand() % 32);
    group.n = 64;
    group.k = 2048;
    group.w = w.data();
    group.w_row_bytes = 1024;
    group.w_scales = {scales.data(), 128, 0, 128, false};
  }
};

class Core {
 public:
  explicit Core(const char* name)
      : name_(name), tiles_(static_cast<u8*>(aligned_alloc(4096, kTilesBytes))) {}
  ~Core() { free(tiles_); }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  void show() const {
    const TileRegisters registers(16);
    for (const bool zeros : {true, false}) {
      fill_tiles(tiles_, zeros);
      show_dots(zeros ? "zeros" : "random values");
    }
    show("tile load, 4 KiB", 4, [&](int) { load(tiles_); });
    show("tile load, 1 MiB", 4, [&](int i) { load(tiles_ + i % 256 * 4096); });
    show("tile store", 2, [&](int) {
      _tile_stored(0, tiles_, 64);
      _tile_stored(1, tiles_ + 1024, 64);
    });
    const Decoded data;
    const AmxWeights weights(data.group, 0, kAmxRows);
    show("128 weights decoded", kDealtRows, [&](int i) { decode(weights, i); });
  }

 private:
  template <class Round>
  void show(const char* what, double instructions, Round round) const {
    const double seconds = best_seconds([&] {
      for (int i = 0; i < kRounds; ++i) round(i);
    });
    printf("%-8s %-52s %6.1f cycles each\n", name_, what,
           seconds / kRounds / instructions * cycles_per_second);
  }

  void show_dots(const char* values) const {
    const auto title = [&](const char* what) { return std::string(what) + ", " + values; };
    const Decoded data;
    const AmxWeights weights(data.group, 0, kAmxRows);
    load(tiles_);
    show(title("dot product").c_str(), 4, [](int) { dots(); });
    show(title("dot product, 2 x 2 from 32 KiB").c_str(), 4, [&](int i) { square(i); });
    show(title("the same twice and 8 rows of 128 weights").c_str(), 8, [&](int i) {
      square(2 * i);
      square(2 * i + 1);
      decode(weights, i);
    });
  }

  static void dots() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  static void load(const u8* at) {
    _tile_loadd(4, at, 64);
    _tile_loadd(5, at + 1024, 64);
    _tile_loadd(6, at + 2048, 64);
    _tile_loadd(7, at + 3072, 64);
  }
  void square(int i) const {
    load(tiles_ + i % 8 * 4096);
    dots();
  }
  void decode(const AmxWeights& weights, int i) const {
    const i64 row = i % 4 * kDealtRows;
    u8* panel = tiles_ + kTilesBytes / 2 + row / kTileSize * kTileBytes;
    weights.decode<AmxWeights::Ahead::kNextRows>(i / 4 % 16, row, row + kDealtRows, panel);
  }

  const char* name_;
  u8* tiles_;
};

void show_cores() {
  Core("one").show();
  Core a("two, a"), b("two, b");
  std::thread other([&] { b.show(); });
  a.show();
  other.join();
}

enum class Order { kLinear, kLines, kPieces };
enum class Ahead { kNothing, kSamePlace, kLinear };

constexpr i64 kRowBytes = 1024;

void use(__m512i& x, const u8* at) { x = _mm512_xor_si512(x, load_64_bytes(at)); }

template <Ahead kAhead>
void prefetch(const u8* same_place, const u8*& linear) {
  if (kAhead == Ahead::kSamePlace) _mm_prefetch(same_place, _MM_HINT_T1);
  if (kAhead == Ahead::kLinear) {
    _mm_prefetch(linear, _MM_HINT_T1);
    linear += 64;
  }
}

// Reads rows in order; or 32 rows a line at a time; or 16 rows 512 bytes at a time.
template <Order kOrder, Ahead kAhead>
void read(const u8* w, i64 rows) {
  constexpr i64 kRows = kOrder == Order::kPieces ? 16 : 32;
  constexpr i64 kPiece = kOrder == Order::kLinear ? kRowBytes : kOrder == Order::kLines ? 64 : 512;
  __m512i x = _mm512_setzero_si512();
  for (i64 first = 0; first < rows; first += kRows, w += kRows * kRowBytes) {
    const u8* linear = w + 32 * kRowBytes;
    for (i64 piece = 0; piece < kRowBytes; piece += kPiece) {
      for (i64 r = 0; r < kRows; ++r) {
        for (i64 line = 0; line < kPiece; line += 64) {
          const u8* at = w + r * kRowBytes + piece + line;
          prefetch<kAhead>(at + kRows * kRowBytes, linear);
          use(x, at);
        }
      }
    }
  }
  asm volatile("" : : "v"(x));
}

constexpr i64 kBytes = i64{440} << 20;
constexpr i64 kBytesRead = i64{60} << 20;

template <Order kOrder, Ahead kAhead>
void show_reads(const char* what, const u8* weights) {
  static i64 begin = 0;
  printf("%-52s", what);
  for (const int threads : {1, 2}) {
    const i64 rows = kBytesRead / kRowBytes / threads / 32 * 32;
    std::atomic<int> ready{0};
    double seconds = 0;
    std::vector<std::thread> team;
    for (int id = 0; id < threads; ++id) {
      team.emplace_back([&, id] {
        ++ready;
        while (ready < threads) {
        }
        const double start = now();
        read<kOrder, kAhead>(weights + begin + id * rows * kRowBytes, rows);
        if (id == 0) seconds = now() - start;
      });
    }
    for (std::thread& thread : team) thread.join();
    printf(" %5.1f GB/s", static_cast<double>(threads * rows * kRowBytes) / seconds * 1e-9);
    begin = (begin + kBytesRead) % (kBytes - 2 * kBytesRead);
  }
  printf("\n");
}

}  // namespace

int main() {
  if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return printf("no AMX\n"), 1;
  cycles_per_second = ghz() * 1e9;
  printf("%.2f GHz\n", cycles_per_second * 1e-9);
  show_cores();
  u8* weights = static_cast<u8*>(aligned_alloc(4096, static_cast<size_t>(kBytes)));
  memset(weights, 0x35, static_cast<size_t>(kBytes));
  show_reads<Order::kLinear, Ahead::kNothing>("in order", weights);
  show_reads<Order::kLinear, Ahead::kLinear>("in order, prefetched in order", weights);
  show_reads<Order::kLines, Ahead::kNothing>("32 rows a line at a time", weights);
  show_reads<Order::kLines, Ahead::kSamePlace>("the same, next rows' place prefetched", weights);
  show_reads<Order::kLines, Ahead::kLinear>("the same, prefetched in order", weights);
  show_reads<Order::kPieces, Ahead::kNothing>("16 rows x 512 bytes", weights);
  show_reads<Order::kPieces, Ahead::kLinear>("the same, prefetched in order", weights);
}
