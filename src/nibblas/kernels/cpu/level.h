// An instruction level: the same kernels compiled for one set of instructions.
#pragma once

#include "group.h"

namespace nibblas::cpu {

struct Level {
  const char* name;
  // Scratch that `run` needs for a group, aligned to kScratchAlignment.
  i64 (*scratch_bytes)(const Group& group);
  // Computes columns [row_begin, row_end) of a group's outputs; row_begin is a multiple of
  // kTileRows.
  void (*run)(const Group& group, i64 row_begin, i64 row_end, u8* scratch);
};

extern const Level kPortableLevel;
#if defined(NIBBLAS_HAS_AVX2)
extern const Level kAvx2Level;
#endif

}  // namespace nibblas::cpu
