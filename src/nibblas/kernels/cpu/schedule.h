// The order of a call's work. Tokens are prepared once for all workers, then tiles of weight rows
// are multiplied; both in waves, so that prepared tokens never take more than a fixed room:
//
//   | prepare wave 0 | runs of wave 0 | prepare wave 1 | runs of wave 1 | ...      one line of
//   tickets
//
// Workers draw tickets in this order. A run waits until its wave is prepared, the preparation of
// wave w until wave w - 2, whose room it takes, is finished. What a worker waits for was drawn
// before by a worker that is at it, so the waiting ends, however few workers come.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "../common/scheduler.h"
#include "group_table.h"
#include "level.h"

namespace nibblas::cpu {

// A range of the table's groups, for find_run: tiles of the level's rows, and what they cost.
struct WaveGroups {
  const GroupTable& table;
  const Level& level;
  i64 begin;
  i64 count;

  template <class Visit>
  void for_each(i64 groups, Visit visit) const {
    for (i64 g = 0; g < groups; ++g) {
      const Group& group = table[begin + g];
      if (!visit(g, ceil_div(group.n, level.tile_rows), cost(group))) return;
    }
  }

 private:
  // Of one tile: 16 values along K of 16 rows by one token cost 1.
  i64 cost(const Group& group) const {
    const i64 tokens = round_up(group.tokens, level.token_step);
    return tile_cost(tokens, level.decode_cost, 1) * ceil_div(group.k, 16) *
           ceil_div(level.tile_rows, 16);
  }
};

struct Wave {
  explicit Wave(const WaveGroups& groups) : groups(groups) {}

  WaveGroups groups;
  i64 first_ticket = 0;
  i64 prepare_items = 0;  // each up to kPreparedTokens tokens of one group
  i64 runs = 0;
  std::atomic<i64> items_prepared{0};
  std::atomic<i64> runs_finished{0};
};

class Schedule {
 public:
  // For at most `threads` workers. Throws std::bad_alloc.
  Schedule(const GroupTable& table, const Level& level, int threads);

  i64 workers() const { return workers_; }
  i64 tickets() const { return tickets_; }
  i64 wave_count() const { return static_cast<i64>(waves_.size()); }
  Wave& wave(i64 w) const { return *waves_[static_cast<std::size_t>(w)]; }

  // Room for the prepared tokens of all waves that are under way.
  i64 prepared_bytes() const { return min_of(wave_count(), 2) * wave_bytes_; }
  // Where a group's tokens are in that room.
  i64 prepared_offset(i64 w, i64 g) const { return w % 2 * wave_bytes_ + at(offset_, g); }

  // The tokens of one preparation: [begin, end) of a group.
  struct Tokens {
    i64 group;
    i64 begin;
    i64 end;
  };
  Tokens tokens_of(i64 w, i64 item) const;

 private:
  static i64 at(const std::vector<i64>& values, i64 i) {
    return values[static_cast<std::size_t>(i)];
  }
  void add_wave(i64 begin, i64 end);
  void share_out(int threads);

  const GroupTable& table_;
  const Level& level_;
  std::vector<i64> offset_;      // of each group's prepared tokens in its wave
  std::vector<i64> first_item_;  // of each group, in its wave
  std::vector<std::unique_ptr<Wave>> waves_;
  i64 wave_bytes_ = 0;
  i64 workers_ = 1;
  i64 tickets_ = 0;
};

}  // namespace nibblas::cpu
