// The kernel's one parameter.
#pragma once

#include "../common/product.cuh"
#include "../common/ptx/tensor_copy.cuh"
#include "config.h"

namespace nibblas::sm90 {

constexpr i32 kWidths[] = {NIBBLAS_CONFIG_WIDTHS};  // that tiles of tokens are rounded up to
constexpr i32 kWidthCount = sizeof(kWidths) / sizeof(i32);

struct Params : Product {
  // [K / 64][rows][64]: a tile of each width, boxes of [2][width][64]
  ptx::TensorMap x_maps[kWidthCount];
  ptx::TensorMap w_map;  // [groups][N][K / 2] codes: boxes of [1][64][64]
  // [groups][N][K / 16] linear scales: boxes of [1][64][16]; or
  // [groups][row atoms][K / 32][256] blocked ones: boxes of [1][1][4][256]
  ptx::TensorMap w_scales_map;
};

}  // namespace nibblas::sm90
