// Matrices stored by a warp, sm_90 and newer; one function per instruction.
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix
// Four of 8 x 8 values of 16 bits, of which lane l has row l / 4, columns 2 (l % 4) and the next.
// Column c of matrix m goes, as 16 bytes, to where lane 8m + c says.
static __device__ __forceinline__ void stmatrix_x4_trans(u32 to, const u32 (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

}  // namespace nibblas::ptx
