// From partial sums to outputs. In fp32 and in this order, absent factors left out:
//   s = w_global * x_global * alpha; y = sum * s; y = y * row_scale; y = y + bias; out = cast(y)
#pragma once

#include "half.h"
#include "tile.h"

namespace nibblas::cpu {

// Factors and bias of a tile's rows, which are columns of the output.
struct TileColumns {
  alignas(64) float scale[kTileRows];
  alignas(64) float bias[kTileRows];
};

static inline float column_scale(const Group& group, i64 row) {
  float scale = 1.0f;
  if (group.w_global != nullptr) {
    scale = group.w_global[row / (group.n / group.segments) * group.segment_stride];
  }
  if (group.x_global != nullptr) scale *= *group.x_global;
  if (group.alpha != nullptr) scale *= *group.alpha;
  return scale;
}

static inline TileColumns load_columns(const Group& group, const Tile& tile) {
  TileColumns columns{};
  for (i64 r = 0; r < tile.rows; ++r) {
    columns.scale[r] = column_scale(group, tile.row + r);
    if (group.bias != nullptr) {
      columns.bias[r] = load_as_float(group.bias, group.bias_type, tile.row + r);
    }
  }
  return columns;
}

template <class V>
static void store_as(u8* to, i64 type, typename V::F32 y) {
  switch (type) {
    case NIBBLAS_BFLOAT16:
      return V::store_bf16(reinterpret_cast<u16*>(to), y);
    case NIBBLAS_FLOAT16:
      return V::store_fp16(reinterpret_cast<u16*>(to), y);
    default:
      return V::store(reinterpret_cast<float*>(to), y);
  }
}

template <class V>
static constexpr i64 kLanesOf = sizeof(typename V::F32) / sizeof(float);

// Writes `count` neighbouring columns of one output row, at most as many as there are lanes.
template <class V>
static void store_columns(const Group& group, i64 token, i64 column, i64 count, typename V::F32 y) {
  const i64 bytes = type_bytes(group.out_type);
  const i64 stride = group.out_column_stride * bytes;
  u8* to = group.out + token * group.out_row_stride * bytes + column * stride;
  const bool whole = count == kLanesOf<V> && group.out_column_stride == 1;
  if (whole) return store_as<V>(to, group.out_type, y);
  alignas(64) u8 row[sizeof(typename V::F32)];
  store_as<V>(row, group.out_type, y);
  for (i64 i = 0; i < count; ++i) {
    for (i64 byte = 0; byte < bytes; ++byte) to[i * stride + byte] = row[i * bytes + byte];
  }
}

// Factors, bias, cast and store of a token's sums with the rows of a tile from row `r` on, at most
// as many as there are lanes.
template <class V>
static void write_columns(const Group& group, const Tile& tile, const TileColumns& columns,
                          i64 token, i64 r, typename V::F32 sums) {
  typename V::F32 y = V::multiply(sums, V::load(columns.scale + r));
  if (group.row_scale != nullptr) y = V::multiply(y, V::broadcast(group.row_scale[token]));
  if (group.bias != nullptr) y = V::add(y, V::load(columns.bias + r));
  store_columns<V>(group, token, tile.row + r, min_of(kLanesOf<V>, tile.rows - r),
                   V::canonical_nan(y));
}

}  // namespace nibblas::cpu
