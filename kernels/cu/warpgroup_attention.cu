// Attention with Hopper's warpgroup instructions, compiled for the shape.
//
// Contract (attention.cu has the common part)
//   macros      ELEMENT is F16 or BF16. FRAMES and KEYS are 1 to 256, HEAD_DIM is a multiple of 8 up to 128.
//               WARPS (4 or 8) warps share a problem. A block has ROUNDS problems, one after another. STAGES is 1,
//               or 2 to load the next problem while this one is computed.
//   block       32 * WARPS threads on x.
//   shared      dynamic: q, k and v of STAGES problems, with rows rounded up to 16 and vectors to whole panels.
//   arithmetic  wgmma with f32 accumulation.
//   needs       sm_90a.
//
// A warpgroup multiplies a tile of 64 queries with all keys at once. Queries and weights are in registers, keys
// and values in swizzled shared memory. A warp stages its rows of out in the shared memory of its queries.

constexpr u32 THREADS = WARP * WARPS;
constexpr u32 GROUPS = WARPS / 4;
// Tiles of 64 queries, 16 of each warp.
constexpr u32 ROW_TILES = divide_up(FRAMES, 64);
constexpr u32 TILES = divide_up(ROW_TILES, GROUPS);
constexpr u32 KEY_TILES = KEYS > 128 ? divide_up(KEYS, 16) * 2 : divide_up(KEYS, 8);
constexpr u32 KEY_STEPS = divide_up(KEYS, 16);

// Vectors of 16 bytes. Shared memory has panels of eight rows, as wide as the widest swizzle that divides a row.
// The swizzle permutes the vectors of a row by the row's number, so that eight rows of a column use different
// banks.
constexpr u32 VECTORS = HEAD_DIM / 8;
constexpr u32 VECTOR_BYTES = 16;
constexpr u32 PANEL = VECTORS % 8 == 0 ? 8 : VECTORS % 4 == 0 ? 4 : 2;
constexpr u32 SWIZZLE = PANEL == 8 ? 1 : PANEL == 4 ? 2 : 3;
constexpr u32 PANELS = divide_up(VECTORS, PANEL);
constexpr u32 PANEL_BYTES = 8 * PANEL * VECTOR_BYTES;
constexpr u32 EIGHT_ROWS_BYTES = PANELS * PANEL_BYTES;
constexpr u32 QUERY_BYTES = 2 * divide_up(FRAMES, 16) * EIGHT_ROWS_BYTES;
constexpr u32 KEY_BYTES = 2 * KEY_STEPS * EIGHT_ROWS_BYTES;
constexpr u32 STAGE_BYTES = QUERY_BYTES + 2 * KEY_BYTES;

// The byte offset of a vector in the panels of a tensor.
__device__ inline u32 swizzled_offset(u32 row, u32 vector) {
    const u32 permutation = row % 8 / (8 / PANEL);
    return row / 8 * EIGHT_ROWS_BYTES + vector / PANEL * PANEL_BYTES + row % 8 * (PANEL * VECTOR_BYTES) +
           (vector % PANEL ^ permutation) * VECTOR_BYTES;
}

// Starts copies of the ROWS rows of a tensor of a problem.
template <u32 ROWS>
__device__ inline void load_tensor(u32 to, const Element *__restrict__ from, u64 stride) {
    constexpr u32 COUNT = ROWS * VECTORS;
#pragma unroll
    for (u32 first = 0; first < COUNT; first += THREADS) {
        const u32 index = first + threadIdx.x, row = index / VECTORS, vector = index % VECTORS;
        if (first + THREADS <= COUNT || index < COUNT) {
            cp_async_16(to + swizzled_offset(row, vector), STRIDED ? from + row * stride + vector * 8 : from + index * 8);
        }
    }
}

// wgmma multiplies the padding rows of the values and the padding vectors of the keys with zeros. The padding
// must not hold NaN.
__device__ inline void fill_padding(u32 stage) {
    const uint4 zeros{0, 0, 0, 0};
    if constexpr (KEYS % 16 > 0) {
        for (u32 i = threadIdx.x; i < (KEY_STEPS * 16 - KEYS) * VECTORS; i += THREADS) {
            st_shared_v4(stage + QUERY_BYTES + KEY_BYTES + swizzled_offset(KEYS + i / VECTORS, i % VECTORS), zeros);
        }
    }
    if constexpr (VECTORS % 2 > 0) {
        for (u32 row = threadIdx.x; row < KEY_TILES * 8; row += THREADS) {
            st_shared_v4(stage + QUERY_BYTES + swizzled_offset(row, VECTORS), zeros);
        }
    }
}

// Starts the copies of a problem in two groups: keys and queries, then values.
__device__ inline void load_problem(const Problem &problem, u32 stage) {
    load_tensor<FRAMES>(stage, problem.q, problem.q_stride);
    load_tensor<KEYS>(stage + QUERY_BYTES, problem.k, problem.k_stride);
    cp_async_commit_group();
    load_tensor<KEYS>(stage + QUERY_BYTES + KEY_BYTES, problem.v, problem.v_stride);
    cp_async_commit_group();
}

template <bool LAST>
__device__ inline void compute_problem(const Problem &problem, u32 stage, float scale) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / 4, quad = lane % 4;
    const u32 queries = stage, keys = stage + QUERY_BYTES, values = keys + KEY_BYTES;

    if (LAST) {
        cp_async_wait_group<1>();
    } else {
        cp_async_wait_group<3>();
    }
    fence_proxy_async();
    __syncthreads();

