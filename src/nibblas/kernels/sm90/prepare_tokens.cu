// Tokens made ready for the wgmma kernel: 16-bit values in the order in which weights are decoded
// (decode.cuh), rows of whole stages of 128 values, zeros past K. NVFP4 tokens are decoded on the
// way: value * scale * 2^-kDecodeShift, exact.
//
//   a lane: word w (8 values) of each quarter of a stage   -->   64 bytes that lie together
//
//     k = 32t + 8w + 0..7, t = 0..3: pairs (k0,k4) (k1,k5) (k2,k6) (k3,k7) of each t
//     piece x = 0..3: pair x of t = 0, 1, 2, 3, which lanes 0..3 of a quad multiply with theirs
//
// Rows that no group uses are prepared by somebody's scales, or not at all.
#include "../common/block_scheduler.cuh"
#include "../common/nvfp4_pairs.cuh"
#include "../common/product.cuh"
#include "../common/ptx/grid.cuh"
#include "config.h"

namespace nibblas::sm90 {

struct PrepareParams : Product {
  uint4* prepared;  // [rows][stages * 16]
};

constexpr i32 kWarps = Config::kThreads / kWarpLanes;
constexpr i32 kStageK = 128;
constexpr i32 kStageWords = 4;  // of a quarter
constexpr i32 kQuarterK = kStageK / 4;

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

static __device__ __forceinline__ Pairs read_pairs(const Product& p, i64 row, i64 scale_row,
                                                   i32 k) {
  const i64 block = k / static_cast<i32>(kScaleBlock);
  const i64 at = p.x_scales.layout == ScaleLayout::kBlocked
                     ? blocked_offset(scale_row, block, p.k / kScaleBlock)
                     : scale_row * p.x_scales.row_bytes + block;
  const u32 codes = read_codes(p, p.x.bytes + row * p.x.row_bytes + k / 2);
  return decode_pairs<Fp16>(codes, Fp16::scale_pairs(p.x_scales.bytes[at]).of[0]);
}
#else
static __device__ __forceinline__ i64 find_scale_row(const Product& p, i64 row) {
  return p.max_m > 0 && row % p.max_m >= p.offs[row / p.max_m] ? -1 : row;
}

static __device__ __forceinline__ Pairs read_pairs(const Product& p, i64 row, i64, i32 k) {
  const u8* from = p.x.bytes + row * p.x.row_bytes + k * 2;
  u32 v[4];
  if (p.x.vector == 16) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
  } else {
    const u16* values = reinterpret_cast<const u16*>(from);
#pragma unroll
    for (i32 i = 0; i < 4; ++i) v[i] = values[2 * i] | static_cast<u32>(values[2 * i + 1]) << 16;
  }
  return interleave_pairs(v[0], v[1], v[2], v[3]);
}
#endif

// A lane's word of each quarter of a stage of a row.
static __device__ __forceinline__ void prepare_words(const PrepareParams& p, i64 row, i64 scale_row,
                                                     i32 stage, i32 word, i32 stages) {
  Pairs pairs[4];
#pragma unroll
  for (i32 t = 0; t < 4; ++t) {
    const i32 k = stage * kStageK + t * kQuarterK + word * 8;
    pairs[t] = k < p.k ? read_pairs(p, row, scale_row, k) : Pairs{};
  }
  uint4* to = p.prepared + (row * stages + stage) * (kStageK / 8) + word * 4;
#pragma unroll
  for (i32 x = 0; x < 4; ++x) {
    to[x] = {pairs[0].of[x], pairs[1].of[x], pairs[2].of[x], pairs[3].of[x]};
  }
}

// A warp takes 32 words of one row.
static __device__ void prepare(const PrepareParams& p) {
  ptx::griddepcontrol_launch_dependents();  // the multiplying launch sets itself up meanwhile
  const i32 stages = static_cast<i32>(ceil_div(p.k, kStageK));
  const u32 words = stages * kStageWords, pieces = (words + kWarpLanes - 1) / kWarpLanes;
  const i64 warp = static_cast<i64>(blockIdx.x) * kWarps + threadIdx.x / kWarpLanes;
  const i64 row = warp / pieces;
  if (row >= p.rows) return;
  const i64 scale_row = find_scale_row(p, row);
  const u32 at = static_cast<u32>(warp % pieces) * kWarpLanes + threadIdx.x % kWarpLanes;
  if (scale_row < 0 || at >= words) return;
  prepare_words(p, row, scale_row, static_cast<i32>(at / kStageWords),
                static_cast<i32>(at % kStageWords), stages);
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
