// Compiled for AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA, F16C and BMI2: may only run after a check
// of the processor, and must emit no function that another translation unit could share.
#include "row_kernel.h"
#include "w4a16_avx512.h"
#include "w4a4_avx512.h"

namespace nibblas::cpu {
namespace {

struct Avx512Kernels {
  using Vector = Vec256<struct Avx512Level>;
  using Bf16 = W4A16Pairs<Vector, Bf16Tokens<Vector>>;
  using Fp16 = W4A16Pairs<Vector, Fp16Tokens<Vector>>;
  using Nvfp4 = W4A4Pairs<Vector>;
};

template <class Stream>
bool run_few(const Group& group, const u8* prepared, i64 row_begin, i64 row_end, u8* scratch) {
  if (group.tokens > Stream::kMostTokens) return false;
  float* accumulators = reinterpret_cast<float*>(scratch);
  run_stream<Avx512Kernels::Vector, Stream>(group, prepared, row_begin, row_end, accumulators);
  return true;
}

// Few tokens: same bits as the loop nest, faster.
void run(const Group& group, const u8* prepared, i64 row_begin, i64 row_end, u8* scratch) {
  using V = Avx512Kernels::Vector;
  const auto few = group.x_type == NIBBLAS_E2M1X2    ? run_few<DotStream<V>>
                   : group.x_type == NIBBLAS_FLOAT16 ? run_few<EqualFloatStream<V, Fp16Tokens<V>>>
                                                     : run_few<EqualFloatStream<V, Bf16Tokens<V>>>;
  if (few(group, prepared, row_begin, row_end, scratch)) return;
  vector_run<Avx512Kernels>(group, prepared, row_begin, row_end, scratch);
}

constexpr Level make_level() {
  Level level = vector_level<Avx512Kernels>("avx512", 12288);
  level.run = run;
  return level;
}

}  // namespace

extern const Level kAvx512Level = make_level();

}  // namespace nibblas::cpu
