// With no launch bounds ptxas cannot know the registers at entry, and ignores setmaxnreg.
extern "C" __global__ void setmaxnreg(int* out) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  out[threadIdx.x] = 1;
}
