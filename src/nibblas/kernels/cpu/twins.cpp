// Entry points for tests that hold the shared headers against their Python twins.
#include "../common/e2m1.h"
#include "../common/e4m3.h"
#include "../common/scale_layout.h"
#include "../common/scheduler.h"
#include "abi.h"
#include "half.h"

using namespace nibblas;

extern "C" {

NIBBLAS_EXPORT float nibblas_twin_decode_e2m1(uint32_t code) { return decode_e2m1(code); }

NIBBLAS_EXPORT float nibblas_twin_decode_e4m3(uint32_t byte) { return decode_e4m3(byte); }

NIBBLAS_EXPORT float nibblas_twin_from_half(int64_t type, uint16_t half) {
  return type == NIBBLAS_BFLOAT16 ? cpu::from_bf16(half) : cpu::from_fp16(half);
}

NIBBLAS_EXPORT uint16_t nibblas_twin_to_half(int64_t type, float value) {
  const float clean = cpu::canonical(value);
  return type == NIBBLAS_BFLOAT16 ? cpu::to_bf16(clean) : cpu::to_fp16(clean);
}

NIBBLAS_EXPORT int64_t nibblas_twin_blocked_offset(int64_t row, int64_t k_block, int64_t k_blocks) {
  return blocked_offset(row, k_block, k_blocks);
}

// First scale rows of all groups, starts[groups].
NIBBLAS_EXPORT void nibblas_twin_group_start_rows(int32_t rule, const int32_t* offs, int64_t groups,
                                                  int64_t max_m, int64_t* starts) {
  i64 first_row = 0, torch_start = 0;
  for (i64 g = 0; g < groups; ++g) {
    starts[g] = group_start_row(static_cast<GroupStart>(rule), g, first_row, torch_start, max_m);
    torch_start += padded_rows(offs[g] - first_row);
    first_row = offs[g];
  }
}

// run = {begin group, begin tile, end group, end tile} of one worker of a packed product.
NIBBLAS_EXPORT void nibblas_twin_find_run(const int32_t* offs, int64_t groups, int64_t rows,
                                          int64_t tiles_per_group, int64_t fixed, int64_t per_token,
                                          int64_t worker, int64_t workers, int64_t* run) {
  const PackedTiles tiles{offs, rows, tiles_per_group, fixed, per_token};
  const TileRun found = find_run(tiles, groups, worker, workers);
  run[0] = found.begin.group;
  run[1] = found.begin.tile;
  run[2] = found.end.group;
  run[3] = found.end.tile;
}

}  // extern "C"
