// What an output column is multiplied by and added to.
#pragma once

#include "elements.cuh"

namespace nibblas {

struct ColumnFactors {
  float scale;  // w_global * x_global * alpha, in this order
  float bias;   // -0, which changes nothing, where there is none
};

static __device__ __forceinline__ ColumnFactors load_column_factors(const Product& p, i64 group,
                                                                    i64 n) {
  ColumnFactors factors{1, -0.0f};
  if (p.w_global != nullptr) {
    const float* globals = p.w_global + group * p.w_global_group_stride;
    if (p.w_global_segment_stride != 0) {
      globals += n / p.segment_columns * p.w_global_segment_stride;
    }
    factors.scale = *globals;
  }
  if (p.x_global != nullptr) factors.scale *= p.x_global[group * p.x_global_stride];
  if (p.alpha != nullptr) factors.scale *= p.alpha[group];
  if (p.bias != nullptr) {
    factors.bias = load_element(p.bias, p.bias_type, group * p.bias_group_stride + n);
  }
  return factors;
}

}  // namespace nibblas
