// Temporal attention, forward: softmax(scale * q k^T) v over the frames of each (item, head).
//
// Contract
//   layout      q, k, v, out are [items, heads, frames, head_dim], contiguous; out overlaps none
//   grid        one block for each (item, head), numbered item * heads + head, along y in
//               temporal_attention_*_y and along x in temporal_attention_*_x
//   block       128 threads on x
//   shared      dynamic, (32 * (2 * head_dim + (head_dim | 1))) * 4 bytes
//   arguments   q, k, v, out (addresses of the chunk's first item), scale (f32),
//               frames (u32), head_dim (u32, at most 128)
//   alignment   that of the element
//   arithmetic  f32, softmax in one pass over key tiles with a running maximum; 64-bit offsets
//
// A general kernel: any number of frames, any head_dim up to 128, on every architecture.

typedef unsigned short half_bits;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 WARP = 32;
constexpr u32 WARPS = 4;
constexpr u32 THREADS = WARPS * WARP;
// Keys of a tile, one for each lane of a warp.
constexpr u32 TILE = 32;
// Query rows that a warp carries at once, so that a pass covers as many rows as a tile has keys.
constexpr u32 ROWS = TILE / WARPS;
constexpr u32 ALL_LANES = 0xffffffffu;
// Finite, so that the difference of two of them is no NaN.
constexpr float LOWEST = -3.402823466e+38f;

struct F16 {
    half_bits bits;
    static __device__ float widen(F16 x) {
        float y;
        asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
        return y;
    }
    static __device__ F16 narrow(float x) {
        F16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
};

struct Bf16 {
    half_bits bits;
    static __device__ float widen(Bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
    // Rounds to nearest even in integers: the instruction is missing below sm_80.
    static __device__ Bf16 narrow(float x) {
        u32 bits = __float_as_uint(x);
        bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        u32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
        return Bf16{half_bits(nan ? 0x7fffu : rounded >> 16)};
    }
};

struct F32 {
    float value;
    static __device__ float widen(F32 x) { return x.value; }
    static __device__ F32 narrow(float x) { return F32{x}; }
};

__device__ inline float warp_max(float x) {
    for (u32 lane = WARP / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, lane));
    return x;
}

__device__ inline float warp_sum(float x) {
    for (u32 lane = WARP / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(ALL_LANES, x, lane);
    return x;
}

// Copies `rows` rows of `head_dim` elements to shared memory as f32, `stride` apart.
template <typename T>
__device__ inline void stage(float *__restrict__ to, const T *__restrict__ from, u32 rows, u32 head_dim,
                             u32 stride) {
    for (u32 row = threadIdx.x / WARP; row < rows; row += WARPS) {
        for (u32 d = threadIdx.x % WARP; d < head_dim; d += WARP) {
            to[row * stride + d] = T::widen(from[row * head_dim + d]);
        }
    }
}

// PARTS is how many elements of a row a lane carries: head_dim / 32, rounded up.
template <typename T, u32 PARTS>
__device__ inline void attend_rows(u64 problem, const T *__restrict__ q, const T *__restrict__ k,
                              const T *__restrict__ v, T *__restrict__ out, float scale, u32 frames,
                              u32 head_dim) {
    extern __shared__ float shared[];
    // An odd stride keeps the lanes, each on its own key, on different banks.
    const u32 key_stride = head_dim | 1;
    float *queries = shared;
    float *values = queries + TILE * head_dim;
    float *keys = values + TILE * head_dim;

    const u64 base = problem * u64(frames) * head_dim;
    const u32 warp = threadIdx.x / WARP;
    const u32 lane = threadIdx.x % WARP;

    for (u32 first_row = 0; first_row < frames; first_row += TILE) {
        const u32 rows = min(TILE, frames - first_row);
        float most[ROWS], total[ROWS], sums[ROWS][PARTS];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            most[r] = LOWEST;
            total[r] = 0.f;
#pragma unroll
            for (u32 part = 0; part < PARTS; ++part) sums[r][part] = 0.f;
        }
        for (u32 first_key = 0; first_key < frames; first_key += TILE) {
            const u32 here = min(TILE, frames - first_key);
            __syncthreads();
            if (first_key == 0) {
                stage(queries, q + base + u64(first_row) * head_dim, rows, head_dim, head_dim);
            }
            stage(keys, k + base + u64(first_key) * head_dim, here, head_dim, key_stride);
            stage(values, v + base + u64(first_key) * head_dim, here, head_dim, head_dim);
            __syncthreads();
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                const u32 row = warp + r * WARPS;
                if (row >= rows) break;
                float score = LOWEST;
                if (lane < here) {
                    float dot = 0.f;
                    for (u32 d = 0; d < head_dim; ++d) {
                        dot += queries[row * head_dim + d] * keys[lane * key_stride + d];
                    }
                    score = dot * scale;
                }
                const float highest = fmaxf(most[r], warp_max(score));
                const float weight = lane < here ? expf(score - highest) : 0.f;
                const float shrink = expf(most[r] - highest);
                most[r] = highest;
                total[r] = total[r] * shrink + warp_sum(weight);
#pragma unroll
                for (u32 part = 0; part < PARTS; ++part) sums[r][part] *= shrink;
                for (u32 key = 0; key < here; ++key) {
                    const float share = __shfl_sync(ALL_LANES, weight, key);
#pragma unroll
                    for (u32 part = 0; part < PARTS; ++part) {
                        const u32 d = lane + part * WARP;
                        if (d < head_dim) sums[r][part] += share * values[key * head_dim + d];
                    }
                }
            }
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            const u32 row = warp + r * WARPS;
            if (row >= rows) break;
            const float norm = 1.f / total[r];
#pragma unroll
            for (u32 part = 0; part < PARTS; ++part) {
                const u32 d = lane + part * WARP;
                if (d < head_dim) {
                    out[base + u64(first_row + row) * head_dim + d] = T::narrow(sums[r][part] * norm);
                }
            }
        }
    }
}

