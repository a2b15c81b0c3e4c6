// The C interface of the CPU library. Every field of NibblasProblem is 8 bytes wide, so that its
// layout is the same for every compiler and for ctypes.
#pragma once

#include <stdint.h>

#if defined(__GNUC__)
#define NIBBLAS_EXPORT __attribute__((visibility("default")))
#else
#define NIBBLAS_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Raised whenever a struct, a code or a signature below changes its meaning.
#define NIBBLAS_CPU_ABI_VERSION 3

enum NibblasType {
  NIBBLAS_BFLOAT16 = 0,
  NIBBLAS_FLOAT16 = 1,
  NIBBLAS_FLOAT32 = 2,
  NIBBLAS_E2M1X2 = 3,  // two 4-bit codes per byte, low nibble = even k
};

enum NibblasScaleLayout {
  NIBBLAS_LINEAR = 0,
  NIBBLAS_BLOCKED = 1,  // 128x4 atoms of 512 bytes
};

// First 128-row atom of each token group in blocked scales.
enum NibblasScaleStart {
  NIBBLAS_START_TORCH = 0,
  NIBBLAS_START_FLASHINFER = 1,
  NIBBLAS_START_STACKED = 2,
};

enum NibblasStatus {
  NIBBLAS_OK = 0,
  NIBBLAS_WRONG_STRUCT_SIZE = 1,
  NIBBLAS_UNSUPPORTED_LEVEL = 2,
  NIBBLAS_UNKNOWN_TYPE = 3,
  NIBBLAS_BAD_SIZE = 4,
  NIBBLAS_OUT_OF_MEMORY = 5,
  NIBBLAS_BAD_OFFS = 6,
};

// One packed or masked grouped product, out[m, n] = cast(sum_k x[m, k] * w[g(m), n, k] * factors).
// Pointers may be null where "or null" is said, and wherever the array they stand for is empty.
struct NibblasProblem {
  int64_t struct_size;  // sizeof(NibblasProblem)
  int64_t groups;
  int64_t rows;   // M, rows of x
  int64_t n;      // rows of every group's weights
  int64_t k;      // multiple of 16
  int64_t max_m;  // 0: packed; else masked: group g owns rows [g*max_m, g*max_m + offs[g])

  const void* x;              // [M, K] bf16 or fp16, or [M, K/2] packed codes; adjacent along K
  int64_t x_type;             // NibblasType
  int64_t x_row_bytes;        // from one row to the next
  const uint8_t* x_scales;    // e4m3, linear or blocked; null for 16-bit x
  int64_t x_scale_layout;     // NibblasScaleLayout
  int64_t x_scale_row_bytes;  // linear only
  int64_t x_scale_start;      // NibblasScaleStart, blocked only
  const float* x_global;      // or null
  int64_t x_global_stride;    // elements per group; 0: one for all

  const uint8_t* w;  // [G, N, K/2] packed codes, adjacent along K
  int64_t w_group_bytes;
  int64_t w_row_bytes;
  const uint8_t* w_scales;  // e4m3, linear [G, N, K/16] or blocked
  int64_t w_scale_layout;
  int64_t w_scale_group_bytes;
  int64_t w_scale_row_bytes;        // linear only
  const float* w_global;            // or null
  int64_t w_global_group_stride;    // elements; 0: the same for all groups
  int64_t w_segments;               // equal segments of the N rows, each with its own w_global
  int64_t w_global_segment_stride;  // elements

  // [G], none negative: ends (packed), never decreasing, at most M; or rows in use (masked), at
  // most max_m. Null: group 0 owns all rows.
  const int32_t* offs;
  const float* alpha;      // [G] or null
  const float* row_scale;  // [M] or null
  const void* bias;        // [N] or [G, N], or null
  int64_t bias_type;
  int64_t bias_group_stride;  // elements; 0: one for all groups

  void* out;  // [M, N]; rows outside every group are left alone
  int64_t out_type;
  int64_t out_row_stride;     // elements
  int64_t out_column_stride;  // elements

  int64_t batch_invariant;  // not 0: a row's bits do not depend on how many rows its group has
};

// Runs `body(data)` on every member of a team of up to `threads` threads, the caller among them,
// and returns when all are done. GOMP_parallel of an OpenMP runtime has this type.
typedef void (*NibblasParallelRegion)(void (*body)(void*), void* data, unsigned threads,
                                      unsigned flags);

NIBBLAS_EXPORT int32_t nibblas_cpu_abi_version(void);

// Bit l is set when this machine can run level l. Bit 0, "portable", always is.
NIBBLAS_EXPORT uint32_t nibblas_cpu_supported_levels(void);

// Name of level l, null from the first unknown l on.
NIBBLAS_EXPORT const char* nibblas_cpu_level_name(int32_t level);

NIBBLAS_EXPORT const char* nibblas_cpu_status_text(int32_t status);

// Computes `count` products in one parallel region of at most `threads` threads. `region` null: the
// library starts its own threads. Returns a NibblasStatus; writes nothing unless it is NIBBLAS_OK
// or NIBBLAS_OUT_OF_MEMORY.
NIBBLAS_EXPORT int32_t nibblas_cpu_grouped_mm(const struct NibblasProblem* problems, int64_t count,
                                              int32_t level, int32_t threads,
                                              NibblasParallelRegion region);

#ifdef __cplusplus
}
#endif
