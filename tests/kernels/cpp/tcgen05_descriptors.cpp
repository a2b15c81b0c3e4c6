// tcgen05_descriptors.h as functions; tests/kernels/test_tcgen05_descriptors.py compiles this.
#include "../../../src/nibblas/kernels/common/tcgen05_descriptors.h"

using namespace nibblas;

extern "C" {

u64 operand_descriptor(u32 address) { return at_address(kOperandDescriptor, address); }

u64 scales_descriptor(u32 address) { return at_address(kScalesDescriptor, address); }

u32 operand_step_bytes() { return kOperandStepBytes; }

u32 instruction(u32 m, u32 n) { return nvfp4_instruction(m, n); }

}  // extern "C"
