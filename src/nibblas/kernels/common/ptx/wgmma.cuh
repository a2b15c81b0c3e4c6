// Matrix multiplications of a warpgroup, sm_90a; one function per instruction. PTX ISA,
// "Asynchronous Warpgroup Level Matrix Instructions".
//
// D (64 x N, fp32) += A (64 x 16, in registers) * B (16 x N, in shared memory, a row of 16 values
// per column). A lane's d[4i..4i+3] are row lane / 4: columns 8i + 2 (lane % 4) and the next; row
// lane / 4 + 8: the same. Its a[0..3] are the same rows at k = 2 (lane % 4) and the next, then at k
// + 8. https://docs.nvidia.com/cuda/parallel-thread-execution/#wgmma-64n16-d
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-fence
// Orders the warpgroup's own writes of registers before its next multiplication.
static __device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-commit-group
static __device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-wait-group
// Waits until at most kGroups of the committed groups are under way.
template <i32 kGroups>
static __device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma
// Wgmma<N>::f16 and ::bf16.
template <i32 kN>
struct Wgmma;

// clang-format off
#define NIBBLAS_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NIBBLAS_D8(i) NIBBLAS_D4(i), NIBBLAS_D4(i + 4)
#define NIBBLAS_D16(i) NIBBLAS_D8(i), NIBBLAS_D8(i + 8)
#define NIBBLAS_D32(i) NIBBLAS_D16(i), NIBBLAS_D16(i + 16)
#define NIBBLAS_D64(i) NIBBLAS_D32(i), NIBBLAS_D32(i + 32)
#define NIBBLAS_D_8 NIBBLAS_D4(0)
#define NIBBLAS_D_16 NIBBLAS_D8(0)
#define NIBBLAS_D_24 NIBBLAS_D8(0), NIBBLAS_D4(8)
#define NIBBLAS_D_32 NIBBLAS_D16(0)
#define NIBBLAS_D_48 NIBBLAS_D16(0), NIBBLAS_D8(16)
#define NIBBLAS_D_64 NIBBLAS_D32(0)
#define NIBBLAS_D_80 NIBBLAS_D32(0), NIBBLAS_D8(32)
#define NIBBLAS_D_96 NIBBLAS_D32(0), NIBBLAS_D16(32)
#define NIBBLAS_D_112 NIBBLAS_D32(0), NIBBLAS_D16(32), NIBBLAS_D8(48)
#define NIBBLAS_D_128 NIBBLAS_D64(0)
#define NIBBLAS_D_160 NIBBLAS_D64(0), NIBBLAS_D16(64)
#define NIBBLAS_D_176 NIBBLAS_D64(0), NIBBLAS_D16(64), NIBBLAS_D8(80)
#define NIBBLAS_D_208 NIBBLAS_D64(0), NIBBLAS_D32(64), NIBBLAS_D8(96)
#define NIBBLAS_D_256 NIBBLAS_D64(0), NIBBLAS_D64(64)

#define NIBBLAS_R_8 "%0, %1, %2, %3"
#define NIBBLAS_R_16 NIBBLAS_R_8 ", " \
                     "%4, %5, %6, %7"
#define NIBBLAS_R_24 NIBBLAS_R_16 ", " \
                     "%8, %9, %10, %11"
#define NIBBLAS_R_32 NIBBLAS_R_24 ", " \
                     "%12, %13, %14, %15"
#define NIBBLAS_R_48 NIBBLAS_R_32 ", " \
                     "%16, %17, %18, %19, %20, %21, %22, %23"
#define NIBBLAS_R_64 NIBBLAS_R_48 ", " \
                     "%24, %25, %26, %27, %28, %29, %30, %31"
#define NIBBLAS_R_80 NIBBLAS_R_64 ", " \
                     "%32, %33, %34, %35, %36, %37, %38, %39"
#define NIBBLAS_R_96 NIBBLAS_R_80 ", " \
                     "%40, %41, %42, %43, %44, %45, %46, %47"
