// Where a CTA is in its run of work: group, sets of weight rows, block of tokens, stage of K.
// The loading side and the computing side each walk the same path with a cursor of their own.
//
// A visit is kSetsPerWarp tiles (tiles.cuh) of a group, the last of a run perhaps fewer.
#pragma once

#include "runs.cuh"

namespace nibblas::portable {

constexpr i32 kVisitSets = Config::kWarps * Config::kSetsPerWarp;

class Cursor {
 public:
  __device__ Cursor(const Params& p, const Run& run)
      : p_(p),
        end_group_(run.end_group),
        end_set_(run.end_set),
        visit_sets_(run.visit_sets),
        group_(run.group),
        set_(run.set),
        row_(run.row),
        padded_rows_(run.padded_rows),
        tokens_(run.tokens),
        k_end_(static_cast<i32>(p.k)) {
    limit_sets();
  }

  __device__ bool done() const { return set_ >= limit_; }
  __device__ bool first_of_k() const { return k_ == 0; }

  __device__ void advance() {
    k_ += Config::kStageK;
    if (k_ >= k_end_) advance_block();
  }

  // To the next block of tokens, or else to the next sets.
  __device__ void advance_block() {
    k_ = 0;
    token_ += Config::kTokens;
    if (token_ < tokens_) return;
    token_ = 0;
    set_ += visit_sets_;
    if (set_ >= limit_ && group_ < end_group_) next_group();
  }

  __device__ i32 group() const { return group_; }
  // Set i of the visit, if it has one.
  __device__ i32 set(i32 i) const { return set_ + i; }
  __device__ bool has_set(i32 i) const { return i < sets(); }
  __device__ i32 sets() const { return min(limit_ - set_, visit_sets_); }
  __device__ i32 k() const { return k_; }
  __device__ i64 token_row() const { return row_ + token_; }  // of x and out
  __device__ i32 tokens() const {
    return tokens_ - token_ < Config::kTokens ? tokens_ - token_ : Config::kTokens;
  }

  // Row of the block's first token in the block scales. Where offs asks for more rows than blocked
  // scales have, others are read.
  __device__ i64 token_scale_row() const {
    if (p_.x_scales.layout == ScaleLayout::kLinear) return token_row();
    const auto rule = static_cast<GroupStart>(p_.x_scales.start_rule);
    const i64 row = group_start_row(rule, group_, row_, padded_rows_, p_.max_m) + token_;
    return min_of(row, p_.x_scales.rows - Config::kTokens);
  }

 private:
  // Counts the group's rows, clamped as the scheduler does.
  __device__ void count_tokens() {
    tokens_ = 0;
    if (group_ >= p_.groups) return;
    const i64 entry = p_.offs == nullptr ? p_.rows : p_.offs[group_];
    if (p_.max_m > 0) {
      tokens_ = static_cast<i32>(clamp_to(entry, 0, p_.max_m));
    } else {
      const GroupRows rows = packed_group_rows(row_, entry, p_.rows);
      tokens_ = static_cast<i32>(rows.end - rows.begin);
    }
  }

  // Counts the run's sets in the group.
  __device__ void limit_sets() {
    limit_ = 0;
    if (tokens_ == 0) return;
    limit_ = sets_of(p_.n);
    if (group_ == end_group_) limit_ = min(limit_, end_set_);
  }

  __device__ void next_group() {
    do {
      padded_rows_ += padded_rows(tokens_);
      row_ += p_.max_m > 0 ? p_.max_m : tokens_;
      ++group_;
      set_ = 0;
      count_tokens();
      limit_sets();
    } while (limit_ == 0 && group_ < end_group_);
  }

  // Groups, sets, a group's tokens and K fit 32 bits, as offs does; rows and bytes do not.
  const Params& p_;
  i32 end_group_;
  i32 end_set_;
  i32 visit_sets_;
  i32 group_;
  i32 set_;
  i32 limit_ = 0;    // of sets, in this group
  i64 row_;          // first row of the group
  i64 padded_rows_;  // of the groups before it
  i32 tokens_;       // rows of the group
  i32 token_ = 0;
  i32 k_end_;
  i32 k_ = 0;
};

}  // namespace nibblas::portable
