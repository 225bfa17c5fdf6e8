// Loops over indices. Format: README.md.

typedef long long wide;

// case grid_stride: block.x=256 grid.x=65536; first n=2130706433
//   The last index n - 1 plus the stride 65536 * 256 = 2^24 is 2^31, is negative, and the loop goes on.
extern "C" __global__ void grid_stride_faulty(float* out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) out[i] = 1;
}
extern "C" __global__ void grid_stride_mended(float* out, wide n) {
    for (wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (wide)blockDim.x * gridDim.x) out[i] = 1;
}

// case grid_stride_unsigned: block.x=256 grid.x=65536; first n=4278190081
//   n - 1 + 2^24 = 2^32.
extern "C" __global__ void grid_stride_unsigned_faulty(float* out, unsigned n) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) out[i] = 1;
}
extern "C" __global__ void grid_stride_unsigned_mended(float* out, unsigned n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)blockDim.x * gridDim.x) out[i] = 1;
}

// case wide_count: block.x=256 grid.x=65536; first n=4278190081
//   The count has 64 bits, but the index has 32: n - 1 + 2^24 = 2^32.
extern "C" __global__ void wide_count_faulty(float* out, size_t n) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) out[i] = 1;
}
extern "C" __global__ void wide_count_mended(float* out, size_t n) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)blockDim.x * gridDim.x) out[i] = 1;
}

// case blocks_stride: block.x=256 grid.x=1024; first n=2143289345
//   The last base n - 1 = 4096 * 523264 plus the stride 1024 * 4096 = 2^22 is 2^31.
extern "C" __global__ void blocks_stride_faulty(float* out, int n) {
    for (int base = blockIdx.x * 4096; base < n; base += gridDim.x * 4096) out[base] = threadIdx.x;
}
extern "C" __global__ void blocks_stride_mended(float* out, wide n) {
    for (wide base = (wide)blockIdx.x * 4096; base < n; base += (wide)gridDim.x * 4096) out[base] = threadIdx.x;
}

// case row_sum: block.x=256 n=131072; first grid.x=16385
//   Row 16384 starts at 16384 * 2^17 = 2^31.
extern "C" __global__ void row_sum_faulty(float* out, const float* in, int n) {
    int row = blockIdx.x;
    float sum = 0;
    for (int j = threadIdx.x; j < n; j += blockDim.x) sum += in[row * n + j];
    atomicAdd(out + row, sum);
}
extern "C" __global__ void row_sum_mended(float* out, const float* in, int n) {
    wide row = blockIdx.x;
    float sum = 0;
    for (int j = threadIdx.x; j < n; j += blockDim.x) sum += in[row * n + j];
    atomicAdd(out + row, sum);
}

// case row_sum_warp: block.x=32 n=131072; first grid.x=16385
//   As above, with a constant step, which the compiler unrolls.
extern "C" __global__ void row_sum_warp_faulty(float* out, const float* in, int n) {
    int row = blockIdx.x;
    float sum = 0;
    for (int j = threadIdx.x; j < n; j += 32) sum += in[row * n + j];
    atomicAdd(out + row, sum);
}
extern "C" __global__ void row_sum_warp_mended(float* out, const float* in, int n) {
    wide row = blockIdx.x;
    float sum = 0;
    for (int j = threadIdx.x; j < n; j += 32) sum += in[row * n + j];
    atomicAdd(out + row, sum);
}

// case softmax: block.x=128 n=65536; first grid.x=32769
//   Row 32768 starts at 32768 * 65536 = 2^31.
extern "C" __global__ void softmax_faulty(float* out, const float* in, int n) {
    int row = blockIdx.x;
    float sum = 0;
    for (int j = threadIdx.x; j < n; j += 128) sum += __expf(in[row * n + j]);
    for (int j = threadIdx.x; j < n; j += 128) out[row * n + j] = __expf(in[row * n + j]) / sum;
}
extern "C" __global__ void softmax_mended(float* out, const float* in, int n) {
    size_t row = blockIdx.x;
    float sum = 0;
    for (int j = threadIdx.x; j < n; j += 128) sum += __expf(in[row * n + j]);
    for (int j = threadIdx.x; j < n; j += 128) out[row * n + j] = __expf(in[row * n + j]) / sum;
}

