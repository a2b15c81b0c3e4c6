#include "grouped_mm.h"

#include <atomic>
#include <cfenv>
#include <memory>
#include <new>
#include <thread>

#include "parallel.h"
#include "schedule.h"

namespace nibblas::cpu {
namespace {

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
class Buffer {
 public:
  // Null when there is no memory.
  u8* reserve(i64 bytes) {
    if (bytes > size_ || !buffer_) {
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

thread_local Buffer thread_scratch;
thread_local Buffer thread_prepared;  // of the calling thread, for all workers

// What the workers of one call share.
struct Call {
  const GroupTable& table;
  const Level& level;
  const Schedule& schedule;
  u8* prepared;
  std::atomic<i64> next_ticket{0};
  std::atomic<bool> out_of_memory{false};
};

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Others are at work on what is missing, for microseconds mostly.
void wait_until_at_least(const std::atomic<i64>& done, i64 count) {
  constexpr int kSpins = 2000;
  for (int i = 0; done.load(std::memory_order_acquire) < count; ++i) {
    if (i < kSpins) {
      pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
}

void prepare(Call& call, i64 w, i64 item) {
  Wave& wave = call.schedule.wave(w);
  if (w >= 2) {
    const Wave& before = call.schedule.wave(w - 2);
    wait_until_at_least(before.runs_finished, before.runs);
  }
  const Schedule::Tokens tokens = call.schedule.tokens_of(w, item);
  call.level.prepare(call.table[tokens.group], tokens.begin, tokens.end,
                     call.prepared + call.schedule.prepared_offset(w, tokens.group));
  wave.items_prepared.fetch_add(1, std::memory_order_release);
}

// A run covers the end of its first group, the beginning of its last one and all of those between.
bool run_group(Call& call, i64 w, const TileRun& run, i64 g) {
  const WaveGroups& groups = call.schedule.wave(w).groups;
  const Group& group = call.table[groups.begin + g];
  const i64 tile_rows = call.level.tile_rows;
  const i64 first = g == run.begin.group ? run.begin.tile : 0;
  const i64 last = g == run.end.group ? run.end.tile : ceil_div(group.n, tile_rows);
  if (first >= last) return true;
  u8* scratch = thread_scratch.reserve(call.level.scratch_bytes(group));
  if (scratch == nullptr) return false;
  const u8* prepared = call.prepared + call.schedule.prepared_offset(w, groups.begin + g);
  call.level.run(group, prepared, first * tile_rows, min_of(last * tile_rows, group.n), scratch);
  return true;
}

void multiply(Call& call, i64 w, i64 index) {
  Wave& wave = call.schedule.wave(w);
  wait_until_at_least(wave.items_prepared, wave.prepare_items);
  const TileRun run = find_run(wave.groups, wave.groups.count, index, wave.runs);
  for (i64 g = run.begin.group; g < wave.groups.count && g <= run.end.group; ++g) {
    if (!run_group(call, w, run, g)) call.out_of_memory = true;
  }
  wave.runs_finished.fetch_add(1, std::memory_order_release);
}

void work(void* data) {
  Call& call = *static_cast<Call*>(data);
  const Schedule& schedule = call.schedule;
  const DefaultFloatEnvironment environment;
  i64 w = 0;
  for (i64 ticket = call.next_ticket++; ticket < schedule.tickets(); ticket = call.next_ticket++) {
    while (w + 1 < schedule.wave_count() && ticket >= schedule.wave(w + 1).first_ticket) ++w;
    const i64 index = ticket - schedule.wave(w).first_ticket;
    const i64 items = schedule.wave(w).prepare_items;
    if (index < items) {
      prepare(call, w, index);
    } else {
      multiply(call, w, index - items);
    }
  }
}

}  // namespace

NibblasStatus grouped_mm(const GroupTable& table, const Level& level, int threads,
                         NibblasParallelRegion region) {
  if (table.count() == 0) return NIBBLAS_OK;
  const Schedule schedule(table, level, threads);
  u8* prepared = thread_prepared.reserve(schedule.prepared_bytes());
  if (prepared == nullptr) return NIBBLAS_OUT_OF_MEMORY;
  Call call{table, level, schedule, prepared};
  run_parallel(region, static_cast<int>(schedule.workers()), work, &call);
  return call.out_of_memory ? NIBBLAS_OUT_OF_MEMORY : NIBBLAS_OK;
}

}  // namespace nibblas::cpu
