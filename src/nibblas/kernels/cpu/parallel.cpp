#include "parallel.h"

#include <system_error>
#include <thread>
#include <vector>

namespace nibblas::cpu {
namespace {

void run_on_own_threads(int threads, void (*body)(void*), void* data) {
  std::vector<std::thread> team;
  try {
    for (int i = 1; i < threads; ++i) team.emplace_back(body, data);
  } catch (const std::exception&) {
    // The threads that did start, and this one, do all the work.
  }
  body(data);
  for (std::thread& thread : team) thread.join();
}

}  // namespace

void run_parallel(NibblasParallelRegion region, int threads, void (*body)(void*), void* data) {
  if (threads <= 1) {
    body(data);
  } else if (region != nullptr) {
    region(body, data, static_cast<unsigned>(threads), 0);
  } else {
    run_on_own_threads(threads, body, data);
  }
}

}  // namespace nibblas::cpu
