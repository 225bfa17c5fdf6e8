/*
 * Kernels for the tests of machine code. The fat binaries and the cubin beside this file are
 *
 *   nvcc -arch=sm_90 -fatbin [-Xfatbin -compress-mode=speed] machine_code.cu
 *   nvcc -arch=sm_90 -cubin machine_code.cu
 *
 * of CUDA 13.0, with the first compressed by zstd and the second by LZ4.
 */
__constant__ float scale[4] = {1, 2, 3, 4};
__device__ int counter;
__device__ float table[8] = {1, 2, 3, 4, 5, 6, 7, 8};

/* Uses no variable. */
extern "C" __global__ void rows(float *out, int n) { out[blockIdx.y] = n * 2.0f + gridDim.y; }

/* Uses a constant and two variables, one of which it writes. */
extern "C" __global__ void shares(float *out, int n) {
    out[blockIdx.y] = scale[n & 3] * table[n & 7] + scale[2];
    atomicAdd(&counter, 1);
}

/* Begins before the kernel before it ends, and lets the next one begin. */
extern "C" __global__ void waits(float *out, int n) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    out[blockIdx.y] = n;
    asm volatile("griddepcontrol.launch_dependents;");
}

/* Identifies its grid. */
extern "C" __global__ void identified(unsigned long long *out, int n) {
    unsigned long long grid;
    asm volatile("mov.u64 %0, %%gridid;" : "=l"(grid));
    out[blockIdx.y] = grid + n;
}
