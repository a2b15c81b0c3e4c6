// What the processor and the operating system under this process can run.
#pragma once

namespace nibblas::cpu {

bool has_avx2();    // with FMA and F16C
bool has_avx512();  // F, BW, DQ, VL, VNNI, and BMI2
// AMX-TILE, AMX-BF16, VBMI and what has_avx512 asks for; obtains the kernel's permission to use
// tiles.
bool has_amx();

}  // namespace nibblas::cpu
