// The producer of swapped.cu: 128 rows of weights and the CTA's share of the tokens, one thread.
//
// Tokens come in boxes of p.box_rows, as many as the item has: few tokens cost few bytes. Of a
// pair, the even CTA has the first half of the item's tokens, the odd one the rest; both have the
// scales of all of them. A CTA's copies count on its own `full`, whichever CTA multiplies.
#pragma once

#include "copies.cuh"
#include "swapped_shared.cuh"

namespace nibblas::sm100 {

// The boxes of an item's tokens that one CTA copies.
struct TokenBoxes {
  i32 row;    // the first one's in x
  i32 count;  // of p.box_rows rows; those beyond the tokens are multiplied by nothing
};

static __device__ __forceinline__ TokenBoxes token_boxes(const Params& p, const Item& item) {
  const i32 share = padded_tokens(item) / kCtas;
  return {static_cast<i32>(item.row) + rank_in_pair() * share,
          static_cast<i32>(div_up(share, p.box_rows))};
}

static __device__ __forceinline__ u32 bytes_of_stage(const Params& p, i32 boxes, i32 row_atoms,
                                                     i32 atoms) {
  const u32 scales = Config::kBulkScales ? atoms * static_cast<u32>(kAtomBytes) : 0;
  return boxes * p.box_rows * kRowBytes + kWBytes + (row_atoms + 1) * scales;
}

static __device__ __forceinline__ void copy_token_scales(const Item& item, i32 k, i32 atoms,
                                                         i32 row_atoms, const Stage& stage,
                                                         u32 full) {
  const Scales& scales = item.entry->product.x_scales;
#pragma unroll 1
  for (i32 i = 0; i < row_atoms; ++i) {
    // Where offs asks for more atoms than there are, others are read.
    const i64 row_atom = min_of(item.scale_atom + i, scales.rows / kAtomRows - 1);
    const u8* from = scales.bytes + (row_atom * k_atoms(item.k) + k / kMmaK) * kAtomBytes;
    ptx::cp_async_bulk(ptx::shared_address(stage.x_scales) + i * kRowAtomBytes, from,
                       atoms * static_cast<u32>(kAtomBytes), full, ptx::kEvictLast);
  }
}

// By one thread.
static __device__ void copy_both(const Params& p, const Control& control, u8* shared) {
  RingPlace place(p, shared);
  for (Items items(p, control); !items.done(); items.advance()) {
    const Item item = items.item();
    const TokenBoxes boxes = token_boxes(p, item);
    const i32 row_atoms = row_atoms_of(item);
    for (i32 k = 0; k < item.k; k += kStageK, place.advance()) {
      const i32 atoms = stage_atoms(item.k - k);
      const Stage stage = place.stage();
      const u32 full = place.full();
      place.wait_until_empty();
      ptx::mbarrier_arrive_expect_tx(full, bytes_of_stage(p, boxes.count, row_atoms, atoms));
      copy_weights(item, k, atoms, stage, full);
#pragma unroll 1
      for (i32 i = 0; i < boxes.count; ++i) {
        const i32 row = i * p.box_rows;
        ptx::cp_async_bulk_tensor_3d(ptx::shared_address(stage.x) + row * kRowBytes,
                                     item.entry->x_map, k / 2, boxes.row + row, 0, full,
                                     ptx::kEvictLast);
      }
      if constexpr (Config::kBulkScales) {
        copy_token_scales(item, k, atoms, row_atoms, stage, full);
      }
    }
  }
  drain(p, place);
}

}  // namespace nibblas::sm100
