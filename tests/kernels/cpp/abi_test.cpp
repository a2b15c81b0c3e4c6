// Drives the C interface with every array in a heap block of exactly its size, so that the address
// sanitizer sees each byte read or written outside. All levels must agree with sums in double, and
// all but "amx" give equal bits; so must that one, whatever the number of threads.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "../../../src/nibblas/kernels/common/e2m1.h"
#include "../../../src/nibblas/kernels/common/e4m3.h"
#include "../../../src/nibblas/kernels/common/scale_layout.h"
#include "abi.h"
#include "half.h"

namespace {

using namespace nibblas;

// A heap block of exactly `count` elements.
template <class T>
struct Block {
  explicit Block(i64 count, T value = {}) : count(count), data(new T[static_cast<size_t>(count)]) {
    for (i64 i = 0; i < count; ++i) data[i] = value;
  }
  T* get() const { return data.get(); }
  T& operator[](i64 i) const { return data[static_cast<size_t>(i)]; }

  i64 count;
  std::unique_ptr<T[]> data;
};

struct Spec {
  std::vector<i32> rows;
  i64 n;
  i64 k;
  i64 x_type;
  i64 scale_layout;
  i64 scale_start;
  i64 max_m;  // 0: packed
};

std::mt19937 generator(1);

u8 random_byte(int low, int high) {
  return static_cast<u8>(std::uniform_int_distribution<int>(low, high)(generator));
}

i64 total_rows(const Spec& spec) {
  i64 total = 0;
  for (const i32 rows : spec.rows) total += rows;
  return spec.max_m > 0 ? static_cast<i64>(spec.rows.size()) * spec.max_m : total;
}

// Operands of one product; scales that belong to no value are NaN.
class Operands {
 public:
  explicit Operands(const Spec& spec)
      : spec_(spec),
        groups_(static_cast<i64>(spec.rows.size())),
        m_(total_rows(spec)),
        x_(m_ * x_row_bytes()),
        x_scales_(token_scale_bytes(), kE4m3Nan),
        w_(groups_ * spec.n * spec.k / 2),
        w_scales_(groups_ * weight_scale_bytes(), kE4m3Nan),
        offs_(groups_) {
    for (i64 i = 0; i < w_.count; ++i) w_[i] = random_byte(0, 255);
    fill_tokens();
    i64 first_row = 0, torch_start = 0;
    for (i64 g = 0; g < groups_; ++g) {
      const i64 rows = spec.rows[static_cast<size_t>(g)];
      if (spec.max_m > 0) first_row = g * spec.max_m;
      const i64 start = group_start_row(static_cast<GroupStart>(spec.scale_start), g, first_row,
                                        torch_start, spec.max_m);
      begins_.push_back(first_row);
      scale_starts_.push_back(start);
      first_row += rows;
      torch_start += padded_rows(rows);
      offs_[g] = static_cast<i32>(spec.max_m > 0 ? rows : first_row);
    }
    fill_scales();
  }

  NibblasProblem problem(void* out) const {
    NibblasProblem p{};
    p.struct_size = sizeof(p);
    p.groups = groups_;
    p.rows = m_;
    p.n = spec_.n;
    p.k = spec_.k;
    p.max_m = spec_.max_m;
    p.x = x_.get();
    p.x_type = spec_.x_type;
    p.x_row_bytes = x_row_bytes();
    p.x_scales = x_scales_.get();
    p.x_scale_layout = spec_.scale_layout;
    p.x_scale_row_bytes = k_blocks();
    p.x_scale_start = spec_.scale_start;
    p.w = w_.get();
    p.w_group_bytes = spec_.n * spec_.k / 2;
    p.w_row_bytes = spec_.k / 2;
    p.w_scales = w_scales_.get();
    p.w_scale_layout = spec_.scale_layout;
    p.w_scale_group_bytes = weight_scale_bytes();
    p.w_scale_row_bytes = k_blocks();
    p.w_segments = 1;
    p.offs = offs_.get();
    p.out = out;
    p.out_type = NIBBLAS_FLOAT32;
    p.out_row_stride = spec_.n;
    p.out_column_stride = 1;
    return p;
  }

