// Temporal attention, forward: softmax(scale * q k^T) v over the frames of each (item, head).
//
// Contract
//   layout      q, k, v, out are [items, heads, frames, head_dim], contiguous; out overlaps none
//   grid        one block for each (item, head), numbered item * heads + head, along y in
//               temporal_attention_*_y and along x in temporal_attention_*_x
//   block       128 threads on x
//   shared      dynamic, 32 rows of queries, values and keys as f32, see `padded` and `key_stride`
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
// Blocks of a multiprocessor to leave registers for: 128 a thread, and none spill.
constexpr u32 RESIDENT = 4;
// Keys of a tile, one for each lane of a warp.
constexpr u32 TILE = 32;
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

// A row in shared memory, zero-filled to whole float4.
__device__ inline u32 padded(u32 head_dim) { return (head_dim + 3) / 4 * 4; }

// An odd number of float4, so that the lanes, each on its own key, meet different banks.
__device__ inline u32 key_stride(u32 head_dim) { return (padded(head_dim) / 4 | 1) * 4; }

// Copies `rows` rows of `head_dim` elements to shared memory as f32, `stride` apart.
template <typename T>
__device__ inline void stage(float *__restrict__ to, const T *__restrict__ from, u32 rows, u32 head_dim,
                             u32 stride) {
    for (u32 row = threadIdx.x / WARP; row < rows; row += WARPS) {
        for (u32 d = threadIdx.x % WARP; d < padded(head_dim); d += WARP) {
            to[row * stride + d] = d < head_dim ? T::widen(from[row * head_dim + d]) : 0.f;
        }
    }
}

__device__ inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// Each warp carries ROWS query rows at once, so that a key read from shared memory serves them all;
// each lane carries PARTS elements of each row, head_dim / 32 rounded up.
template <typename T, u32 PARTS, u32 ROWS>
__device__ inline void attend_rows(u64 problem, const T *__restrict__ q, const T *__restrict__ k,
                                   const T *__restrict__ v, T *__restrict__ out, float scale,
                                   u32 frames, u32 head_dim) {
    constexpr u32 PASS = ROWS * WARPS;
    extern __shared__ float4 shared[];
    const u32 row_size = padded(head_dim), stride = key_stride(head_dim);
    float *queries = reinterpret_cast<float *>(shared);
    float *values = queries + TILE * row_size;
    float *keys = values + TILE * row_size;

    const u64 base = problem * u64(frames) * head_dim;
    const u32 warp = threadIdx.x / WARP;
    const u32 lane = threadIdx.x % WARP;

    for (u32 first_row = 0; first_row < frames; first_row += PASS) {
        const u32 rows = min(PASS, frames - first_row);
        float most[ROWS], total[ROWS], sums[ROWS][PARTS];
        u32 query[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            most[r] = LOWEST;
            total[r] = 0.f;
            // A row past the end computes the last one again and is not written.
            const u32 row = min(warp + r * WARPS, rows - 1);
            query[r] = row * row_size / 4;
#pragma unroll
            for (u32 part = 0; part < PARTS; ++part) sums[r][part] = 0.f;
        }
        for (u32 first_key = 0; first_key < frames; first_key += TILE) {
            const u32 here = min(TILE, frames - first_key);
            __syncthreads();
            if (first_key == 0) {
                stage(queries, q + base + u64(first_row) * head_dim, rows, head_dim, row_size);
            }
            stage(keys, k + base + u64(first_key) * head_dim, here, head_dim, stride);
            stage(values, v + base + u64(first_key) * head_dim, here, head_dim, row_size);
            __syncthreads();

            float weight[ROWS];
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) weight[r] = 0.f;
            const float4 *key = reinterpret_cast<const float4 *>(keys + min(lane, here - 1) * stride);
#pragma unroll 2
            for (u32 i = 0; i < row_size / 4; ++i) {
                const float4 part = key[i];
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) weight[r] += dot(shared[query[r] + i], part);
            }
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                const float score = lane < here ? weight[r] * scale : LOWEST;
                const float highest = fmaxf(most[r], warp_max(score));
                const float shrink = expf(most[r] - highest);
                weight[r] = lane < here ? expf(score - highest) : 0.f;
                most[r] = highest;
                total[r] = total[r] * shrink + warp_sum(weight[r]);
#pragma unroll
                for (u32 part = 0; part < PARTS; ++part) sums[r][part] *= shrink;
            }
#pragma unroll 2
            for (u32 i = 0; i < here; ++i) {
                float value[PARTS];
#pragma unroll
                for (u32 part = 0; part < PARTS; ++part) {
                    value[part] = values[i * row_size + min(lane + part * WARP, row_size - 1)];
                }
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
                    const float share = __shfl_sync(ALL_LANES, weight[r], i);
#pragma unroll
                    for (u32 part = 0; part < PARTS; ++part) sums[r][part] += share * value[part];
                }
            }
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            const u32 row = warp + r * WARPS;
            const float norm = 1.f / total[r];
#pragma unroll
            for (u32 part = 0; part < PARTS; ++part) {
                const u32 d = lane + part * WARP;
                if (row < rows && d < head_dim) {
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
    if (head_dim > 2 * WARP) {
        attend_rows<T, 4, 4>(problem, q, k, v, out, scale, frames, head_dim);
    } else if (frames > 16) {
        attend_rows<T, 2, 8>(problem, q, k, v, out, scale, frames, head_dim);
    } else {
        attend_rows<T, 2, 4>(problem, q, k, v, out, scale, frames, head_dim);
    }
}

#define ARGUMENTS(T)                                                                                  \
    const T *__restrict__ q, const T *__restrict__ k, const T *__restrict__ v, T *__restrict__ out,   \
        float scale, u32 frames, u32 head_dim

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) temporal_attention_f16_y(ARGUMENTS(F16)) {
    attend(blockIdx.y, q, k, v, out, scale, frames, head_dim);
}
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) temporal_attention_f16_x(ARGUMENTS(F16)) {
    attend(blockIdx.x, q, k, v, out, scale, frames, head_dim);
}
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) temporal_attention_bf16_y(ARGUMENTS(Bf16)) {
    attend(blockIdx.y, q, k, v, out, scale, frames, head_dim);
}
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) temporal_attention_bf16_x(ARGUMENTS(Bf16)) {
    attend(blockIdx.x, q, k, v, out, scale, frames, head_dim);
}
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) temporal_attention_f32_y(ARGUMENTS(F32)) {
    attend(blockIdx.y, q, k, v, out, scale, frames, head_dim);
}
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) temporal_attention_f32_x(ARGUMENTS(F32)) {
    attend(blockIdx.x, q, k, v, out, scale, frames, head_dim);
}
