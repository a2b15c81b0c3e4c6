#include "row_kernel.h"
#include "vec_portable.h"

namespace nibblas::cpu {

const Level kPortableLevel = {"portable", level_scratch_bytes<Portable>, level_run<Portable>};

}  // namespace nibblas::cpu
