// A block index times a stride. Format: README.md.

typedef long long wide;

// case row_start: block.x=256; first grid.y=32769; sm_120 never
//   Row 32768 starts at 32768 * 65536 = 2^31. For sm_120 the index is extended without its sign: row 65535, the last,
//   ends at 2^32 - 1.
extern "C" __global__ void row_start_faulty(float* out) {
    int row = blockIdx.y, x = threadIdx.x;
    out[row * 65536 + x] = 1;
}
extern "C" __global__ void row_start_mended(float* out) {
    out[(wide)blockIdx.y * 65536 + threadIdx.x] = 1;
}

// case row_major: block.x=16 block.y=16 grid.x=4096 grid.y=65535 N=65536; first M=32769
//   The last element is M * 65536 - 1, and 32768 * 65536 - 1 = 2^31 - 1 is the last that fits.
extern "C" __global__ void row_major_faulty(float* out, const float* in, int M, int N) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < M && column < N) out[row * N + column] = 2 * in[row * N + column];
}
extern "C" __global__ void row_major_mended(float* out, const float* in, wide M, wide N) {
    wide row = (wide)blockIdx.y * blockDim.y + threadIdx.y, column = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (row < M && column < N) out[row * N + column] = 2 * in[row * N + column];
}

// case heads: block.x=64 grid.x=1024 grid.y=8 H=8 T=1024 D=64; first grid.z=4097
//   A batch has 8 * 1024 * 64 = 2^19 elements, and 4096 * 2^19 = 2^31.
extern "C" __global__ void heads_faulty(float* out, const float* in, int H, int T, int D) {
    int b = blockIdx.z, h = blockIdx.y, t = blockIdx.x;
    int at = ((b * H + h) * T + t) * D + threadIdx.x;
    out[at] = in[at] * 0.5f;
}
extern "C" __global__ void heads_mended(float* out, const float* in, int H, int T, int D) {
    wide b = blockIdx.z, h = blockIdx.y, t = blockIdx.x;
    wide at = ((b * H + h) * T + t) * D + threadIdx.x;
    out[at] = in[at] * 0.5f;
}

// case heads_loop: block.x=32 grid.x=1024 grid.y=8 H=8 T=1024 D=64; first grid.z=4097
//   As above: batch 4096 starts at 2^31.
extern "C" __global__ void heads_loop_faulty(float* out, const float* in, int H, int T, int D) {
    int b = blockIdx.z, h = blockIdx.y, t = blockIdx.x, base = ((b * H + h) * T + t) * D;
    for (int d = threadIdx.x; d < D; d += 32) out[base + d] = in[base + d];
}
extern "C" __global__ void heads_loop_mended(float* out, const float* in, int H, int T, int D) {
    wide b = blockIdx.z, h = blockIdx.y, t = blockIdx.x, base = ((b * H + h) * T + t) * D;
    for (int d = threadIdx.x; d < D; d += 32) out[base + d] = in[base + d];
}

// case chunks: block.x=256 grid.x=256 stride_b=4194304 stride_c=16384; first grid.y=513
//   Batch 512 starts at 512 * 2^22 = 2^31; batch 511 ends below 511 * 2^22 + 256 * 2^14 = 2^31.
extern "C" __global__ void chunks_faulty(float* out, int stride_b, int stride_c) {
    int at = blockIdx.y * stride_b + blockIdx.x * stride_c + threadIdx.x;
    out[at] = at;
}
extern "C" __global__ void chunks_mended(float* out, int stride_b, int stride_c) {
    wide at = (wide)blockIdx.y * stride_b + (wide)blockIdx.x * stride_c + threadIdx.x;
    out[at] = at;
}

// case tokens: block.x=128 grid.x=64 T=4096 K=128; first grid.y=4097
//   A head has 4096 * 128 = 2^19 elements.
extern "C" __global__ void tokens_faulty(float* out, int T, int K) {
    int head = blockIdx.y, tile = blockIdx.x, x = threadIdx.x;
    out[(head * T + tile * 64) * K + x] = 0;
}
extern "C" __global__ void tokens_mended(float* out, int T, int K) {
    wide head = blockIdx.y, tile = blockIdx.x;
    out[(head * T + tile * 64) * K + threadIdx.x] = 0;
}

// case bytes: block.x=1024; first grid.x=524289
//   Element 2^29 = 524288 * 1024 is at byte 2^31.
extern "C" __global__ void bytes_faulty(char* out) {
    int offset = (blockIdx.x * 1024 + threadIdx.x) * 4;
    *(float*)(out + offset) = 1;
}
extern "C" __global__ void bytes_mended(char* out) {
    wide offset = ((wide)blockIdx.x * 1024 + threadIdx.x) * 4;
    *(float*)(out + offset) = 1;
}

// case unsigned_row: block.x=256; first grid.x=32769
//   Row 32768 starts at 32768 * 2^17 = 2^32.
extern "C" __global__ void unsigned_row_faulty(float* out) {
    unsigned at = blockIdx.x * 131072u + threadIdx.x;
    out[at] = 1;
}
extern "C" __global__ void unsigned_row_mended(float* out) {
    size_t at = (size_t)blockIdx.x * 131072u + threadIdx.x;
    out[at] = 1;
}