  // Largest |got - exact| / (K 2^-24 sum |x w|) over the outputs of all groups.
  double worst(const float* out) const {
    double worst = 0;
    for (i64 g = 0; g < groups_; ++g) {
      for (i64 r = 0; r < spec_.rows[static_cast<size_t>(g)]; ++r) {
        for (i64 n = 0; n < spec_.n; ++n) {
          double exact = 0, magnitude = 0;
          for (i64 k = 0; k < spec_.k; ++k) {
            const double product = token(g, r, k) * weight(g, n, k);
            exact += product;
            magnitude += std::fabs(product);
          }
          const float got = out[(begins_[static_cast<size_t>(g)] + r) * spec_.n + n];
          const double error = std::fabs(got - exact);
          if (!(error <= 1e-30)) {
            worst = std::fmax(worst, error / (magnitude * static_cast<double>(spec_.k) * 0x1p-24));
          }
          if (std::isnan(got)) return INFINITY;
        }
      }
    }
    return worst;
  }

  i64 outputs() const { return m_ * spec_.n; }

 private:
  i64 k_blocks() const { return spec_.k / kScaleBlock; }
  bool blocked() const { return spec_.scale_layout == NIBBLAS_BLOCKED; }
  bool quantized() const { return spec_.x_type == NIBBLAS_E2M1X2; }
  i64 x_row_bytes() const { return quantized() ? spec_.k / 2 : spec_.k * 2; }

  i64 token_scale_bytes() const {
    if (!quantized()) return 0;
    if (!blocked()) return m_ * k_blocks();
    i64 rows = 0;
    for (const i32 group_rows : spec_.rows) rows += padded_rows(group_rows);
    if (spec_.scale_start == NIBBLAS_START_FLASHINFER) {
      rows = (m_ + (kAtomRows - 1) * groups_) / kAtomRows * kAtomRows;
    }
    if (spec_.max_m > 0) rows = groups_ * padded_rows(spec_.max_m);
    return rows * padded_k_blocks(k_blocks());
  }
  i64 weight_scale_bytes() const {
    return blocked() ? padded_rows(spec_.n) * padded_k_blocks(k_blocks()) : spec_.n * k_blocks();
  }

  i64 token_scale(i64 g, i64 r, i64 k_block) const {
    const size_t at = static_cast<size_t>(g);
    if (blocked()) return blocked_offset(scale_starts_[at] + r, k_block, k_blocks());
    return (begins_[at] + r) * k_blocks() + k_block;
  }
  i64 weight_scale(i64 g, i64 r, i64 k_block) const {
    const i64 in_group =
        blocked() ? blocked_offset(r, k_block, k_blocks()) : r * k_blocks() + k_block;
    return g * weight_scale_bytes() + in_group;
  }

  void fill_tokens() {
    for (i64 i = 0; i < x_.count; ++i) x_[i] = random_byte(0, 255);
    if (quantized()) return;
    for (i64 i = 1; i < x_.count; i += 2) {  // sign and exponent: finite, near one
      x_[i] = static_cast<u8>((x_[i] & 0x80) | 0x3C | (x_[i] & 0x03));
    }
  }
  void fill_scales() {
    for (i64 g = 0; g < groups_; ++g) {
      for (i64 b = 0; b < k_blocks(); ++b) {
        for (i64 r = 0; quantized() && r < spec_.rows[static_cast<size_t>(g)]; ++r) {
          x_scales_[token_scale(g, r, b)] = random_byte(0, 0x60);
        }
        for (i64 r = 0; r < spec_.n; ++r) w_scales_[weight_scale(g, r, b)] = random_byte(0, 0x60);
      }
    }
  }

  double code(const Block<u8>& packed, i64 row, i64 k) const {
    return decode_e2m1(packed[row * (spec_.k / 2) + k / 2] >> (k % 2 * 4) & 0xF);
  }
  double token(i64 g, i64 r, i64 k) const {
    const i64 row = begins_[static_cast<size_t>(g)] + r;
    if (quantized()) {
      return code(x_, row, k) * decode_e4m3(x_scales_[token_scale(g, r, k / kScaleBlock)]);
    }
    u16 half;
    memcpy(&half, x_.get() + row * x_row_bytes() + k * 2, sizeof(half));
    return spec_.x_type == NIBBLAS_BFLOAT16 ? cpu::from_bf16(half) : cpu::from_fp16(half);
  }
  double weight(i64 g, i64 n, i64 k) const {
    return code(w_, g * spec_.n + n, k) *
           decode_e4m3(w_scales_[weight_scale(g, n, k / kScaleBlock)]);
  }

