// The descriptors of tcgen05 for packed E2M1 operands and their scales.
// PTX ISA, "Shared memory descriptor" and "Instruction descriptor" of the tcgen05 family.
#pragma once

#include "types.h"

namespace nibblas {

// Values along K that one MMA takes in.
constexpr i32 kMmaK = 64;

//   bits 0-13   start address >> 4          bits 46-48  0b001
//   bits 16-29  leading byte offset >> 4    bits 49-51  base offset
//   bits 32-45  stride byte offset >> 4     bits 61-63  swizzle: 0 none, 2 128 bytes
NIBBLAS_HD static constexpr u64 shared_descriptor(u64 stride_bytes, u64 swizzle) {
  constexpr u64 kVersion = 1;
  return stride_bytes >> 4 << 32 | kVersion << 46 | swizzle << 61;
}

// Rows of 128 bytes, 256 values, with the 128-byte swizzle: 8 rows are 1024 bytes, which the start
// of the matrix is aligned to. The next kMmaK values lie 32 bytes on. LBO is not used.
constexpr u64 kOperandDescriptor = shared_descriptor(1024, 2);
constexpr u32 kOperandStepBytes = kMmaK / 2;

// An atom of blocked scales for tcgen05.cp.32x128b: 32 rows of 16 bytes, one after the other.
constexpr u64 kScalesDescriptor = shared_descriptor(128, 0);

NIBBLAS_HD static constexpr u64 at_address(u64 descriptor, u32 shared_address) {
  return descriptor | (shared_address & 0x3FFFF) >> 4;
}

//   bits 4-5    id of B's scales: 0         bits 17-22  N >> 3
//   bits 7-9    A: 1 = E2M1                 bit 23      scales: 0 = UE4M3
//   bits 10-11  B: 1 = E2M1                 bits 27-28  M >> 7
//   bits 13-16  no negation, K-major        bits 29-30  id of A's scales: 0
NIBBLAS_HD static constexpr u32 nvfp4_instruction(u32 m, u32 n) {
  constexpr u32 kE2m1 = 1;
  return kE2m1 << 7 | kE2m1 << 10 | n >> 3 << 17 | m >> 7 << 27;
}

}  // namespace nibblas
