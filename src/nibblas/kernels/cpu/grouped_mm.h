// A whole call: the products of one list, cut into runs that the workers of one team claim.
#pragma once

#include "group_table.h"
#include "level.h"

namespace nibblas::cpu {

// Returns NIBBLAS_OK, or NIBBLAS_OUT_OF_MEMORY if some run found no scratch.
NibblasStatus grouped_mm(const GroupTable& table, const Level& level, int threads,
                         NibblasParallelRegion region);

}  // namespace nibblas::cpu