// case head_stride: block.x=128 grid.x=8192 stride_h=1048576 D=128; first grid.y=2049
//   Head 2048 starts at 2048 * 2^20 = 2^31; head 2047 ends at 2^31 - 1.
extern "C" __global__ void head_stride_faulty(float* out, int stride_h, int D) {
    int h = blockIdx.y, t = blockIdx.x, x = threadIdx.x;
    out[h * stride_h + t * D + x] = 1;
}
extern "C" __global__ void head_stride_mended(float* out, wide stride_h, wide D) {
    wide h = blockIdx.y, t = blockIdx.x;
    out[h * stride_h + t * D + threadIdx.x] = 1;
}

// case images: block.x=256 grid.x=256 grid.y=64 C=64 H=256 W=256; first grid.z=513
//   An image has 64 * 256 * 256 = 2^22 elements.
extern "C" __global__ void images_faulty(float* out, int C, int H, int W) {
    int n = blockIdx.z, c = blockIdx.y, h = blockIdx.x, x = threadIdx.x;
    out[((n * C + c) * H + h) * W + x] = 1;
}
extern "C" __global__ void images_mended(float* out, int C, int H, int W) {
    wide n = blockIdx.z, c = blockIdx.y, h = blockIdx.x;
    out[((n * C + c) * H + h) * W + threadIdx.x] = 1;
}

// case tiles: block.x=32 block.y=8 hidden=8192; first grid.x=2049
//   A tile has 128 * 8192 = 2^20 elements.
extern "C" __global__ void tiles_faulty(float* out, int hidden) {
    int row = blockIdx.x * 128 + threadIdx.y, x = threadIdx.x;
    out[row * hidden + x] = 1;
}
extern "C" __global__ void tiles_mended(float* out, int hidden) {
    size_t row = (size_t)blockIdx.x * 128 + threadIdx.y;
    out[row * hidden + threadIdx.x] = 1;
}

// case features: block.x=32 grid.y=6 heads=6 d=32; first grid.x=11184811
//   A row has 192 elements: 11184810 * 192 = 2147483520 elements fit, one row more has 2147483712.
extern "C" __global__ void features_faulty(float* out, int heads, int d) {
    int row = blockIdx.x, head = blockIdx.y, x = threadIdx.x;
    out[(row * heads + head) * d + x] = 1;
}
extern "C" __global__ void features_mended(float* out, int heads, int d) {
    wide row = blockIdx.x, head = blockIdx.y;
    out[(row * heads + head) * d + threadIdx.x] = 1;
}

// case four_strides: block.x=512 grid.y=512 ne2=64 s1=512 s2=262144 s3=16777216; first grid.z=8193
//   s3 = 64 * s2, so that a plane of 2^18 elements follows the other: 8192 * 2^18 = 2^31.
extern "C" __global__ void four_strides_faulty(float* out, int ne2, int s1, int s2, int s3) {
    int i3 = blockIdx.z / ne2, i2 = blockIdx.z % ne2, i1 = blockIdx.y, i0 = threadIdx.x;
    out[i3 * s3 + i2 * s2 + i1 * s1 + i0] = 1;
}
extern "C" __global__ void four_strides_mended(float* out, int ne2, wide s1, wide s2, wide s3) {
    int i3 = blockIdx.z / ne2, i2 = blockIdx.z % ne2, i1 = blockIdx.y;
    out[i3 * s3 + i2 * s2 + i1 * s1 + threadIdx.x] = 1;
}

// case padded_heads: block.x=256 H=12 stride_b=1048576 stride_h=65536; first grid.z=24577
//   Batch 2048 starts at 2048 * 2^20 = 2^31, and is block 2048 * 12 = 24576.
extern "C" __global__ void padded_heads_faulty(float* out, int H, int stride_b, int stride_h) {
    int b = blockIdx.z / H, h = blockIdx.z % H, x = threadIdx.x;
    out[b * stride_b + h * stride_h + x] = 1;
}
extern "C" __global__ void padded_heads_mended(float* out, int H, wide stride_b, wide stride_h) {
    int b = blockIdx.z / H, h = blockIdx.z % H;
    out[b * stride_b + h * stride_h + threadIdx.x] = 1;
}

// case shifted: block.x=1024; first grid.x=2049
//   2048 << 20 = 2^31.
extern "C" __global__ void shifted_faulty(float* out) {
    int at = (blockIdx.x << 20) | threadIdx.x;
    out[at] = 1;
}
extern "C" __global__ void shifted_mended(float* out) {
    wide at = ((wide)blockIdx.x << 20) | threadIdx.x;
    out[at] = 1;
}

// case structure: block.x=256 p+8=65536; first grid.y=32769
//   The pitch is the third integer of the structure: 32768 * 65536 = 2^31.
struct Layout {
    int rows, columns, pitch;
};
extern "C" __global__ void structure_faulty(float* out, Layout p) {
    int row = blockIdx.y, x = threadIdx.x;
    out[row * p.pitch + x] = 1;
}
extern "C" __global__ void structure_mended(float* out, Layout p) {
    out[(wide)blockIdx.y * p.pitch + threadIdx.x] = 1;
}
