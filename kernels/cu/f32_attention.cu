// Attention in f32 without tensor cores (no tf32), compiled for the shape.
//
// Contract (attention.cu has the common part)
//   macros      ELEMENT is F32. FRAMES and KEYS are 1 to 128, HEAD_DIM is a multiple of 4 up to 160. WARPS warps
//               share a problem, and PROBLEMS problems are side by side in a block.
//   block       32 * WARPS * PROBLEMS threads on x.
//   shared      dynamic: for each problem k, v, and for each of its warps the weights of a tile.
//   arithmetic  f32.
//   needs       sm_75.
//
// A warp computes tiles of 16 queries, four in each lane, so one load of a key or value from shared memory serves
// four multiplications of each element. Eight lanes share a query, each with every eighth vector of the head. A
// reduce-scatter of their partial scores leaves two of 16 keys in each lane.

constexpr u32 ROW_TILES = divide_up(FRAMES, 16);
constexpr u32 TILES = divide_up(ROW_TILES, WARPS);
constexpr u32 BLOCK_KEYS = 16;
// Keys of a block in each lane after the reduce-scatter.
constexpr u32 OWN_KEYS = BLOCK_KEYS / 8;
constexpr u32 KEY_BLOCKS = divide_up(KEYS, BLOCK_KEYS);
// Lanes that share a query, queries of a lane, 16-byte vectors of a query in a lane.
constexpr u32 PARTS = 8;
constexpr u32 ROWS = 4;
constexpr u32 VECTORS = HEAD_DIM / 4;
constexpr u32 OWN = divide_up(VECTORS, PARTS);

constexpr u32 TENSOR = KEYS * VECTORS;
// The weights of a tile, in float4. An odd pitch puts four rows into different banks.
constexpr u32 WEIGHT_PITCH = BLOCK_KEYS / 4 + 1;
constexpr u32 WEIGHTS = 16 * WEIGHT_PITCH;
constexpr u32 PROBLEM_SIZE = 2 * TENSOR + WARPS * WEIGHTS;

__device__ inline void load_tensor(float4 *to, const float *__restrict__ from, u32 thread, u64 stride) {
#pragma unroll
    for (u32 first = 0; first < TENSOR; first += THREADS) {
        const u32 vector = first + thread;
        if (first + THREADS <= TENSOR || vector < TENSOR) {
            const float *at = from + (STRIDED ? vector / VECTORS * stride + vector % VECTORS * 4 : vector * 4);
            cp_async_16(u32(__cvta_generic_to_shared(to + vector)), at);
        }
    }
}

__device__ inline void add_dot(float &sum, float4 a, float4 b) {
    sum += a.x * b.x, sum += a.y * b.y, sum += a.z * b.z, sum += a.w * b.w;
}
__device__ inline void add_scaled(float4 &sum, float a, float4 b) {
    sum.x += a * b.x, sum.y += a * b.y, sum.z += a * b.z, sum.w += a * b.w;
}

// One step of the reduce-scatter: adds the 2 * LEFT scores of the lane `bit` away, and keeps the upper or lower half.
template <u32 LEFT>
__device__ inline void reduce_scatter(float (&scores)[ROWS][BLOCK_KEYS], u32 bit, bool upper) {
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
#pragma unroll
        for (u32 i = 0; i < LEFT; ++i) {
            const float low = scores[r][i], high = scores[r][i + LEFT];
            scores[r][i] = (upper ? high : low) + __shfl_xor_sync(ALL_LANES, upper ? low : high, bit);
        }
    }
}

