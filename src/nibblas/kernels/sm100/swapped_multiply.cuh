// The MMA warps of swapped.cu: weights times tokens, by the even CTA for its pair; the odd CTA's
// warp passes on what has come to its own shared memory.
#pragma once

#include "mask.cuh"
#include "swapped_shared.cuh"

namespace nibblas::sm100 {

// By one thread: a stage's scales and products, of both CTAs.
static __device__ __forceinline__ void multiply_stage(const Stage& stage, i32 atoms, i32 row_atoms,
                                                      u32 instruction, u32 sums, u32 scales,
                                                      bool accumulates) {
  const u64 w = at_address(kOperandDescriptor, ptx::shared_address(stage.w));
  const u64 x = at_address(kOperandDescriptor, ptx::shared_address(stage.x));
  const u64 w_scales = at_address(kScalesDescriptor, ptx::shared_address(stage.w_scales));
  const u64 x_scales = at_address(kScalesDescriptor, ptx::shared_address(stage.x_scales));
  const u32 x_columns = scales + kWScaleColumns;
#pragma unroll
  for (i32 i = 0; i < kStageAtoms; ++i) {
    if (i >= atoms) break;
    const u64 atom = i * kAtomBytes >> 4;
    ptx::tcgen05_cp_32x128b_warpx4<kCtas>(scales + i * kScaleColumns, w_scales + atom);
#pragma unroll
    for (i32 j = 0; j < kMaxRowAtoms; ++j) {
      if (j >= row_atoms) break;
      ptx::tcgen05_cp_32x128b_warpx4<kCtas>(x_columns + (i * kMaxRowAtoms + j) * kScaleColumns,
                                            x_scales + atom + (j * kRowAtomBytes >> 4));
    }
  }
#pragma unroll
  for (i32 i = 0; i < kStageAtoms; ++i) {
    if (i >= atoms) break;
    const u64 step = i * kOperandStepBytes >> 4;
    ptx::tcgen05_mma_nvfp4<kCtas>(sums, w + step, x + step, instruction, scales + i * kScaleColumns,
                                  x_columns + i * kMaxRowAtoms * kScaleColumns,
                                  accumulates || i > 0);
  }
}

// Zeros for scales beyond K, in the CTA's own shared memory; by the whole warp.
static __device__ __forceinline__ void mask_stage(const Stage& stage, const Item& item, i32 k,
                                                  i32 atoms) {
  if (!has_scales_beyond(k, item.k)) return;
  mask_scales(stage, row_atoms_of(item), atoms - 1, item.k % kMmaK / static_cast<i32>(kScaleBlock));
}

// The order of sets of sums: each waits for the one that it takes the place of.
class SumSets {
 public:
  __device__ SumSets(const Params& p, Control& control) : p_(p), control_(control), turn_(2) {}

  // Waits until the columns of the next item's sums are free, of which the item before may have
  // some.
  __device__ void wait_until_free(i32 tokens) {
    wait(empty(turn_.slot()), turn_.round() ^ 1);
    if (tokens + tokens_before_ > sum_columns(p_)) {
      // The other set's last round: this one's, or the one before where this is the first set.
      wait(empty(turn_.slot() ^ 1), turn_.round() ^ (turn_.slot() ^ 1));
    }
    tokens_before_ = tokens;
  }
  __device__ u32 begin() const { return sums_begin(p_, turn_.slot(), tokens_before_); }
  __device__ u32 full() const { return ptx::shared_address(&control_.sums_full[turn_.slot()]); }
  __device__ void advance() { turn_.advance(); }

 private:
  __device__ u32 empty(i32 set) const { return ptx::shared_address(&control_.sums_empty[set]); }

  const Params& p_;
  Control& control_;
  Turn turn_;
  u32 tokens_before_ = 0;
};

// Places for scales in tensor memory.
class ScaleSlots {
 public:
  __device__ ScaleSlots(const Params& p, u8* shared)
      : turn_(p.scale_slots), used_(p, shared), free_(p.scale_slots) {}

  // Waits until what was in the place has been multiplied.
  __device__ void wait_until_free() {
    if (free_ > 0) {
      --free_;
      return;
    }
    used_.wait_until_used();
    used_.advance();
  }
  __device__ u32 begin() const { return turn_.slot() * kSlotColumns; }
  __device__ void advance() { turn_.advance(); }

 private:
  Turn turn_;
  RingPlace used_;  // the stage whose scales are in the place
  i32 free_;
};

// By the even CTA's warp.
static __device__ void multiply(const Params& p, Control& control, u8* shared) {
  const u32 tensor = control.tensor;
  const u32 scales = tensor + sum_columns(p);
  const bool elected = ptx::elect_sync();
  RingPlace place(p, shared);
  SumSets sums(p, control);
  ScaleSlots slots(p, shared);
  for (Items items(p, control); !items.done(); items.advance(), sums.advance()) {
    const Item item = items.item();
    const i32 tokens = padded_tokens(item), row_atoms = row_atoms_of(item);
    const u32 instruction = nvfp4_instruction(kCtas * kTileM, tokens);
    sums.wait_until_free(tokens);
    for (i32 k = 0; k < item.k; k += kStageK, place.advance(), slots.advance()) {
      const i32 atoms = stage_atoms(item.k - k);
      const Stage stage = place.stage();
      place.wait_until_full();
      slots.wait_until_free();
      ptx::tcgen05_fence_after_thread_sync();
      mask_stage(stage, item, k, atoms);
      if (elected) {
        multiply_stage(stage, atoms, row_atoms, instruction, tensor + sums.begin(),
                       scales + slots.begin(), k > 0);
        commit_to_pair(place.empty());
      }
      __syncwarp();
    }
    if (elected) commit_to_pair(sums.full());
    __syncwarp();
  }
}

// By the odd CTA's warp: its stages are complete, and the even CTA is told so.
static __device__ void pass_on(const Params& p, Control& control, u8* shared) {
  const bool elected = ptx::elect_sync();
  RingPlace place(p, shared);
  for (Items items(p, control); !items.done(); items.advance()) {
    const Item item = items.item();
    for (i32 k = 0; k < item.k; k += kStageK, place.advance()) {
      place.wait_until_full();
      mask_stage(place.stage(), item, k, stage_atoms(item.k - k));
      arrive_at_leader_if(elected, place.full());
      __syncwarp();
    }
  }
}

}  // namespace nibblas::sm100
