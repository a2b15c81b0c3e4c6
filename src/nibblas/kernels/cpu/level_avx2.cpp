// Compiled with -mavx2 -mfma -mf16c: may only run after a check of the processor, and must emit no
// function that another translation unit could share.
#include "row_kernel.h"
#include "vec_avx2.h"
#include "w4a16.h"
#include "w4a4.h"

namespace nibblas::cpu {
namespace {

struct Avx2Kernels {
  using Vector = Avx2;
  using Bf16 = W4A16<Avx2, Bf16Tokens<Avx2>>;
  using Fp16 = W4A16<Avx2, Fp16Tokens<Avx2>>;
  using Nvfp4 = W4A4<Avx2>;
};

}  // namespace

extern const Level kAvx2Level = vector_level<Avx2Kernels>("avx2", 4096);

}  // namespace nibblas::cpu
