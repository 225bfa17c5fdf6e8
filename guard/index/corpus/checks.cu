// Bound checks of wrapped values, where the kernel then skips or overruns. Format: README.md.

typedef long long wide;

// case thread_index: block.x=256 n=1000; first grid.x=8388609
//   Thread 8388608 * 256 = 2^31 has a negative index, which is below n.
extern "C" __global__ void thread_index_faulty(float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 1;
}
extern "C" __global__ void thread_index_mended(float* out, wide n) {
    wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 1;
}

// case total: block.x=256 grid.x=1000 rows=65536; first columns=32768
//   65536 * 32768 = 2^31: the total is negative, and every thread skips.
extern "C" __global__ void total_faulty(float* out, int rows, int columns) {
    int total = rows * columns;
    wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) out[i] = 1;
}
extern "C" __global__ void total_mended(float* out, int rows, int columns) {
    wide total = (wide)rows * columns;
    wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total) out[i] = 1;
}

// case padded: block.x=256 n=1000 padding=16; first grid.x=8388608
//   8388608 * 256 - 1 + 16 = 2^31 + 15; one block less ends at 2^31 - 257 + 16.
extern "C" __global__ void padded_faulty(float* out, int n, int padding) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i + padding < n) out[i] = 1;
}
extern "C" __global__ void padded_mended(float* out, wide n, wide padding) {
    wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (i + padding < n) out[i] = 1;
}

// case skipped: block.x=64 n=1000; first grid.x=32769
//   Chunk 32768 starts at 32768 * 65536 = 2^31.
extern "C" __global__ void skipped_faulty(float* out, int n) {
    int first = blockIdx.x * 65536;
    if (first >= n) return;
    out[first] = threadIdx.x;
}
extern "C" __global__ void skipped_mended(float* out, wide n) {
    wide first = blockIdx.x * 65536ll;
    if (first >= n) return;
    out[first] = threadIdx.x;
}

// case inner: block.x=256 grid.y=391 inner=100003; first grid.x=21475; sm_120 grid.x=42949
//   21474 * 100003 = 2147464422 elements fit, and one row more has 2147564425. For sm_120 the index is extended without
//   its sign: 42948 * 100003 = 4294928844 elements fit, and one row more has 4295028847.
extern "C" __global__ void inner_faulty(float* out, int inner) {
    int i = blockIdx.x, j = blockIdx.y * blockDim.x + threadIdx.x;
    if (j < inner) out[i * inner + j] = 1;
}
extern "C" __global__ void inner_mended(float* out, wide inner) {
    wide j = (wide)blockIdx.y * blockDim.x + threadIdx.x;
    if (j < inner) out[blockIdx.x * inner + j] = 1;
}
