// Where a CTA is in its run of tiles: group, tile of 128 weight rows, block of tokens, stage of K.
// The loading side and the computing side each walk the same path with a cursor of their own.
#pragma once

#include "../common/warp_scheduler.cuh"
#include "config.h"
#include "params.cuh"

namespace nibblas::portable {

constexpr i32 kTileRows = 16 * Config::kWarps;

// A tile's weights are read once whatever its tokens: worth about this many tokens' arithmetic.
constexpr i64 kFixedCost = 32;

static __device__ __forceinline__ GroupSizes group_sizes(const Params& p) {
  return {p.offs, p.groups, p.rows, p.max_m, ceil_div(p.n, kTileRows), kFixedCost, 1};
}

class Cursor {
 public:
  __device__ Cursor(const Params& p, const WarpRun& run)
      : p_(p),
        end_group_(static_cast<i32>(run.tiles.end.group)),
        end_tile_(static_cast<i32>(run.tiles.end.tile)),
        group_(static_cast<i32>(run.tiles.begin.group)),
        tile_(static_cast<i32>(run.tiles.begin.tile)),
        row_(run.first.row),
        padded_rows_(run.first.padded_rows) {
    if (!done()) tokens_ = group_tokens();
  }

  __device__ bool done() const {
    return group_ > end_group_ || (group_ == end_group_ && tile_ >= end_tile_);
  }
  __device__ bool last_of_k() const { return k_ + Config::kStageK >= p_.k; }

  __device__ void advance() {
    k_ += Config::kStageK;
    if (k_ < p_.k) return;
    k_ = 0;
    token_ += Config::kTokens;
    if (token_ < tokens_) return;
    token_ = 0;
    ++tile_;
    if (first_row() >= p_.n) next_group();
  }

  __device__ i64 group() const { return group_; }
  __device__ i64 first_row() const {
    return static_cast<i64>(tile_) * kTileRows;
  }  // of the weights
  __device__ i64 k() const { return k_; }
  __device__ i64 token_row() const { return row_ + token_; }  // of x and out
  __device__ i32 tokens() const {
    return tokens_ - token_ < Config::kTokens ? tokens_ - token_ : Config::kTokens;
  }

  // Row of the token's block scales.
  __device__ i64 token_scale_row() const {
    if (p_.x_scales.layout == ScaleLayout::kLinear) return token_row();
    const auto rule = static_cast<GroupStart>(p_.x_scales.start_rule);
    return group_start_row(rule, group_, row_, padded_rows_, p_.max_m) + token_;
  }

 private:
  // Rows of the group at hand, clamped as the scheduler does.
  __device__ i32 group_tokens() const {
    const i64 entry = p_.offs == nullptr ? p_.rows : p_.offs[group_];
    if (p_.max_m > 0) return static_cast<i32>(clamp_to(entry, 0, p_.max_m));
    const GroupRows rows = packed_group_rows(row_, entry, p_.rows);
    return static_cast<i32>(rows.end - rows.begin);
  }

  __device__ void next_group() {
    tile_ = 0;
    do {
      padded_rows_ += padded_rows(tokens_);
      row_ += p_.max_m > 0 ? p_.max_m : tokens_;
      ++group_;
      if (done() || group_ >= p_.groups) return;
      tokens_ = group_tokens();
    } while (tokens_ == 0);
  }

  // Groups, tiles, a group's tokens and K fit 32 bits, as offs does; rows and bytes do not.
  const Params& p_;
  i32 end_group_;
  i32 end_tile_;
  i32 group_;
  i32 tile_;
  i64 row_;          // first row of the group
  i64 padded_rows_;  // of the groups before it
  i32 tokens_ = 0;   // rows of the group
  i32 token_ = 0;
  i32 k_ = 0;
};

}  // namespace nibblas::portable
