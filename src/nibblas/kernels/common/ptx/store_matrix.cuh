// Matrices stored by a warp, sm_90 and newer; one function per instruction.
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix
// Two of 8 x 8 values of 16 bits, of which lane l has row l / 4, columns 2 (l % 4) and the next.
// A column of 16 bytes goes to where one of the lanes 0..7 says, of the second matrix 8..15.
static __device__ __forceinline__ void stmatrix_x2_trans(u32 to, u32 first, u32 second) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
               "r"(first), "r"(second)
               : "memory");
}

}  // namespace nibblas::ptx
