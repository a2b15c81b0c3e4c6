// An instruction level: the kernels compiled for one set of instructions.
#pragma once

#include "group.h"

namespace nibblas::cpu {

// Tokens are prepared in units of so many: all those that share a cache line of any level's form.
constexpr i64 kPreparedTokens = 16;

struct Level {
  const char* name;
  i64 tile_rows;    // weight rows decoded and multiplied together: the scheduler's unit
  i64 token_block;  // most tokens that share one decoding of the weights
  i64 token_step;   // tokens are multiplied in steps of so many
  i64 decode_cost;  // decoding a weight takes as long as multiplying it by so many tokens
  i64 worker_cost;  // 256 products cost 1; for less than this, waking a thread takes too long

  // Bytes of a group's tokens in the form that `run` reads. `prepare` brings tokens [begin, end)
  // into it; `begin` is a multiple of kPreparedTokens.
  i64 (*prepared_bytes)(const Group& group);
  void (*prepare)(const Group& group, i64 begin, i64 end, u8* prepared);

  // Scratch that `run` needs for a group, aligned to kScratchAlignment.
  i64 (*scratch_bytes)(const Group& group);
  // Computes columns [row_begin, row_end) of a group's outputs; row_begin is a multiple of
  // tile_rows.
  void (*run)(const Group& group, const u8* prepared, i64 row_begin, i64 row_end, u8* scratch);
};

extern const Level kPortableLevel;
#if defined(NIBBLAS_HAS_AVX2)
extern const Level kAvx2Level;
#endif
#if defined(NIBBLAS_HAS_AVX512)
extern const Level kAvx512Level;
#endif
#if defined(NIBBLAS_HAS_AMX)
extern const Level kAmxLevel;
#endif

}  // namespace nibblas::cpu
