// Compiled with -mavx2 -mfma -mf16c: may only run after a check of the processor, and must emit no
// function that another translation unit could share.
#include "row_kernel.h"
#include "vec_avx2.h"

namespace nibblas::cpu {

const Level kAvx2Level = {"avx2", level_scratch_bytes<Avx2>, level_run<Avx2>};

}  // namespace nibblas::cpu
