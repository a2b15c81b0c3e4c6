// The kernel's one parameter: a packed or masked product, or several products of one group each.
#pragma once

#include "../common/product.cuh"
#include "../common/ptx/tensor_copy.cuh"
#include "config.h"

namespace nibblas::sm100 {

struct Entry {
  // Codes, with the 128-byte swizzle: [1][rows][K / 2] in boxes of [1][rows of a copy][128], and
  // [groups][N][K / 2] in boxes of [1][kTileN][128].
  ptx::TensorMap x_map;
  ptx::TensorMap w_map;
  Product product;
  // Several products: tiles of tokens, and items of work, in the products up to this one.
  i32 tile_end;
  i32 item_end;
};

struct Params {
  i32 products;      // 1: packed or masked, its groups found from offs
  i32 column_units;  // the most that a product has
  i32 stages;
  i32 tensor_columns;  // of tensor memory, to allocate
  i32 group_capacity;  // of the table of groups in shared memory
  // Of swapped.cu, which is compiled for any:
  i32 tile_tokens;  // of an item at most: 16, 32 or a multiple of 64, up to 256
  i32 box_rows;     // of tokens in a copy; divides what a CTA has of tile_tokens
  i32 scale_slots;  // for scales in tensor memory, not more than stages
  Entry entries[Config::kProducts];
};

}  // namespace nibblas::sm100
