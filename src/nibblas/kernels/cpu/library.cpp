// The exported functions.
#include <new>

#include "grouped_mm.h"

namespace nibblas::cpu {
namespace {

constexpr const Level* kLevels[] = {
    &kPortableLevel,
#if defined(NIBBLAS_HAS_AVX2)
    &kAvx2Level,
#endif
};
constexpr i32 kLevelCount = sizeof(kLevels) / sizeof(kLevels[0]);

u32 supported_levels() {
  u32 levels = 1;
#if defined(NIBBLAS_HAS_AVX2)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    levels |= 2;
  }
#endif
  return levels;
}

bool is_supported(i32 level) {
  return level >= 0 && level < kLevelCount && (supported_levels() >> level & 1) != 0;
}

}  // namespace
}  // namespace nibblas::cpu

using namespace nibblas::cpu;

int32_t nibblas_cpu_abi_version(void) { return NIBBLAS_CPU_ABI_VERSION; }

uint32_t nibblas_cpu_supported_levels(void) { return supported_levels(); }

const char* nibblas_cpu_level_name(int32_t level) {
  return level >= 0 && level < kLevelCount ? kLevels[level]->name : nullptr;
}

const char* nibblas_cpu_status_text(int32_t status) {
  switch (status) {
    case NIBBLAS_OK:
      return "ok";
    case NIBBLAS_WRONG_STRUCT_SIZE:
      return "the caller was built for another version of NibblasProblem";
    case NIBBLAS_UNSUPPORTED_LEVEL:
      return "this machine cannot run the instruction level asked for";
    case NIBBLAS_UNKNOWN_TYPE:
      return "unknown type, scale layout or scale start";
    case NIBBLAS_BAD_SIZE:
      return "sizes that do not fit each other";
    case NIBBLAS_OUT_OF_MEMORY:
      return "out of memory; outputs may be incomplete";
    default:
      return "unknown status";
  }
}

int32_t nibblas_cpu_grouped_mm(const NibblasProblem* problems, int64_t count, int32_t level,
                               int32_t threads, NibblasParallelRegion region) {
  if (!is_supported(level)) return NIBBLAS_UNSUPPORTED_LEVEL;
  for (int64_t i = 0; i < count; ++i) {
    const NibblasStatus status = check_problem(problems[i]);
    if (status != NIBBLAS_OK) return status;
  }
  try {
    return grouped_mm(GroupTable(problems, count), *kLevels[level], threads, region);
  } catch (const std::bad_alloc&) {
    return NIBBLAS_OUT_OF_MEMORY;
  }
}
