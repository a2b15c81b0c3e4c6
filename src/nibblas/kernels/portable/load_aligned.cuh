// The loader for aligned problems: K a multiple of kStageK, every 16-byte piece of a row aligned.
//
// Addresses are computed once per tile and block of tokens; a stage then costs one addition per
// copy. All threads of the CTA together.
#pragma once

#include "../common/ptx/async_copy.cuh"
#include "stage.cuh"

namespace nibblas::portable {

class AlignedLoader {
 public:
  __device__ explicit AlignedLoader(const Params& p)
      : p_(p),
        thread_(static_cast<i32>(threadIdx.x)),
        warp_(thread_ / kWarpLanes),
        lane_(thread_ % kWarpLanes) {
    // Places in a stage, from a stage at address 0.
    constexpr i32 kStepChunks = Config::kNvfp4Tokens ? 4 : 16;
    const i32 token = thread_ / kChunks, step = thread_ % kChunks / kStepChunks;
    const i32 chunk = thread_ % kChunks % kStepChunks;
    const i32 place = Config::kNvfp4Tokens ? chunk : token_place(token, chunk);
    weights_to_ = (warp_ * kSteps * 2 * kWarpLanes + lane_) * kChunkBytes;
    weight_scales_to_ = kWeightScalesAt + warp_ * 16 * kStageBlocks;
    tokens_to_ = kTokensAt + ((step * Config::kTokens + token) * kStepChunks + place) * kChunkBytes;
    token_scales_to_ = kTokenScalesAt + thread_ * kAtomKBlocks;
  }

  // `stage` is the shared-memory address of a Stage.
  __device__ void load(const Cursor& at, u32 stage) {
    if (at.k() == 0) point_at(at);
    load_weights(stage + weights_to_);
    load_weight_scales(stage + weight_scales_to_);
    if constexpr (Config::kNvfp4Tokens) {
      load_token_codes(stage + tokens_to_);
      load_token_scales(stage + token_scales_to_);
    } else {
      load_tokens(stage + tokens_to_);
    }
  }

 private:
  // 16-byte chunks of a token per stage, and tokens that all threads copy at once.
  static constexpr i32 kChunks = Config::kStageK * (Config::kNvfp4Tokens ? 4 : 16) / 128;
  static constexpr i32 kTokensAtOnce = kThreads / kChunks;
  static constexpr i32 kScalePieces = kStageBlocks / static_cast<i32>(kAtomKBlocks);
  static_assert(kTokensAtOnce % 2 == 0, "tokens that one thread copies share their parity");

  __device__ void point_at(const Cursor& at) {
    tokens_ = at.tokens();
    point_at_weights(at);
    const i64 row = at.token_row() + thread_ / kChunks;
    token_ = p_.x.bytes + row * p_.x.row_bytes + thread_ % kChunks * kChunkBytes;
    if constexpr (Config::kNvfp4Tokens) point_at_token_scales(at);
  }

  __device__ void point_at_weights(const Cursor& at) {
    const u8* group = p_.w.bytes + at.group() * p_.w.group_bytes + lane_ % 4 * kChunkBytes;
    for (i32 half = 0; half < 2; ++half) {
      weights_[half] = group + weight_row(at, lane_ / 4 + 8 * half) * p_.w.row_bytes;
    }
    const u8* scales = p_.w_scales.bytes + at.group() * p_.w_scales.group_bytes;
    if (p_.w_scales.layout == ScaleLayout::kBlocked) {
      weight_scales_ = scales + blocked_offset(at.first_row() + 4 * warp_ + lane_ % 4,
                                               lane_ / 4 * kAtomKBlocks, p_.k / kScaleBlock);
    } else {
      weight_scales_ = scales + weight_row(at, lane_ % 16) * p_.w_scales.row_bytes;
    }
  }

  __device__ void point_at_token_scales(const Cursor& at) {
    const i64 row = at.token_scale_row() + thread_ / kScalePieces;
    const i64 block = thread_ % kScalePieces * kAtomKBlocks;
    token_scales_ = p_.x_scales.bytes + (p_.x_scales.layout == ScaleLayout::kBlocked
                                             ? blocked_offset(row, block, p_.k / kScaleBlock)
                                             : row * p_.x_scales.row_bytes + block);
  }

  // Rows past N repeat the last one; their results are not stored.
  __device__ i64 weight_row(const Cursor& at, i32 i) const {
    return min_of(at.first_row() + tile_row(warp_, i), p_.n - 1);
  }

  __device__ void load_weights(u32 to) {
    for (i32 half = 0; half < 2; ++half) {
      for (i32 step = 0; step < kSteps; ++step) {
        ptx::cp_async_16(to + (2 * step + half) * kWarpLanes * kChunkBytes,
                         weights_[half] + step * (kStep / 2), kChunkBytes);
      }
      weights_[half] += Config::kStageK / 2;
    }
  }

  // One copy per lane: a 16-byte line of an atom, or a row's scales.
  __device__ void load_weight_scales(u32 to) {
    if (p_.w_scales.layout == ScaleLayout::kBlocked) {
      if (lane_ < 4 * kScalePieces) {
        ptx::cp_async_16(to + lane_ * kChunkBytes, weight_scales_, kChunkBytes);
      }
      weight_scales_ += kScalePieces * kAtomBytes;
      return;
    }
    if (lane_ < 16) {
      if constexpr (kStageBlocks == kChunkBytes) {
        ptx::cp_async_16(to + lane_ * kStageBlocks, weight_scales_, kChunkBytes);
      } else {
        ptx::cp_async_8(to + lane_ * kStageBlocks, weight_scales_, 8);
      }
    }
    weight_scales_ += kStageBlocks;
  }

  __device__ void load_tokens(u32 to) {
    const u8* from = token_;
    for (i32 token = thread_ / kChunks, pass = 0; pass < ceil_div(Config::kTokens, kTokensAtOnce);
         token += kTokensAtOnce, ++pass) {
      if (token < tokens_) {
        ptx::cp_async_16(to + pass * kTokensAtOnce * 16 * kChunkBytes, from, kChunkBytes);
      }
      from += kTokensAtOnce * p_.x.row_bytes;
    }
    token_ += Config::kStageK * 2;
  }

  __device__ void load_token_codes(u32 to) {
    static_assert(!Config::kNvfp4Tokens || kTokensAtOnce >= Config::kTokens, "one copy per thread");
    if (thread_ / kChunks < tokens_) ptx::cp_async_16(to, token_, kChunkBytes);
    token_ += Config::kStageK / 2;
  }

  __device__ void load_token_scales(u32 to) {
    static_assert(kThreads >= Config::kTokens * kScalePieces, "one copy per thread");
    if (thread_ / kScalePieces < tokens_) ptx::cp_async_4(to, token_scales_, 4);
    token_scales_ +=
        p_.x_scales.layout == ScaleLayout::kBlocked ? kScalePieces * kAtomBytes : kStageBlocks;
  }

  const Params& p_;
  i32 thread_;
  i32 warp_;
  i32 lane_;
  u32 weights_to_;
  u32 weight_scales_to_;
  u32 tokens_to_;
  u32 token_scales_to_;
  i32 tokens_ = 0;
  const u8* weights_[2] = {};
  const u8* weight_scales_ = nullptr;
  const u8* token_ = nullptr;
  const u8* token_scales_ = nullptr;
};

}  // namespace nibblas::portable
