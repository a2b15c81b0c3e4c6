// A whole call: the products of one list, computed by the workers of one team.
#pragma once

#include "group_table.h"
#include "level.h"

namespace nibblas::cpu {

// Returns NIBBLAS_OK, or NIBBLAS_OUT_OF_MEMORY if some worker found no scratch. Throws
// std::bad_alloc before anything is written.
NibblasStatus grouped_mm(const GroupTable& table, const Level& level, int threads,
                         NibblasParallelRegion region);

}  // namespace nibblas::cpu
