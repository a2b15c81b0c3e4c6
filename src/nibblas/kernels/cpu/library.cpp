// The exported functions.
#include <new>

#include "grouped_mm.h"
#include "processor.h"

namespace nibblas::cpu {
namespace {

struct LevelEntry {
  const Level* level;
  bool (*is_supported)();
};

bool always() { return true; }

// Slower ones first.
constexpr LevelEntry kLevels[] = {
    {&kPortableLevel, always},
#if defined(NIBBLAS_HAS_AVX2)
    {&kAvx2Level, has_avx2},
#endif
#if defined(NIBBLAS_HAS_AVX512)
    {&kAvx512Level, has_avx512},
#endif
#if defined(NIBBLAS_HAS_AMX)
    {&kAmxLevel, has_amx},
#endif
};
constexpr i32 kLevelCount = sizeof(kLevels) / sizeof(kLevels[0]);

u32 find_supported_levels() {
  u32 levels = 0;
  for (i32 level = 0; level < kLevelCount; ++level) {
    if (kLevels[level].is_supported()) levels |= u32{1} << level;
  }
  return levels;
}

u32 supported_levels() {
  static const u32 levels = find_supported_levels();
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
  return level >= 0 && level < kLevelCount ? kLevels[level].level->name : nullptr;
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
    case NIBBLAS_BAD_OFFS:
      return "offs that are negative, decrease, or own rows that are not there";
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
    const Level& chosen = *kLevels[level].level;
    return grouped_mm(GroupTable(problems, count, chosen.token_block), chosen, threads, region);
  } catch (const std::bad_alloc&) {
    return NIBBLAS_OUT_OF_MEMORY;
  }
}
