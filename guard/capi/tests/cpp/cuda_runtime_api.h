// The part of the CUDA runtime that gridguard_cuda.hpp uses, on the fake driver.
#ifndef FAKE_CUDA_RUNTIME_API_H
#define FAKE_CUDA_RUNTIME_API_H

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

typedef struct CUstream_st *cudaStream_t;
typedef struct CUfunc_st *cudaFunction_t;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidDeviceFunction = 98 };

cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *symbol);
const char *cudaGetErrorName(cudaError_t code);
const char *cudaGetErrorString(cudaError_t code);

#endif
