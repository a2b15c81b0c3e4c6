// What an output column is multiplied by and added to.
#pragma once

#include "elements.cuh"

namespace nibblas {

// Factors of a column's sums as they are stored. Not multiplied yet, so that whoever loads them
// early does not wait for them.
struct ScaleFactors {
  float w_global;
  float x_global;
  float alpha;

  __device__ __forceinline__ float product() const { return w_global * x_global * alpha; }
};

static __device__ __forceinline__ ScaleFactors load_scale_factors(const Product& p, i64 group,
                                                                  i64 n) {
  ScaleFactors factors{1, 1, 1};
  if (p.w_global != nullptr) {
    const float* globals = p.w_global + group * p.w_global_group_stride;
    if (p.w_global_segment_stride != 0) {
      globals += n / p.segment_columns * p.w_global_segment_stride;
    }
    factors.w_global = *globals;
  }
  if (p.x_global != nullptr) factors.x_global = p.x_global[group * p.x_global_stride];
  if (p.alpha != nullptr) factors.alpha = p.alpha[group];
  return factors;
}

// -0, which changes nothing, where there is none.
static __device__ __forceinline__ float load_bias(const Product& p, i64 group, i64 n) {
  if (p.bias == nullptr) return -0.0f;
  return load_element(p.bias, p.bias_type, group * p.bias_group_stride + n);
}

}  // namespace nibblas