  const Spec& spec_;
  i64 groups_;
  i64 m_;
  Block<u8> x_, x_scales_, w_, w_scales_;
  Block<i32> offs_;
  std::vector<i64> begins_, scale_starts_;
};

void fail(const Spec& spec, const char* what) {
  printf(
      "FAILED: %s: groups %zu, n %lld, k %lld, x_type %lld, layout %lld, start %lld, max_m %lld\n",
      what, spec.rows.size(), spec.n, spec.k, spec.x_type, spec.scale_layout, spec.scale_start,
      spec.max_m);
  exit(1);
}

Block<float> computed(const Spec& spec, const Operands& operands, i32 level, i32 threads,
                      bool batch_invariant) {
  Block<float> out(operands.outputs(), NAN);
  NibblasProblem problem = operands.problem(out.get());
  problem.batch_invariant = batch_invariant;
  if (nibblas_cpu_grouped_mm(&problem, 1, level, threads, nullptr) != NIBBLAS_OK) {
    fail(spec, "status");
  }
  return out;
}

bool same_bits(const Block<float>& a, const Block<float>& b) {
  return memcmp(a.get(), b.get(), static_cast<size_t>(a.count) * sizeof(float)) == 0;
}

void test(const Spec& spec) {
  const Operands operands(spec);
  const Block<float> portable = computed(spec, operands, 0, 1, false);
  for (i32 level = 0; nibblas_cpu_level_name(level) != nullptr; ++level) {
    if ((nibblas_cpu_supported_levels() >> level & 1) == 0) continue;
    for (const bool batch_invariant : {false, true}) {
      const Block<float> alone = computed(spec, operands, level, 1, batch_invariant);
      const Block<float> team = computed(spec, operands, level, 3, batch_invariant);
      if (!same_bits(alone, team)) fail(spec, "threads differ");
      if (!(operands.worst(alone.get()) <= 1.0)) fail(spec, "beyond the error bound");
      const bool own_order = strcmp(nibblas_cpu_level_name(level), "amx") == 0;
      if (!own_order && !same_bits(alone, portable)) fail(spec, "levels differ");
    }
  }
}

}  // namespace

// With an argument: fewer sizes, for levels that are emulated.
int main(int argc, char**) {
  const bool few = argc > 1;
  const std::vector<i64> ks =
      few ? std::vector<i64>{16, 176, 528} : std::vector<i64>{16, 112, 128, 176, 528, 1040};
  const std::vector<i64> ns = few ? std::vector<i64>{21} : std::vector<i64>{1, 8, 21};
  const std::vector<i32> rows = {1, 0, 4, few ? 34 : 98};
  int tests = 0;
  for (const i64 k : ks) {
    for (const i64 n : ns) {
      for (const i64 type : {NIBBLAS_BFLOAT16, NIBBLAS_FLOAT16, NIBBLAS_E2M1X2}) {
        for (const i64 layout : {NIBBLAS_LINEAR, NIBBLAS_BLOCKED}) {
          test({rows, n, k, type, layout, NIBBLAS_START_TORCH, 0});
          test({rows, n, k, type, layout, NIBBLAS_START_FLASHINFER, 0});
          test({{3, 0, 2}, n, k, type, layout, NIBBLAS_START_STACKED, 4});
          tests += 3;
        }
      }
    }
  }
  test({{0, 0}, 4, 64, NIBBLAS_E2M1X2, NIBBLAS_BLOCKED, NIBBLAS_START_TORCH, 0});
  if (!few) test({{2}, 300, 1024, NIBBLAS_E2M1X2, NIBBLAS_BLOCKED, NIBBLAS_START_TORCH, 0});
  printf("%d passed, 0 failed\n", tests + (few ? 1 : 2));
}
