// Tokens made ready for the wgmma kernel: rows of 16-bit values that TMA can copy. NVFP4 tokens are
// decoded on the way: value * scale * 2^-OrderedFp16::kShift, exact. A lane has 8 values.
//
// Rows that no group uses are prepared by somebody's scales, or not at all.
#include "../common/block_scheduler.cuh"
#include "../common/nvfp4_ordered.cuh"
#include "../common/product.cuh"
#include "../common/ptx/grid.cuh"
#include "config.h"

namespace nibblas::sm90 {

struct PrepareParams : Product {
  uint4* prepared;  // [rows][K / 8]
};

constexpr i32 kWarps = Config::kThreads / kWarpLanes;
constexpr i32 kLaneK = 8;

// Row of the scales of a token, or -1: no group wants it. By a warp together.
#if NIBBLAS_CONFIG_NVFP4
static __device__ i64 find_scale_row(const Product& p, i64 row) {
  const bool blocked = p.x_scales.layout == ScaleLayout::kBlocked;
  if (p.max_m > 0) {
    const i64 group = row / p.max_m, in_group = row % p.max_m;
    if (in_group >= p.offs[group]) return -1;
    if (!blocked) return row;
    const i64 first = group_start_row(GroupStart::kStacked, group, 0, 0, p.max_m);
    return min_of(first + in_group, p.x_scales.rows - 1);
  }
  if (!blocked) return row;
  const i32 lane = threadIdx.x % kWarpLanes;
  i32 before = 0;  // end of the groups before these
  i64 padded = 0;  // rows of their scales
  for (i32 first = 0; first < p.groups; first += kWarpLanes) {
    const i32 g = first + lane;
    i64 entry = p.rows;
    if (g < p.groups && p.offs != nullptr) entry = p.offs[g];
    const i32 end =
        max(warp_inclusive_max(static_cast<i32>(clamp_to(entry, 0, p.rows)), lane), before);
    const i32 previous = __shfl_up_sync(kAllLanes, end, 1);
    const i32 begin = lane == 0 ? before : previous;
    const i32 atoms = static_cast<i32>(padded_rows(end - begin) / kAtomRows);
    const i32 atoms_to_here = warp_inclusive_sum(atoms, lane);
    const u32 owners = __ballot_sync(kAllLanes, g < p.groups && begin <= row && row < end);
    if (owners != 0) {
      const i32 owner = __ffs(static_cast<i32>(owners)) - 1;
      const i64 group_begin = __shfl_sync(kAllLanes, begin, owner);
      const i64 torch_start =
          padded + __shfl_sync(kAllLanes, atoms_to_here - atoms, owner) * kAtomRows;
      const auto rule = static_cast<GroupStart>(p.x_scales.start_rule);
      const i64 start = group_start_row(rule, first + owner, group_begin, torch_start, 0);
      return min_of(start + row - group_begin, p.x_scales.rows - 1);
    }
    before = __shfl_sync(kAllLanes, end, kWarpLanes - 1);
    padded += __shfl_sync(kAllLanes, atoms_to_here, kWarpLanes - 1) * kAtomRows;
  }
  return -1;
}

static __device__ __forceinline__ u32 read_codes(const Product& p, const u8* from) {
  if (p.x.vector >= 4) return *reinterpret_cast<const u32*>(from);
  return from[0] | from[1] << 8 | from[2] << 16 | static_cast<u32>(from[3]) << 24;
}

static __device__ __forceinline__ uint4 read_values(const Product& p, i64 row, i64 scale_row,
                                                    i32 k) {
  const i64 block = k / static_cast<i32>(kScaleBlock);
  const i64 at = p.x_scales.layout == ScaleLayout::kBlocked
                     ? blocked_offset(scale_row, block, p.k / kScaleBlock)
                     : scale_row * p.x_scales.row_bytes + block;
  const u32 codes = read_codes(p, p.x.bytes + row * p.x.row_bytes + k / 2);
  const u16 scale = p.x_scales.bytes[at];
  const OrderedPairs v =
      OrderedFp16::decode(codes, OrderedFp16::scale_pair(static_cast<u16>(scale | scale << 8)));
  return {v.of[0], v.of[1], v.of[2], v.of[3]};
}
#else
static __device__ __forceinline__ i64 find_scale_row(const Product& p, i64 row) {
  return p.max_m > 0 && row % p.max_m >= p.offs[row / p.max_m] ? -1 : row;
}

static __device__ __forceinline__ uint4 read_values(const Product& p, i64 row, i64, i32 k) {
  const u8* from = p.x.bytes + row * p.x.row_bytes + k * 2;
  if (p.x.vector == 16) return *reinterpret_cast<const uint4*>(from);
  const u16* values = reinterpret_cast<const u16*>(from);
  u32 v[4];
#pragma unroll
  for (i32 i = 0; i < 4; ++i) v[i] = values[2 * i] | static_cast<u32>(values[2 * i + 1]) << 16;
  return {v[0], v[1], v[2], v[3]};
}
#endif

// A warp takes 32 lanes' values of one row.
static __device__ void prepare(const PrepareParams& p) {
  ptx::griddepcontrol_launch_dependents();  // the multiplying launch sets itself up meanwhile
  const u32 parts = static_cast<u32>(p.k) / kLaneK;
  const u32 warps_of_row = (parts + kWarpLanes - 1) / kWarpLanes;
  const i64 warp = static_cast<i64>(blockIdx.x) * kWarps + threadIdx.x / kWarpLanes;
  const i64 row = warp / warps_of_row;
  if (row >= p.rows) return;
  const i64 scale_row = find_scale_row(p, row);
  const u32 part = static_cast<u32>(warp % warps_of_row) * kWarpLanes + threadIdx.x % kWarpLanes;
  if (scale_row < 0 || part >= parts) return;
  p.prepared[row * parts + part] = read_values(p, row, scale_row, static_cast<i32>(part) * kLaneK);
}

}  // namespace nibblas::sm90

extern "C" {

// Compared by the host with its own size before the first launch.
__constant__ nibblas::u64 nibblas_parameter_bytes = sizeof(nibblas::sm90::PrepareParams);

__global__ void __launch_bounds__(nibblas::Config::kThreads)
    nibblas_sm90_prepare_tokens(const __grid_constant__ nibblas::sm90::PrepareParams params) {
  nibblas::sm90::prepare(params);
}
}
