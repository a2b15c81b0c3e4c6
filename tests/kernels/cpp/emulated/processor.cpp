// In place of kernels/cpu/processor.cpp: every level that is compiled runs, those beyond AVX2 by
// emulation.
#include "processor.h"

namespace nibblas::cpu {

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }
bool has_avx512() { return has_avx2() && __builtin_cpu_supports("bmi2"); }
bool has_amx() { return has_avx512(); }

}  // namespace nibblas::cpu