#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
        const u32 first_row = (warp / 4 + m * GROUPS) * 64 + warp % 4 * 16;
        // Warps past the last row still take part in the wgmma.
        u32 query[(VECTORS + 1) / 2][4] = {};
        if (first_row < FRAMES) {
            const u32 row = min(first_row + lane % 16, FRAMES - 1);
#pragma unroll
            for (u32 i = 0; i + 1 < VECTORS; i += 2) ldmatrix_x4(query[i / 2], queries + swizzled_offset(row, i + lane / 16));
            if (VECTORS % 2) ldmatrix_x2(query[VECTORS / 2][0], query[VECTORS / 2][1], queries + swizzled_offset(row, VECTORS - 1));
        }

        float scores[KEY_TILES][4];
        wgmma_fence();
#pragma unroll
        for (u32 i = 0; i < VECTORS; i += 2) {
            const u64 key = matrix_descriptor(keys + i / PANEL * PANEL_BYTES + i % PANEL * VECTOR_BYTES, VECTOR_BYTES,
                                              EIGHT_ROWS_BYTES, SWIZZLE);
            wgmma<0>(scores, query[i / 2], key, i > 0);
        }
        wgmma_commit_wait();

        float norm[2] = {0.f, 0.f};
        u32 weights[KEY_STEPS][4];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = first_row + half * 8 + group;
            float new_max = LOWEST, sum = 0.f;
            if (first_row < FRAMES) {
#pragma unroll
                for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        float &score = scores[n][2 * half + i];
                        score = masked_score(score, row, n * 8 + 2 * quad + i, FRAMES, KEYS, scale, problem);
                        new_max = fmaxf(new_max, score);
                    }
                }
                new_max = group_max<4>(new_max);
                const float shift = score_shift(new_max, scale);
#pragma unroll
                for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        float &score = scores[n][2 * half + i];
                        score = ex2_approx(score * score_factor(scale) - shift);
                        sum += score;
                    }
                }
                sum = group_sum<4>(sum);
            }
            norm[half] = reciprocal_of_sum(sum);
        }
#pragma unroll
        for (u32 s = 0; s < KEY_STEPS; ++s) {
            weights[s][0] = cvt_rn_x2(scores[2 * s][0], scores[2 * s][1]);
            weights[s][1] = cvt_rn_x2(scores[2 * s][2], scores[2 * s][3]);
            const bool whole = 2 * s + 1 < KEY_TILES;
            const float(&odd)[4] = scores[whole ? 2 * s + 1 : 0];
            weights[s][2] = whole ? cvt_rn_x2(odd[0], odd[1]) : 0, weights[s][3] = whole ? cvt_rn_x2(odd[2], odd[3]) : 0;
        }

        if (m == 0) {
            if (LAST) {
                cp_async_wait_group<0>();
            } else {
                cp_async_wait_group<2>();
            }
            fence_proxy_async();
            __syncthreads();
        }
        float sums[VECTORS][4];
        wgmma_fence();
#pragma unroll
        for (u32 s = 0; s < KEY_STEPS; ++s) {
            const u64 value = matrix_descriptor(values + 2 * s * EIGHT_ROWS_BYTES, PANEL_BYTES, EIGHT_ROWS_BYTES, SWIZZLE);
            wgmma<1>(sums, weights[s], value, s > 0);
        }
        wgmma_commit_wait();

        // Stage out in the shared memory of the warp's own queries, which are no longer needed.
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = first_row + half * 8 + group;
            if (row < FRAMES) {
#pragma unroll
                for (u32 j = 0; j < VECTORS; ++j) {
                    const u32 word = cvt_rn_x2(sums[j][2 * half] * norm[half], sums[j][2 * half + 1] * norm[half]);
                    st_shared_u32(queries + swizzled_offset(row, j) + quad * 4, word);
                }
            }
        }
        __syncwarp();
        constexpr u32 OUT = 16 * VECTORS;
#pragma unroll
        for (u32 first = 0; first < OUT; first += WARP) {
            const u32 index = first + lane, row = first_row + index / VECTORS, vector = index % VECTORS;
            if ((first + WARP <= OUT || index < OUT) && row < FRAMES) {
                const uint4 x = ld_shared_v4(queries + swizzled_offset(row, vector));
                __stcs(reinterpret_cast<uint4 *>(problem.out + row * problem.out_stride + vector * 8), x);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) warpgroup_attention(ATTENTION_PARAMETERS) {
    const Overlap overlap;
    extern __shared__ __align__(1024) uint4 shared[];
    const u32 base = u32(__cvta_generic_to_shared(shared));
    const u64 first = linear_block_index() * ROUNDS, problems = items * heads;
    scale *= LOG2_E;

    if (first >= problems) return;
    Problem problem = PROBLEM(first, FRAMES, KEYS, HEAD_DIM);
    load_problem(problem, base);
    for (u32 stage = 0; stage < STAGES; ++stage) fill_padding(base + stage * STAGE_BYTES);
    if constexpr (ROUNDS == 1) {
        compute_problem<true>(problem, base, scale);
    } else {
        for (u32 round = 0; round < ROUNDS; ++round) {
            const u64 next = first + round + 1;
            const bool more = round + 1 < ROUNDS && next < problems;
            const Problem next_problem = PROBLEM(more ? next : first, FRAMES, KEYS, HEAD_DIM);
            const u32 stage = base + (STAGES == 2 ? round % 2 * STAGE_BYTES : 0);
            if (STAGES == 2 && more) {
                load_problem(next_problem, base + (round + 1) % 2 * STAGE_BYTES);
                compute_problem<false>(problem, stage, scale);
            } else {
                compute_problem<true>(problem, stage, scale);
            }
            if (!more) return;
            // No thread reads this round's stage any more.
            __syncthreads();
            problem = next_problem;
            if (STAGES == 1) load_problem(problem, base);
        }
    }
}