template <typename T>
__device__ inline void attend(u64 problem, const T *__restrict__ q, const T *__restrict__ k,
                              const T *__restrict__ v, T *__restrict__ out, float scale, u32 frames,
                              u32 head_dim) {
    if (head_dim <= 2 * WARP) {
        attend_rows<T, 2>(problem, q, k, v, out, scale, frames, head_dim);
    } else {
        attend_rows<T, 4>(problem, q, k, v, out, scale, frames, head_dim);
    }
}

#define ARGUMENTS(T)                                                                                  \
    const T *__restrict__ q, const T *__restrict__ k, const T *__restrict__ v, T *__restrict__ out,   \
        float scale, u32 frames, u32 head_dim

extern "C" __global__ void __launch_bounds__(THREADS) temporal_attention_f16_y(ARGUMENTS(F16)) {
    attend(blockIdx.y, q, k, v, out, scale, frames, head_dim);
}
extern "C" __global__ void __launch_bounds__(THREADS) temporal_attention_f16_x(ARGUMENTS(F16)) {
    attend(blockIdx.x, q, k, v, out, scale, frames, head_dim);
}
extern "C" __global__ void __launch_bounds__(THREADS) temporal_attention_bf16_y(ARGUMENTS(Bf16)) {
    attend(blockIdx.y, q, k, v, out, scale, frames, head_dim);
}
extern "C" __global__ void __launch_bounds__(THREADS) temporal_attention_bf16_x(ARGUMENTS(Bf16)) {
    attend(blockIdx.x, q, k, v, out, scale, frames, head_dim);
}
extern "C" __global__ void __launch_bounds__(THREADS) temporal_attention_f32_y(ARGUMENTS(F32)) {
    attend(blockIdx.y, q, k, v, out, scale, frames, head_dim);
}
extern "C" __global__ void __launch_bounds__(THREADS) temporal_attention_f32_x(ARGUMENTS(F32)) {
    attend(blockIdx.x, q, k, v, out, scale, frames, head_dim);
}
