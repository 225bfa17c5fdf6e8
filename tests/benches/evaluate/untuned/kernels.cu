// Kernels with untuned launch parameters, to evaluate the tuner.
//
// All tensors are of floats. An item is a block of y; its threads take its elements in turns.

typedef unsigned int u32;

// x = x / 2 + 1 for the `columns` elements of each item, N at a time. N divides `columns`, and `x` is
// aligned to N floats.
template <typename V, u32 N> __device__ void pass(float *x, u32 columns) {
    V *row = reinterpret_cast<V *>(x + size_t(blockIdx.y) * columns);
    for (u32 i = threadIdx.x; i < columns / N; i += blockDim.x) {
        V loaded = row[i];
        float *one = reinterpret_cast<float *>(&loaded);
        for (u32 k = 0; k < N; ++k) one[k] = one[k] * 0.5f + 1;
        row[i] = loaded;
    }
}

extern "C" __global__ void pass_1(float *x, u32 columns) { pass<float, 1>(x, columns); }
extern "C" __global__ void pass_2(float *x, u32 columns) { pass<float2, 2>(x, columns); }
extern "C" __global__ void pass_4(float *x, u32 columns) { pass<float4, 4>(x, columns); }

// Transposes the `height` x `width` matrix of each item.
extern "C" __global__ void transpose(const float *in, float *out, u32 height, u32 width) {
    const size_t item = size_t(blockIdx.y) * height * width;
    for (u32 y = threadIdx.y; y < height; y += blockDim.y)
        for (u32 x = threadIdx.x; x < width; x += blockDim.x)
            out[item + size_t(x) * height + y] = in[item + size_t(y) * width + x];
}

// The sum of an element of a `height` x `width` matrix and its four neighbours. Those beyond an edge are the edge's.
__device__ float blurred(const float *in, u32 height, u32 width, u32 y, u32 x) {
    const float *row = in + size_t(y) * width;
    const float *above = y ? row - width : row, *below = y + 1 < height ? row + width : row;
    return row[x] + above[x] + below[x] + row[x ? x - 1 : x] + row[x + 1 < width ? x + 1 : x];
}

extern "C" __global__ void blur(const float *in, float *out, u32 height, u32 width) {
    const size_t item = size_t(blockIdx.y) * height * width;
    for (u32 y = threadIdx.y; y < height; y += blockDim.y)
        for (u32 x = threadIdx.x; x < width; x += blockDim.x)
            out[item + size_t(y) * width + x] = blurred(in + item, height, width, y, x);
}

// The largest of the `columns` elements of each item.
extern "C" __global__ void peak(const float *in, float *peaks, u32 columns) {
    const float *row = in + size_t(blockIdx.y) * columns;
    __shared__ float warps[32];
    float most = row[0];
    for (u32 i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, row[i]);
    for (u32 lane = 16; lane; lane /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lane));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x) return;
    for (u32 warp = 1; warp < blockDim.x / 32; ++warp) most = fmaxf(most, warps[warp]);
    peaks[blockIdx.y] = most;
}

// Adds the peak of each item to its elements, N at a time as in `pass`.
template <typename V, u32 N>
__device__ void add_peak(const float *in, const float *peaks, float *out, u32 columns) {
    const V *row = reinterpret_cast<const V *>(in + size_t(blockIdx.y) * columns);
    const float most = peaks[blockIdx.y];
    for (u32 i = threadIdx.x; i < columns / N; i += blockDim.x) {
        V loaded = row[i];
        float *one = reinterpret_cast<float *>(&loaded);
        for (u32 k = 0; k < N; ++k) one[k] += most;
        reinterpret_cast<V *>(out + size_t(blockIdx.y) * columns)[i] = loaded;
    }
}

extern "C" __global__ void add_peak_1(const float *in, const float *peaks, float *out, u32 columns) {
    add_peak<float, 1>(in, peaks, out, columns);
}
extern "C" __global__ void add_peak_2(const float *in, const float *peaks, float *out, u32 columns) {
    add_peak<float2, 2>(in, peaks, out, columns);
}
extern "C" __global__ void add_peak_4(const float *in, const float *peaks, float *out, u32 columns) {
    add_peak<float4, 4>(in, peaks, out, columns);
}

// Counts the elements of each item that are not `expected`.
extern "C" __global__ void count_unequal(const float *x, u32 columns, float expected, u32 *count) {
    const float *row = x + size_t(blockIdx.y) * columns;
    u32 unequal = 0;
    for (u32 i = threadIdx.x; i < columns; i += blockDim.x) unequal += !(row[i] == expected);
    if (unequal) atomicAdd(count, unequal);
}

// Counts the elements of each item of `out` that are not where `transpose` puts those of `in`.
extern "C" __global__ void count_misplaced(const float *in, const float *out, u32 height, u32 width,
                                           u32 *count) {
    const size_t item = size_t(blockIdx.y) * height * width;
    u32 misplaced = 0;
    for (u32 i = threadIdx.x; i < height * width; i += blockDim.x) {
        const u32 y = i / width, x = i % width;
        misplaced += !(out[item + size_t(x) * height + y] == in[item + i]);
    }
    if (misplaced) atomicAdd(count, misplaced);
}

// Counts the elements of each item of `out` that are not what `blur` makes of `in`.
extern "C" __global__ void count_unblurred(const float *in, const float *out, u32 height, u32 width,
                                           u32 *count) {
    const size_t item = size_t(blockIdx.y) * height * width;
    u32 unequal = 0;
    for (u32 i = threadIdx.x; i < height * width; i += blockDim.x)
        unequal += !(out[item + i] == blurred(in + item, height, width, i / width, i % width));
    if (unequal) atomicAdd(count, unequal);
}

// Counts the elements of each item of `out` that are not those of `in` and their peak.
extern "C" __global__ void count_without_peak(const float *in, const float *out, u32 columns, u32 *count) {
    const size_t item = size_t(blockIdx.y) * columns;
    float most = in[item];
    for (u32 i = 0; i < columns; ++i) most = fmaxf(most, in[item + i]);
    u32 unequal = 0;
    for (u32 i = threadIdx.x; i < columns; i += blockDim.x) unequal += !(out[item + i] == in[item + i] + most);
    if (unequal) atomicAdd(count, unequal);
}
