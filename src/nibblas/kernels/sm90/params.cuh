// The kernel's one parameter.
#pragma once

#include "../common/product.cuh"
#include "../common/ptx/tensor_copy.cuh"
#include "config.h"

namespace nibblas::sm90 {

// Token boxes have 128, 64, 32 and 16 rows.
constexpr i32 kTokenBoxes = 4;

struct Params : Product {
  ptx::TensorMap x_maps[kTokenBoxes];  // [rows][K]: boxes of [128 >> i][64]
  ptx::TensorMap w_map;                // [groups][N / 32][32][K / 2] codes: boxes of [1][4][16][64]
  // [groups][N / 32][32][K / 16] linear scales: boxes of [1][4][16][16]; or
  // [groups][row atoms][k atoms][512] blocked ones: boxes of [1][1][2][256]
  ptx::TensorMap w_scales_map;
};

}  // namespace nibblas::sm90
