// A file with relocatable device code: its kernels call a function of `callee.cu`.
extern __device__ float halved(float);

extern "C" __global__ void caller(float *x) { x[threadIdx.x] = halved(x[threadIdx.x]); }

extern "C" __global__ void __launch_bounds__(128) bounded_caller(float *x, int n)
{
    __shared__ float tile[128];
    tile[threadIdx.x] = x[n + threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = halved(tile[n & 127]);
}
