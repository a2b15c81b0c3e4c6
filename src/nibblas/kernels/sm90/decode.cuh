// Weights decoded in registers, as wgmma's register operand, in the order of K. An MMA takes 16
// values of a row, a block: two words of 8 codes. Lane t of a quad multiplies the two codes of byte
// t of each; so the four lanes read the same 16 bytes and each takes its bytes out.
//
//   16 bytes of a row, 32 k:   word 0   word 1   word 2   word 3
//                              MMA 0's 16 k      MMA 1's 16 k
#pragma once

#include "../common/nvfp4_ordered.cuh"
#include "../common/ptx/shared_memory.cuh"
#include "shared.cuh"

namespace nibblas::sm90 {

#if NIBBLAS_CONFIG_BF16
using Type = OrderedBf16;
#else
using Type = OrderedFp16;
#endif

// Scales of a stage of a row: 8 blocks.
struct RowScales {
  u32 pairs[4];
};

struct StageScales {
  RowScales low;   // of row g
  RowScales high;  // of row g + 8
};

// 32 k of both rows.
struct Codes {
  u32 low[4];
  u32 high[4];
};

// Of 32 k: two of wgmma's A operands.
struct Fragments {
  u32 of[2][4];
};

// Reads and decodes a lane's part of its warpgroup's unit.
class Decoder {
 public:
  __device__ explicit Decoder(const Params& p) {
    blocked_ = p.w_scales.layout == ScaleLayout::kBlocked;
    codes_ = sizeof(Stage::tokens) + warpgroup() * kCodesBytes + row() * kCodesRowBytes;
    half_step_ = blocked_ ? kBlockedScalesBytes / 2 : 4;
    next_stage_ = blocked_ ? 0 : 8;
    byte_ = threadIdx.x % 4 * 0x11 + 0x40;
    ptx::keep(codes_);
    ptx::keep(half_step_);
    ptx::keep(next_stage_);
    ptx::keep(byte_);
  }

  // For the warpgroup's unit of a step.
  __device__ __forceinline__ void start(const Step& at) {
    const u32 unit = at.first_unit + warpgroup(), atom = unit / kAtomUnits;
    const u32 quarter = unit % kAtomUnits * 2 + row() / 32;
    scales_ = sizeof(Stage::tokens) + sizeof(Stage::weights) +
              (blocked_ ? (atom - at.first_unit / kAtomUnits) * kBlockedScalesBytes +
                              row() % 32 * kLineBytes + quarter * 4
                        : warpgroup() * kLinearScalesBytes + row() * kLineBytes);
    ptx::keep(scales_);
  }

  __device__ __forceinline__ Codes load(u32 stage, i32 piece) const {
    Codes codes;
    ptx::ld_shared_v4(codes.low, stage + codes_ + piece * 16);
    ptx::ld_shared_v4(codes.high, stage + codes_ + 8 * kCodesRowBytes + piece * 16);
    return codes;
  }

  // Of the next stage of the step. Linear ones are those of every other stage too: the lines' lower
  // halves, then the upper ones.
  __device__ __forceinline__ StageScales load_scales(u32 stage) {
    const u32 first = stage + scales_;
    scales_ ^= next_stage_;
    StageScales scales;
#pragma unroll
    for (i32 half = 0; half < kHalves; ++half) {
      const u32 at = first + half * half_step_;
      convert(ptx::ld_shared_u32(at), half, scales.low);
      convert(ptx::ld_shared_u32(at + 8 * kLineBytes), half, scales.high);
    }
    return scales;
  }

  // Of the stage's piece of 32 k.
  __device__ __forceinline__ Fragments decode(const Codes& codes, const StageScales& scales,
                                              i32 piece) const {
    const OrderedPairs low = Type::decode(bytes_of(codes.low), scales.low.pairs[piece]);
    const OrderedPairs high = Type::decode(bytes_of(codes.high), scales.high.pairs[piece]);
    return {{{low.of[0], high.of[0], low.of[1], high.of[1]},
             {low.of[2], high.of[2], low.of[3], high.of[3]}}};
  }

 private:
  static constexpr u32 kLineBytes = 16;  // of scales

  // The lane's upper row of the unit.
  static __device__ __forceinline__ u32 row() {
    return 16 * warp_of_group() + threadIdx.x % kWarpLanes / 4;
  }

  static __device__ __forceinline__ void convert(u32 four, i32 half, RowScales& scales) {
    Type::scale_pairs(four, scales.pairs[2 * half], scales.pairs[2 * half + 1]);
  }

  // The lane's byte of each word.
  __device__ __forceinline__ u32 bytes_of(const u32 (&words)[4]) const {
    constexpr u32 kLowHalves = 0x5410;
    return ptx::prmt<kLowHalves>(ptx::prmt(words[0], words[1], byte_),
                                 ptx::prmt(words[2], words[3], byte_));
  }

  bool blocked_;
  u32 codes_;
  u32 scales_ = 0;
  u32 half_step_;
  u32 next_stage_;
  u32 byte_;
};

}  // namespace nibblas::sm90
