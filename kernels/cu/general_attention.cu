// Attention of any shape.
//
// Contract (attention.cu has the common part)
//   macros      ELEMENT is any type.
//   grid        one block for each problem.
//   block       128 threads on x.
//   shared      dynamic: 32 rows of queries, values and keys in f32, padded by `padded` and `key_stride`.
//   arguments   after the scale: frames, keys, head_dim (u32).
//   alignment   one element.
//   arithmetic  f32.
//   needs       sm_75.

constexpr u32 WARPS = 4;
constexpr u32 THREADS = WARPS * WARP;
// Resident blocks of a multiprocessor: the most without a spilled register.
constexpr u32 RESIDENT = STRIDED || __CUDA_ARCH__ >= 1000 ? 3 : 4;
// Keys of a tile, one in each lane of a warp.
constexpr u32 TILE = 32;

// Elements of a row in shared memory, filled with zeros to whole float4.
__device__ inline u32 padded(u32 head_dim) { return (head_dim + 3) / 4 * 4; }

// An odd number of float4, so that lanes with different keys use different banks.
__device__ inline u32 key_stride(u32 head_dim) { return (padded(head_dim) / 4 | 1) * 4; }

// Copies rows to shared memory as f32, at a pitch of `stride` elements.
__device__ inline void copy_rows(float *__restrict__ to, const Element *__restrict__ from, u64 from_stride, u32 rows,
                             u32 head_dim, u32 stride) {
    for (u32 row = threadIdx.x / WARP; row < rows; row += WARPS) {
        for (u32 d = threadIdx.x % WARP; d < padded(head_dim); d += WARP) {
            to[row * stride + d] = d < head_dim ? widen(from[row * from_stride + d]) : 0.f;
        }
    }
}

__device__ inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// Each warp computes ROWS query rows at once, so a key that it loads serves all of them. Each lane has PARTS
// elements of a row of out, every 32nd from `first_column` on.
template <u32 PARTS, u32 ROWS>
__device__ inline void compute_rows(const Problem &problem, float scale, u32 frames, u32 all_keys, u32 head_dim,
                                    u32 first_column = 0) {
    constexpr u32 PASS = ROWS * WARPS;
    extern __shared__ float4 shared[];
    const u32 row_size = padded(head_dim), stride = key_stride(head_dim);
    float *queries = reinterpret_cast<float *>(shared);
    float *values = queries + TILE * row_size;
    float *keys = values + TILE * row_size;

    const u32 warp = threadIdx.x / WARP;
    const u32 lane = threadIdx.x % WARP;

    for (u32 first_row = 0; first_row < frames; first_row += PASS) {
        const u32 rows = min(PASS, frames - first_row);
        float row_max[ROWS], row_sum[ROWS], sums[ROWS][PARTS];
        u32 query[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            row_max[r] = LOWEST;
            row_sum[r] = 0.f;
            // Rows past the last frame compute it again and are not stored.
            const u32 row = min(warp + r * WARPS, rows - 1);
            query[r] = row * row_size / 4;
#pragma unroll
            for (u32 part = 0; part < PARTS; ++part) sums[r][part] = 0.f;
        }
        for (u32 first_key = 0; first_key < all_keys; first_key += TILE) {
            const u32 here = min(TILE, all_keys - first_key);
            __syncthreads();
            if (first_key == 0) {
                copy_rows(queries, problem.q + first_row * problem.q_stride, problem.q_stride, rows, head_dim, row_size);
            }
            copy_rows(keys, problem.k + first_key * problem.k_stride, problem.k_stride, here, head_dim, stride);
            copy_rows(values, problem.v + first_key * problem.v_stride, problem.v_stride, here, head_dim, row_size);
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
                const u32 frame = first_row + min(warp + r * WARPS, rows - 1);
                const float score = masked_score(weight[r], frame, first_key + lane, frames, all_keys, scale, problem);
                const float new_max = fmaxf(row_max[r], warp_max(score)), shift = score_shift(new_max, scale);
                const float rescale = ex2_approx(score_shift(row_max[r], scale) - shift);
                weight[r] = ex2_approx(score * score_factor(scale) - shift);
                row_max[r] = new_max;
                row_sum[r] = row_sum[r] * rescale + warp_sum(weight[r]);
#pragma unroll
                for (u32 part = 0; part < PARTS; ++part) sums[r][part] *= rescale;
            }
#pragma unroll 2
            for (u32 i = 0; i < here; ++i) {
                float value[PARTS];
#pragma unroll
                for (u32 part = 0; part < PARTS; ++part) {
                    value[part] = values[i * row_size + min(first_column + lane + part * WARP, row_size - 1)];
                }
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) {
                    const float lane_weight = __shfl_sync(ALL_LANES, weight[r], i);
#pragma unroll
                    for (u32 part = 0; part < PARTS; ++part) sums[r][part] += lane_weight * value[part];
                }
            }
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            const u32 row = warp + r * WARPS;
            const float norm = reciprocal_of_sum(row_sum[r]);
#pragma unroll
            for (u32 part = 0; part < PARTS; ++part) {
                const u32 d = first_column + lane + part * WARP;
                if (row < rows && d < head_dim) {
                    problem.out[(first_row + row) * problem.out_stride + d] = narrow(sums[r][part] * norm);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    general_attention(ATTENTION_PARAMETERS, u32 frames, u32 all_keys, u32 head_dim) {
    const Overlap overlap;
    const u64 number = linear_block_index();
    if (number >= items * heads) return;
    const Problem problem = PROBLEM(number, frames, all_keys, head_dim);
    scale *= LOG2_E;
    if (head_dim > 4 * WARP) {
        // Rows that do not fit into registers are computed in blocks of columns.
        for (u32 first_column = 0; first_column < head_dim; first_column += 5 * WARP) {
            compute_rows<5, 2>(problem, scale, frames, all_keys, head_dim, first_column);
        }
    } else if (head_dim > 2 * WARP) {
        compute_rows<4, 4>(problem, scale, frames, all_keys, head_dim);
    } else if (frames > 16) {
        compute_rows<2, 8>(problem, scale, frames, all_keys, head_dim);
    } else {
        compute_rows<2, 4>(problem, scale, frames, all_keys, head_dim);
    }
}
