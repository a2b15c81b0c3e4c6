#include "grouped_mm.h"

#include <atomic>
#include <cfenv>
#include <memory>
#include <new>

#include "parallel.h"
#include "tile.h"

namespace nibblas::cpu {
namespace {

// Runs per worker: enough for a slow core to be helped, few enough that a run is longer than a
// group's preparation of tokens.
constexpr i64 kRunsPerWorker = 8;
constexpr i64 kMinTilesPerRun = 8;

// Below this, in the scheduler's units, waking a thread takes longer than the work.
constexpr i64 kMinCostPerWorker = 4096;

// Default rounding and subnormals while it lives: callers may have switched on flush-to-zero.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

// A buffer that each thread keeps between calls, since fresh pages cost more than small products.
class Scratch {
 public:
  // Null when there is no memory.
  u8* reserve(i64 bytes) {
    if (bytes > size_) {
      buffer_.reset();
      buffer_.reset(static_cast<u8*>(
          ::operator new(static_cast<std::size_t>(bytes), kAlignment, std::nothrow)));
      size_ = buffer_ ? bytes : 0;
    }
    return buffer_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{kScratchAlignment};
  struct Free {
    void operator()(u8* buffer) const { ::operator delete(buffer, kAlignment); }
  };
  std::unique_ptr<u8, Free> buffer_;
  i64 size_ = 0;
};

thread_local Scratch thread_scratch;

// What the workers of one call share.
struct Call {
  const GroupTable& table;
  const Level& level;
  i64 runs;
  std::atomic<i64> next_run{0};
  std::atomic<bool> out_of_memory{false};
};

// Rows [begin, end) of one group of the run; a run covers the end of its first group, the beginning
// of its last one and all of those between.
bool run_group(Call& call, const TileRun& run, i64 g) {
  const Group& group = call.table[g];
  const i64 first = g == run.begin.group ? run.begin.tile : 0;
  const i64 last = g == run.end.group ? run.end.tile : GroupTable::tiles(group);
  if (first >= last) return true;
  u8* scratch = thread_scratch.reserve(call.level.scratch_bytes(group));
  if (scratch == nullptr) return false;
  call.level.run(group, first * kTileRows, min_of(last * kTileRows, group.n), scratch);
  return true;
}

void work(void* data) {
  Call& call = *static_cast<Call*>(data);
  const DefaultFloatEnvironment environment;
  for (i64 index = call.next_run++; index < call.runs; index = call.next_run++) {
    const TileRun run = find_run(call.table, call.table.count(), index, call.runs);
    for (i64 g = run.begin.group; g < call.table.count() && g <= run.end.group; ++g) {
      if (!run_group(call, run, g)) call.out_of_memory = true;
    }
  }
}

i64 count_tiles(const GroupTable& table) {
  i64 tiles = 0;
  for (i64 g = 0; g < table.count(); ++g) tiles += GroupTable::tiles(table[g]);
  return tiles;
}

}  // namespace

NibblasStatus grouped_mm(const GroupTable& table, const Level& level, int threads,
                         NibblasParallelRegion region) {
  const i64 tiles = count_tiles(table);
  if (tiles == 0) return NIBBLAS_OK;
  const i64 worth_waking = total_cost(table, table.count()) / kMinCostPerWorker;
  const i64 workers = clamp_to(threads, 1, clamp_to(worth_waking, 1, tiles));
  const i64 runs =
      workers == 1 ? 1 : clamp_to(tiles / kMinTilesPerRun, workers, workers * kRunsPerWorker);
  Call call{table, level, runs};
  run_parallel(region, static_cast<int>(workers), work, &call);
  return call.out_of_memory ? NIBBLAS_OUT_OF_MEMORY : NIBBLAS_OK;
}

}  // namespace nibblas::cpu
