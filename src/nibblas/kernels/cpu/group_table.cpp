#include "group_table.h"

#include "../common/scheduler.h"
#include "level.h"

namespace nibblas::cpu {
namespace {

bool is_output_type(i64 type) { return type >= NIBBLAS_BFLOAT16 && type <= NIBBLAS_FLOAT32; }

bool is_token_type(i64 type) {
  return type == NIBBLAS_BFLOAT16 || type == NIBBLAS_FLOAT16 || type == NIBBLAS_E2M1X2;
}

bool is_layout(i64 layout) { return layout == NIBBLAS_LINEAR || layout == NIBBLAS_BLOCKED; }

// Walks a product's groups, keeping what the packed forms add up from group to group.
class GroupCursor {
 public:
  explicit GroupCursor(const NibblasProblem& problem) : problem_(problem) {}

  struct Rows {
    i64 begin;
    i64 count;
    i64 first_scale_row;
  };

  Rows next() {
    const GroupRows range = problem_.max_m > 0 ? masked() : packed();
    const auto rule = static_cast<GroupStart>(problem_.x_scale_start);
    const Rows rows{range.begin, range.end - range.begin,
                    group_start_row(rule, group_, range.begin, torch_start_, problem_.max_m)};
    torch_start_ += padded_rows(rows.count);
    previous_end_ = range.end;
    ++group_;
    return rows;
  }

 private:
  GroupRows masked() const {
    const i64 begin = group_ * problem_.max_m;
    return {begin, begin + clamp_to(problem_.offs[group_], 0, problem_.max_m)};
  }
  GroupRows packed() const {
    const i64 end = problem_.offs == nullptr ? problem_.rows : problem_.offs[group_];
    return packed_group_rows(previous_end_, end, problem_.rows);
  }

  const NibblasProblem& problem_;
  i64 group_ = 0;
  i64 previous_end_ = 0;
  i64 torch_start_ = 0;
};

template <class T>
const T* offset_or_null(const T* pointer, i64 offset) {
  return pointer == nullptr ? nullptr : pointer + offset;
}

ScaleRows token_scales(const NibblasProblem& p, const GroupCursor::Rows& rows) {
  const bool blocked = p.x_scale_layout == NIBBLAS_BLOCKED;
  const i64 linear_offset = blocked ? 0 : rows.begin * p.x_scale_row_bytes;
  return {offset_or_null(p.x_scales, linear_offset), p.x_scale_row_bytes, rows.first_scale_row,
          p.k / kScaleBlock, blocked};
}

ScaleRows weight_scales(const NibblasProblem& p, i64 g) {
  return {p.w_scales + g * p.w_scale_group_bytes, p.w_scale_row_bytes, 0, p.k / kScaleBlock,
          p.w_scale_layout == NIBBLAS_BLOCKED};
}

Group make_group(const NibblasProblem& p, i64 g, const GroupCursor::Rows& rows) {
  Group group{};
  group.tokens = rows.count;
  group.n = p.n;
  group.k = p.k;

  group.x = static_cast<const u8*>(p.x) + rows.begin * p.x_row_bytes;
  group.x_row_bytes = p.x_row_bytes;
  group.x_type = p.x_type;
  group.x_scales = token_scales(p, rows);

  group.w = p.w + g * p.w_group_bytes;
  group.w_row_bytes = p.w_row_bytes;
  group.w_scales = weight_scales(p, g);

  group.w_global = offset_or_null(p.w_global, g * p.w_global_group_stride);
  group.segments = p.w_segments;
  group.segment_stride = p.w_global_segment_stride;
  group.x_global = offset_or_null(p.x_global, g * p.x_global_stride);
  group.alpha = offset_or_null(p.alpha, g);
  group.row_scale = offset_or_null(p.row_scale, rows.begin);
  group.bias = offset_or_null(static_cast<const u8*>(p.bias),
                              g * p.bias_group_stride * type_bytes(p.bias_type));
  group.bias_type = p.bias_type;

  group.out = static_cast<u8*>(p.out) + rows.begin * p.out_row_stride * type_bytes(p.out_type);
  group.out_type = p.out_type;
  group.out_row_stride = p.out_row_stride;
  group.out_column_stride = p.out_column_stride;
  group.batch_invariant = p.batch_invariant != 0;
  return group;
}

bool offs_fit(const NibblasProblem& p) {
  if (p.offs == nullptr) return true;
  i64 least = 0;
  for (i64 g = 0; g < p.groups; ++g) {
    if (p.offs[g] < least || p.offs[g] > (p.max_m > 0 ? p.max_m : p.rows)) return false;
    if (p.max_m == 0) least = p.offs[g];
  }
  return true;
}

}  // namespace

NibblasStatus check_problem(const NibblasProblem& p) {
  if (p.struct_size != sizeof(NibblasProblem)) return NIBBLAS_WRONG_STRUCT_SIZE;
  if (!is_token_type(p.x_type) || !is_output_type(p.out_type) || !is_layout(p.x_scale_layout) ||
      !is_layout(p.w_scale_layout) || p.x_scale_start < NIBBLAS_START_TORCH ||
      p.x_scale_start > NIBBLAS_START_STACKED ||
      (p.bias != nullptr && !is_output_type(p.bias_type))) {
    return NIBBLAS_UNKNOWN_TYPE;
  }
  const bool sizes_fit = p.groups >= 0 && p.rows >= 0 && p.n >= 0 && p.k > 0 &&
                         p.k % kScaleBlock == 0 && p.max_m >= 0 &&
                         (p.max_m == 0 || p.groups * p.max_m == p.rows) &&
                         (p.offs != nullptr || (p.groups == 1 && p.max_m == 0));
  const bool segments_fit = p.w_global == nullptr || (p.w_segments > 0 && p.n % p.w_segments == 0);
  if (!sizes_fit || !segments_fit) return NIBBLAS_BAD_SIZE;
  return offs_fit(p) ? NIBBLAS_OK : NIBBLAS_BAD_OFFS;
}

GroupTable::GroupTable(const NibblasProblem* problems, i64 count, i64 token_block) {
  for (i64 i = 0; i < count; ++i) add(problems[i], token_block);
}

void GroupTable::add(const NibblasProblem& problem, i64 token_block) {
  GroupCursor cursor(problem);
  for (i64 g = 0; g < problem.groups; ++g) {
    const GroupCursor::Rows rows = cursor.next();
    if (rows.count > 0 && problem.n > 0) add_blocks(make_group(problem, g, rows), token_block);
  }
}

void GroupTable::add_blocks(const Group& group, i64 token_block) {
  const i64 blocks = ceil_div(group.tokens, token_block);
  const i64 tokens = round_up(ceil_div(group.tokens, blocks), kPreparedTokens);
  for (i64 begin = 0; begin < group.tokens; begin += tokens) {
    groups_.push_back(token_range(group, begin, min_of(tokens, group.tokens - begin)));
  }
}

}  // namespace nibblas::cpu