#define NIBBLAS_R_112 NIBBLAS_R_96 ", " \
                     "%48, %49, %50, %51, %52, %53, %54, %55"
#define NIBBLAS_R_128 NIBBLAS_R_112 ", " \
                     "%56, %57, %58, %59, %60, %61, %62, %63"
#define NIBBLAS_R_160 NIBBLAS_R_128 ", " \
                     "%64, %65, %66, %67, %68, %69, %70, %71" ", " \
                     "%72, %73, %74, %75, %76, %77, %78, %79"
#define NIBBLAS_R_176 NIBBLAS_R_160 ", " \
                     "%80, %81, %82, %83, %84, %85, %86, %87"
#define NIBBLAS_R_192 NIBBLAS_R_176 ", " \
                     "%88, %89, %90, %91, %92, %93, %94, %95"
#define NIBBLAS_R_208 NIBBLAS_R_192 ", " \
                     "%96, %97, %98, %99, %100, %101, %102, %103"
#define NIBBLAS_R_256 NIBBLAS_R_208 ", " \
                     "%104, %105, %106, %107, %108, %109, %110, %111" ", " \
                     "%112, %113, %114, %115, %116, %117, %118, %119" ", " \
                     "%120, %121, %122, %123, %124, %125, %126, %127"

#define NIBBLAS_WGMMA_OF(N, TYPE, A, B)                                                     \
  static __device__ __forceinline__ void TYPE(float (&d)[N / 2], const u32 (&a)[4], u64 b) {  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #TYPE "." #TYPE          \
                 " {" NIBBLAS_R_##N "}, {" A "}, " B ", 1, 1, 1, 0;"                        \
                 : NIBBLAS_D_##N                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                       \
                 : "memory");                                                               \
  }
#define NIBBLAS_WGMMA(N, A, B)       \
  template <>                        \
  struct Wgmma<N> {                  \
    NIBBLAS_WGMMA_OF(N, f16, A, B)   \
    NIBBLAS_WGMMA_OF(N, bf16, A, B)  \
  };

NIBBLAS_WGMMA(8, "%4, %5, %6, %7", "%8")
NIBBLAS_WGMMA(16, "%8, %9, %10, %11", "%12")
NIBBLAS_WGMMA(24, "%12, %13, %14, %15", "%16")
NIBBLAS_WGMMA(32, "%16, %17, %18, %19", "%20")
NIBBLAS_WGMMA(48, "%24, %25, %26, %27", "%28")
NIBBLAS_WGMMA(64, "%32, %33, %34, %35", "%36")
NIBBLAS_WGMMA(80, "%40, %41, %42, %43", "%44")
NIBBLAS_WGMMA(96, "%48, %49, %50, %51", "%52")
NIBBLAS_WGMMA(112, "%56, %57, %58, %59", "%60")
NIBBLAS_WGMMA(128, "%64, %65, %66, %67", "%68")
NIBBLAS_WGMMA(160, "%80, %81, %82, %83", "%84")
NIBBLAS_WGMMA(176, "%88, %89, %90, %91", "%92")
NIBBLAS_WGMMA(208, "%104, %105, %106, %107", "%108")
NIBBLAS_WGMMA(256, "%128, %129, %130, %131", "%132")
// clang-format on

#undef NIBBLAS_WGMMA
#undef NIBBLAS_WGMMA_OF

// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-shared-memory-layout-matrix-descriptor
// B with rows of 128 bytes in TMA's 128-byte swizzle, 8 rows after 8 rows: the distance between
// those at bit 32, the swizzle's number at bit 62, all addresses in units of 16 bytes. A step of 16
// values along K is 32 bytes further.
static __device__ __forceinline__ u64 wgmma_descriptor_128b(u32 sixteenth_address) {
  constexpr u64 kEightRows = 8 * 128 / 16, kSwizzle128B = 1;
  return sixteenth_address | kEightRows << 32 | kSwizzle128B << 62;
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
// Gives registers back, or waits for more, for all warps of a warpgroup.
template <i32 kRegisters>
static __device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <i32 kRegisters>
static __device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace nibblas::ptx
