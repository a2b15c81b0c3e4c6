// What the sums of a group are multiplied by, and where its outputs go: y = sum * s, with
// s = w_global * x_global, then s *= alpha; y *= row_scale; y += bias; out = cast(y).
#pragma once

#include "../common/elements.cuh"
#include "items.cuh"

namespace nibblas::sm100 {

// s, for the columns that share a factor.
class GroupFactors {
 public:
  __device__ GroupFactors(const Product& p, i32 group) : p_(p), group_(group) {
    if (p.x_global != nullptr) x_global_ = p.x_global[group * p.x_global_stride];
    if (p.alpha != nullptr) alpha_ = p.alpha[group];
  }

  __device__ float of_segment(i64 segment) const {
    float w_global = 1;
    if (p_.w_global != nullptr) {
      w_global =
          p_.w_global[group_ * p_.w_global_group_stride + segment * p_.w_global_segment_stride];
    }
    return w_global * x_global_ * alpha_;
  }

  __device__ float bias(i64 column) const {
    return load_element(p_.bias, p_.bias_type, group_ * p_.bias_group_stride + column);
  }

 private:
  const Product& p_;
  i32 group_;
  float x_global_ = 1;
  float alpha_ = 1;
};

// In 32 bits: 64-bit divisions are calls.
static __device__ __forceinline__ i64 segment_of(const Product& p, i64 column) {
  return static_cast<u32>(column) / static_cast<u32>(p.segment_columns);
}

// Whether rows of outputs take stores of 16 bytes, from columns that are multiples of 8.
static __device__ __forceinline__ bool takes_vectors(const Product& p) {
  const u64 row_bytes = p.out_row_stride * bytes_of(p.out_type);
  return p.out_column_stride == 1 && (reinterpret_cast<u64>(p.out) | row_bytes) % 16 == 0;
}

}  // namespace nibblas::sm100
