// The kernel's one parameter.
#pragma once

#include "../common/product.cuh"
#include "../common/ptx/tensor_copy.cuh"
#include "config.h"

namespace nibblas::portable {

struct Params : Product {
#if NIBBLAS_CONFIG_TENSOR_COPIES
  // [groups][32][N / 32][K / 2] codes: boxes of [1][4 * kBoxSets][4][128]
  ptx::TensorMap w_map;
  // [groups][32][N / 32][K / 16] linear scales: boxes of [1][4 * kBoxSets][4][16]; or
  // [groups][row atoms][k atoms][512] blocked ones: boxes of [1][1][4][64]
  ptx::TensorMap w_scales_map;
#endif
};

}  // namespace nibblas::portable
