// One grouped product as kernels are given it: addresses, strides and the epilogue's factors.
// backends/product_params.py packs it.
#pragma once

#include "types.h"

namespace nibblas {

enum class ElementType : i32 { kBf16 = 0, kFp16 = 1, kFp32 = 2 };
enum class ScaleLayout : i32 { kLinear = 0, kBlocked = 1 };

// A matrix of codes or 16-bit values, and how wide its rows may be read.
struct Rows {
  const u8* bytes;
  i64 group_bytes;  // from one group's matrix to the next; weights only
  i64 row_bytes;
  i64 vector;  // 16, 8, 4 or 1: every 16-byte piece of a row is aligned to it
};

// Block scales of a matrix.
struct Scales {
  const u8* bytes;
  union {
    i64 group_bytes;  // weights: from one group's to the next
    i64 rows;         // blocked tokens: all that there are
  };
  i64 row_bytes;  // linear only
  i64 vector;     // 16, 8, 4 or 1
  ScaleLayout layout;
  i32 start_rule;  // GroupStart; tokens only
};

struct Product {
  Rows x;  // [rows, K] 16-bit, or [rows, K/2] codes
  Scales x_scales;
  Rows w;  // [groups, N, K/2] codes
  Scales w_scales;

  const i32* offs;  // [groups]: cumulative ends, or rows in use when max_m > 0; null: one group
  i64 groups;
  i64 rows;
  i64 n;
  i64 k;
  i64 max_m;

  const float* x_global;  // [1] or [groups]; null: 1
  i64 x_global_stride;
  const float* w_global;  // [1], [groups] or [groups, segments]; null: 1
  i64 w_global_group_stride;
  i64 w_global_segment_stride;
  i64 segment_columns;
  const float* alpha;      // [groups] or null
  const float* row_scale;  // [rows] or null
  const void* bias;        // [n] or [groups, n], or null
  i64 bias_group_stride;

  void* out;  // [rows, n]
  i64 out_row_stride;
  i64 out_column_stride;
  ElementType bias_type;
  ElementType out_type;
};

}  // namespace nibblas
