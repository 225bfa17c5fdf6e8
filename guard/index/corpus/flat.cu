// A flat thread index, scaled or taken apart. Format: README.md.

typedef long long wide;

// case scaled: block.x=256 grid.x=8388608; first n=536870913
//   Element 2^29 times 4 is 2^31.
extern "C" __global__ void scaled_faulty(float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i * 4 + 3] = 1;
}
extern "C" __global__ void scaled_mended(float* out, wide n) {
    wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i * 4 + 3] = 1;
}

// case transposed: block.x=256 grid.x=4096 n=1048576 W=1024; first pitch=2099202
//   The last column is 1023 * pitch + 1023 = 1023 * (pitch + 1). 1023 * 2099202 = 2147483646 fits.
extern "C" __global__ void transposed_faulty(float* out, const float* in, int n, int W, int pitch) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i % W * pitch + i / W] = in[i];
}
extern "C" __global__ void transposed_mended(float* out, const float* in, wide n, wide W, wide pitch) {
    wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i % W * pitch + i / W] = in[i];
}

// case upsampled: block.x=256 grid.x=8388608 H=1024 W=1024; first n=536870913
//   Each element makes four: element 2^29 starts at 2^31.
extern "C" __global__ void upsampled_faulty(float* out, const float* in, int n, int H, int W) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int w = i % W, h = i / W % H, image = i / W / H;
    int at = (image * 2 * H + 2 * h) * 2 * W + 2 * w;
    out[at] = out[at + 1] = in[i];
}
extern "C" __global__ void upsampled_mended(float* out, const float* in, wide n, wide H, wide W) {
    wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    wide w = i % W, h = i / W % H, image = i / W / H;
    wide at = (image * 2 * H + 2 * h) * 2 * W + 2 * w;
    out[at] = out[at + 1] = in[i];
}

// case thirds: block.x=256 grid.x=8388608; first n=920350137
//   i / 3 * 7 + i % 3 grows with i. 920350135 = 3 * 306783378 + 1 gives 2147483647, and 920350136 gives 2147483648.
extern "C" __global__ void thirds_faulty(float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i / 3 * 7 + i % 3] = 1;
}
extern "C" __global__ void thirds_mended(float* out, wide n) {
    wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i / 3 * 7 + i % 3] = 1;
}

// case warp_rows: block.x=256 n=4096; first grid.x=65537
//   A block has 8 rows of 4096 elements: 65536 * 8 * 4096 = 2^31.
extern "C" __global__ void warp_rows_faulty(float* out, int n) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    for (int j = lane; j < n; j += 32) out[row * n + j] = 1;
}
extern "C" __global__ void warp_rows_mended(float* out, int n) {
    wide row = ((wide)blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    for (wide j = lane; j < n; j += 32) out[row * n + j] = 1;
}

// case eight_bytes: block.x=128; first grid.x=4194305
//   Element 4194304 * 128 = 2^29 is at byte 2^32.
extern "C" __global__ void eight_bytes_faulty(char* out) {
    unsigned offset = (blockIdx.x * 128 + threadIdx.x) * 8;
    *(double*)(out + offset) = 1;
}
extern "C" __global__ void eight_bytes_mended(char* out) {
    size_t offset = ((size_t)blockIdx.x * 128 + threadIdx.x) * 8;
    *(double*)(out + offset) = 1;
}

// case clamped: block.x=256 rows=100000 columns=32768; first grid.x=65537
//   Row 65536 starts at 65536 * 32768 = 2^31.
extern "C" __global__ void clamped_faulty(float* out, int rows, int columns) {
    int row = min((int)blockIdx.x, rows - 1), x = threadIdx.x;
    out[row * columns + x] = 1;
}
extern "C" __global__ void clamped_mended(float* out, int rows, int columns) {
    wide row = min((int)blockIdx.x, rows - 1);
    out[row * columns + threadIdx.x] = 1;
}

// case volume: block.x=8 block.y=8 block.z=8 grid.x=128 grid.y=128 grid.z=512 X=1024 Y=1024; first Z=2049
//   A plane has 2^20 elements: Z * 2^20 - 1 is the last element.
extern "C" __global__ void volume_faulty(float* out, int X, int Y, int Z) {
    int x = blockIdx.x * 8 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y, z = blockIdx.z * 8 + threadIdx.z;
    if (x < X && y < Y && z < Z) out[(z * Y + y) * X + x] = 1;
}
extern "C" __global__ void volume_mended(float* out, wide X, wide Y, wide Z) {
    wide x = blockIdx.x * 8ll + threadIdx.x, y = blockIdx.y * 8ll + threadIdx.y, z = blockIdx.z * 8ll + threadIdx.z;
    if (x < X && y < Y && z < Z) out[(z * Y + y) * X + x] = 1;
}

// case halo: block.x=256 block.y=1 grid.x=256 grid.y=65535 W=65536 pitch=65538; first H=32767
//   The last element is H * 65538 + 65536: 32766 * 65538 + 65536 = 2147483644 fits.
extern "C" __global__ void halo_faulty(float* out, int H, int W, int pitch) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < W && y < H) out[(y + 1) * pitch + x + 1] = 1;
}
extern "C" __global__ void halo_mended(float* out, wide H, wide W, wide pitch) {
    wide x = (wide)blockIdx.x * blockDim.x + threadIdx.x, y = (wide)blockIdx.y * blockDim.y + threadIdx.y;
    if (x < W && y < H) out[(y + 1) * pitch + x + 1] = 1;
}
