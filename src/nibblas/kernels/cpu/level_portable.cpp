#include "row_kernel.h"
#include "vec_portable.h"
#include "w4a16.h"
#include "w4a4.h"

namespace nibblas::cpu {
namespace {

struct PortableKernels {
  using Vector = Portable;
  using Bf16 = W4A16<Portable, Bf16Tokens<Portable>>;
  using Fp16 = W4A16<Portable, Fp16Tokens<Portable>>;
  using Nvfp4 = W4A4<Portable>;
};

}  // namespace

extern const Level kPortableLevel = vector_level<PortableKernels>("portable", 1024);

}  // namespace nibblas::cpu
