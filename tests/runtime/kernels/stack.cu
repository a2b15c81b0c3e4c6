// An array that is indexed at run time lives in a stack frame.
extern "C" __global__ void stack(float* data, int steps) {
  float local[300];
  for (int i = 0; i < 300; ++i) local[i] = data[i];
  for (int i = 0; i < steps; ++i) local[i * 7 % 300] += local[i % 299];
  data[steps] = local[steps];
}
