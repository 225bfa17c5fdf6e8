// The other file of `relocatable.cu`.
__device__ float halved(float x) { return x * 0.5f; }

extern "C" __global__ void alone(int *p) { *p = 1; }