// Turing would spill registers to keep more blocks resident.
extern "C" __global__ void __launch_bounds__(THREADS *PROBLEMS, __CUDA_ARCH__ < 800 ? 1 : 0) f32_attention(ATTENTION_PARAMETERS) {
    const Overlap overlap;
    extern __shared__ float4 shared[];
    const u32 slot = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
    const u32 warp = thread / WARP, lane = thread % WARP, part = lane % PARTS, group = lane / PARTS;
    float4 *const keys = shared + slot * PROBLEM_SIZE, *const values = keys + TENSOR;
    float4 *const weights = values + TENSOR + warp * WEIGHTS;

    const u64 number = linear_block_index() * PROBLEMS + slot;
    if (number >= items * heads) return;
    const Problem problem = PROBLEM(number, FRAMES, KEYS, HEAD_DIM);
    load_tensor(keys, problem.k, thread, problem.k_stride);
    cp_async_commit_group();
    load_tensor(values, problem.v, thread, problem.v_stride);
    cp_async_commit_group();
    scale *= LOG2_E;

#pragma unroll 1
    for (u32 m = 0; m < TILES; ++m) {
        const u32 first_row = (warp + m * WARPS) * 16 + group;
        float4 query[ROWS][OWN], sums[ROWS][OWN];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            // Rows past the last frame compute it again and are not stored.
            const float *row = problem.q + min(first_row + r * 4, FRAMES - 1) * problem.q_stride;
#pragma unroll
            for (u32 i = 0; i < OWN; ++i) {
                const u32 vector = i * PARTS + part;
                query[r][i] = sums[r][i] = float4{0.f, 0.f, 0.f, 0.f};
                if ((i + 1) * PARTS <= VECTORS || vector < VECTORS) {
                    query[r][i] = __ldcs(reinterpret_cast<const float4 *>(row + vector * 4));
                }
            }
        }
        float row_max[ROWS], row_sum[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) row_max[r] = LOWEST, row_sum[r] = 0.f;
        if (m == 0) {
            cp_async_wait_group<1>();
            sync_problem();
        }

#pragma unroll 1
        for (u32 block = 0; block < KEY_BLOCKS; ++block) {
            float scores[ROWS][BLOCK_KEYS];
#pragma unroll
            for (u32 n = 0; n < BLOCK_KEYS; ++n) {
                const u32 row = block * BLOCK_KEYS + n;
                const u32 key = KEYS % BLOCK_KEYS == 0 ? row : min(row, KEYS - 1);
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) scores[r][n] = 0.f;
                if (KEYS < BLOCK_KEYS && n >= KEYS) continue;
#pragma unroll
                for (u32 i = 0; i < OWN; ++i) {
                    // Past the head dimension query and key are zero.
                    const u32 vector = i * PARTS + part;
                    const bool inside = (i + 1) * PARTS <= VECTORS || vector < VECTORS;
                    const float4 x = inside ? keys[key * VECTORS + vector] : float4{0.f, 0.f, 0.f, 0.f};
#pragma unroll
                    for (u32 r = 0; r < ROWS; ++r) add_dot(scores[r][n], query[r][i], x);
                }
            }
            reduce_scatter<BLOCK_KEYS / 2>(scores, 4, part & 4);
            reduce_scatter<BLOCK_KEYS / 4>(scores, 2, part & 2);
            reduce_scatter<BLOCK_KEYS / 8>(scores, 1, part & 1);
            const u32 first_key = part * OWN_KEYS;
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                const u32 row = first_row + r * 4;
                float new_max = row_max[r];
#pragma unroll
                for (u32 i = 0; i < OWN_KEYS; ++i) {
                    float &score = scores[r][i];
                    const u32 key = block * BLOCK_KEYS + first_key + i;
                    score = masked_score(score, row, key, FRAMES, KEYS, scale, problem);
                    new_max = fmaxf(new_max, score);
                }
                new_max = group_max<8>(new_max);
                const float shift = score_shift(new_max, scale), factor = score_factor(scale);
                if (KEY_BLOCKS > 1) {
                    const float rescale = ex2_approx(score_shift(row_max[r], scale) - shift);
                    row_sum[r] *= rescale;
                    row_max[r] = new_max;
#pragma unroll
                    for (u32 i = 0; i < OWN; ++i) {
                        sums[r][i].x *= rescale, sums[r][i].y *= rescale, sums[r][i].z *= rescale, sums[r][i].w *= rescale;
                    }
                }
                float *to = reinterpret_cast<float *>(weights + (group + r * 4) * WEIGHT_PITCH) + first_key;
#pragma unroll
                for (u32 i = 0; i < OWN_KEYS; ++i) {
                    const float weight = ex2_approx(scores[r][i] * factor - shift);
                    row_sum[r] += weight;
                    to[i] = weight;
                }
            }
            __syncwarp();
            if (m == 0 && block == 0) {
                cp_async_wait_group<0>();
                sync_problem();
            }
#pragma unroll
            for (u32 n = 0; n < BLOCK_KEYS; n += 4) {
                if (KEYS < BLOCK_KEYS && n >= KEYS) continue;
                float4 weight[ROWS];
#pragma unroll
                for (u32 r = 0; r < ROWS; ++r) weight[r] = weights[(group + r * 4) * WEIGHT_PITCH + n / 4];
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    const u32 row = block * BLOCK_KEYS + n + j;
                    const u32 key = KEYS % BLOCK_KEYS == 0 ? row : min(row, KEYS - 1);
#pragma unroll
                    for (u32 i = 0; i < OWN; ++i) {
                        const u32 vector = i * PARTS + part;
                        const bool inside = (i + 1) * PARTS <= VECTORS || vector < VECTORS;
                        const float4 x = inside ? values[key * VECTORS + vector] : float4{0.f, 0.f, 0.f, 0.f};
#pragma unroll
                        for (u32 r = 0; r < ROWS; ++r) {
                            const float4 w = weight[r];
                            add_scaled(sums[r][i], j == 0 ? w.x : j == 1 ? w.y : j == 2 ? w.z : w.w, x);
                        }
                    }
                }
            }
            // The next block overwrites the weights.
            __syncwarp();
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            const float norm = reciprocal_of_sum(group_sum<8>(row_sum[r]));
            const u32 row = first_row + r * 4;
            if (row >= FRAMES) continue;
#pragma unroll
            for (u32 i = 0; i < OWN; ++i) {
                const u32 vector = i * PARTS + part;
                if ((i + 1) * PARTS <= VECTORS || vector < VECTORS) {
                    const float4 x = sums[r][i];
                    __stcs(reinterpret_cast<float4 *>(problem.out + row * problem.out_stride + vector * 4),
                           float4{x.x * norm, x.y * norm, x.z * norm, x.w * norm});
                }
            }
        }
    }
}
