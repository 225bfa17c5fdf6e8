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
