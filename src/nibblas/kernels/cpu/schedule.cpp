#include "schedule.h"

#include <algorithm>

namespace nibblas::cpu {
namespace {

// Prepared tokens of a wave, unless a single group needs more: well above what keeps all workers
// busy, small beside the weights of a layer.
constexpr i64 kWaveBytes = i64{32} << 20;

// Runs per worker: enough for a slow core to be helped, few enough for a run to take its time.
constexpr i64 kRunsPerWorker = 8;
constexpr i64 kMinRowsPerRun = 128;

i64 tiles_in(const WaveGroups& groups) {
  i64 tiles = 0;
  groups.for_each(groups.count, [&](i64, i64 count, i64) {
    tiles += count;
    return true;
  });
  return tiles;
}

}  // namespace

Schedule::Schedule(const GroupTable& table, const Level& level, int threads)
    : table_(table), level_(level) {
  i64 bytes = 0, items = 0, begin = 0;
  for (i64 g = 0; g < table.count(); ++g) {
    const i64 group_bytes = round_up(level.prepared_bytes(table[g]), kScratchAlignment);
    if (bytes > 0 && bytes + group_bytes > kWaveBytes) {
      add_wave(begin, g);
      bytes = items = 0;
      begin = g;
    }
    offset_.push_back(bytes);
    first_item_.push_back(items);
    bytes += group_bytes;
    items += ceil_div(table[g].tokens, kPreparedTokens);
    wave_bytes_ = max_of(wave_bytes_, bytes);
  }
  if (begin < table.count()) add_wave(begin, table.count());
  share_out(threads);
}

void Schedule::add_wave(i64 begin, i64 end) {
  waves_.push_back(std::make_unique<Wave>(WaveGroups{table_, level_, begin, end - begin}));
  waves_.back()->prepare_items =
      at(first_item_, end - 1) + ceil_div(table_[end - 1].tokens, kPreparedTokens);
}

void Schedule::share_out(int threads) {
  i64 cost = 0, tiles = 0;
  for (const auto& wave : waves_) {
    cost += total_cost(wave->groups, wave->groups.count);
    tiles += tiles_in(wave->groups);
  }
  workers_ = clamp_to(threads, 1, clamp_to(cost / level_.worker_cost, 1, max_of(tiles, 1)));
  for (const auto& wave : waves_) {
    const i64 rows = tiles_in(wave->groups) * level_.tile_rows;
    const i64 most = workers_ == 1 ? 1 : workers_ * kRunsPerWorker;
    wave->runs = clamp_to(rows / kMinRowsPerRun, min_of(workers_, most), most);
    wave->first_ticket = tickets_;
    tickets_ += wave->prepare_items + wave->runs;
  }
}

Schedule::Tokens Schedule::tokens_of(i64 w, i64 item) const {
  const WaveGroups& groups = wave(w).groups;
  const auto begin = first_item_.begin() + groups.begin;
  const i64 group =
      groups.begin + (std::upper_bound(begin, begin + groups.count, item) - begin) - 1;
  const i64 first = (item - at(first_item_, group)) * kPreparedTokens;
  return {group, first, min_of(first + kPreparedTokens, table_[group].tokens)};
}

}  // namespace nibblas::cpu