// case batches: block.x=256 grid.x=4096 stride=1048576; first B=4097
//   A batch has 4096 * 256 = 2^20 elements: 4096 * 2^20 = 2^32.
extern "C" __global__ void batches_faulty(float* out, unsigned stride, unsigned B) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned b = 0; b < B; b++) out[b * stride + i] = 1;
}
extern "C" __global__ void batches_mended(float* out, size_t stride, unsigned B) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (unsigned b = 0; b < B; b++) out[b * stride + i] = 1;
}

// case convolution: block.x=256 grid.x=256 grid.y=4 C=4 L=65536 Lout=65534; first grid.z=8193
//   An item has 4 * 65536 = 2^18 elements: 8192 * 2^18 = 2^31.
extern "C" __global__ void convolution_faulty(float* out, const float* in, const float* w, int C, int L, int Lout) {
    int l = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.z * C + blockIdx.y;
    if (l >= Lout) return;
    float sum = 0;
    for (int k = 0; k < 3; k++) sum += in[row * L + l + k] * w[k];
    out[row * Lout + l] = sum;
}
extern "C" __global__ void convolution_mended(float* out, const float* in, const float* w, wide C, wide L, wide Lout) {
    wide l = (wide)blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.z * C + blockIdx.y;
    if (l >= Lout) return;
    float sum = 0;
    for (int k = 0; k < 3; k++) sum += in[row * L + l + k] * w[k];
    out[row * Lout + l] = sum;
}

// case scan: block.x=128 L=16384 D=128; first grid.x=1025
//   A sequence has 16384 * 128 = 2^21 elements: 1024 * 2^21 = 2^31.
extern "C" __global__ void scan_faulty(float* out, const float* in, int L, int D) {
    float sum = 0;
    for (int t = 0; t < L; t++) {
        int at = (blockIdx.x * L + t) * D + threadIdx.x;
        out[at] = sum += in[at];
    }
}
extern "C" __global__ void scan_mended(float* out, const float* in, int L, int D) {
    float sum = 0;
    for (int t = 0; t < L; t++) {
        wide at = ((wide)blockIdx.x * L + t) * D + threadIdx.x;
        out[at] = sum += in[at];
    }
}

// case backwards: block.x=256 n=131072; first grid.x=16385
//   Row 16384 starts at 2^31.
extern "C" __global__ void backwards_faulty(float* out, const float* in, int n) {
    int row = blockIdx.x;
    for (int j = n - 1 - (int)threadIdx.x; j >= 0; j -= 256) out[row * n + j] = in[row * n + j];
}
extern "C" __global__ void backwards_mended(float* out, const float* in, int n) {
    wide row = blockIdx.x;
    for (int j = n - 1 - (int)threadIdx.x; j >= 0; j -= 256) out[row * n + j] = in[row * n + j];
}

// case product: block.x=16 block.y=16 grid.x=1 grid.y=8192 N=16 K=32768; first M=65537; sm_120 never
//   Row 65536 of the left matrix starts at 65536 * 32768 = 2^31. For sm_120 the index is extended without its sign:
//   the last row of 8192 * 16 = 131072 rows ends at 2^32 - 1.
extern "C" __global__ void product_faulty(float* c, const float* a, const float* b, int M, int N, int K) {
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0;
    for (int k = 0; k < K; k++) sum += a[row * K + k] * b[k * N + column];
    c[row * N + column] = sum;
}
extern "C" __global__ void product_mended(float* c, const float* a, const float* b, wide M, wide N, wide K) {
    wide row = blockIdx.y * 16ll + threadIdx.y, column = blockIdx.x * 16ll + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0;
    for (wide k = 0; k < K; k++) sum += a[row * K + k] * b[k * N + column];
    c[row * N + column] = sum;
}
