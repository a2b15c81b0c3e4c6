// Programmatic dependent launches, sm_90 and newer; one function per instruction. PTX ISA,
// "griddepcontrol".
#pragma once

#include "../types.h"

namespace nibblas::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol
// Waits until the launches before this one are complete and what they wrote is visible. Returns at
// once where the launch is not programmatic.
static __device__ __forceinline__ void griddepcontrol_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol
// The next launch may begin, if it is programmatic, once every CTA has said so or ended.
static __device__ __forceinline__ void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace nibblas::ptx
