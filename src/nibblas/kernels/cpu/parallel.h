// One parallel region: on the OpenMP pool of the host program, or on threads of our own.
#pragma once

#include "abi.h"

namespace nibblas::cpu {

// Runs `body(data)` on up to `threads` threads, the caller among them; returns when all are done.
// Fewer may come: `body` must claim its work until none is left.
void run_parallel(NibblasParallelRegion region, int threads, void (*body)(void*), void* data);

}  // namespace nibblas::cpu
