extern "C" __global__ void broken(float* out) { out[0] = undeclared; }
