#include "processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace nibblas::cpu {

#if defined(__x86_64__)

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("bmi2");
}

namespace {

// CPUID leaf 7, subleaf 0. ECX: bit 1 AVX512-VBMI. EDX: bit 22 AMX-BF16, bit 24 AMX-TILE.
bool processor_has_amx() {
  constexpr unsigned kVbmi = 1u << 1, kAmx = 1u << 22 | 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kVbmi) == kVbmi &&
         (edx & kAmx) == kAmx;
}

// Linux grants the 8 KiB of tile state to a process that asks, once and for all of its threads:
// https://docs.kernel.org/arch/x86/xstate.html. Other systems: not tried.
bool tiles_are_permitted() {
#if defined(__linux__)
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtileData) == 0;
#else
  return false;
#endif
}

}  // namespace

bool has_amx() { return has_avx512() && processor_has_amx() && tiles_are_permitted(); }

#else

bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_amx() { return false; }

#endif

}  // namespace nibblas::cpu
