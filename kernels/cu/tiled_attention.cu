// Attention on tensor cores through shared memory, compiled for the shape.
//
// Contract (attention.cu has the common part)
//   macros      ELEMENT is F16 or BF16. FRAMES and KEYS are 1 to 128, HEAD_DIM is a multiple of 8 up to 160.
//               WARPS warps share a problem. PROBLEMS problems are side by side in a block, and ROUNDS problems
//               follow each other in each of these slots. STAGES is 1, or 2 to load the next round's problem while
//               this one is computed.
//   block       32 * WARPS * PROBLEMS threads on x.
//   shared      dynamic: q, k and v of STAGES * PROBLEMS problems, with rows of an odd number of 16-byte vectors.
//   arithmetic  m16n8k16 (m16n8k8 on sm_75) with f32 accumulation.
//   needs       sm_75 for f16, sm_80 for bf16.
//
// q, k and v are copied to shared memory unchanged, in vectors of 16 bytes. Each warp multiplies tiles of 16
// queries with blocks of keys whose scores fit into registers. A warp stages its rows of out in the shared memory
// of its queries.

constexpr u32 ROW_TILES = divide_up(FRAMES, 16);
// Tiles of queries of a warp. A key or value that the warp loads serves all of them.
constexpr u32 TILES = divide_up(ROW_TILES, WARPS);
// Keys of a block, in tiles of 8, limited by the registers that the scores need.
constexpr u32 KEY_TILES = divide_up(KEYS, 8);
constexpr u32 BLOCK_TILES = TILES * HEAD_DIM <= 64 ? 16 : 4;
constexpr u32 KEY_BLOCK = KEY_TILES < BLOCK_TILES ? (KEY_TILES + 1) / 2 * 2 : BLOCK_TILES;
constexpr u32 KEY_BLOCKS = divide_up(KEY_TILES, KEY_BLOCK);

// Vectors of 16 bytes. An odd PITCH avoids bank conflicts.
constexpr u32 VECTORS = HEAD_DIM / 8;
constexpr u32 PITCH = VECTORS | 1;
constexpr u32 VECTOR_BYTES = 16;
constexpr u32 QUERY_BYTES = FRAMES * PITCH * VECTOR_BYTES;
constexpr u32 KEY_BYTES = KEYS * PITCH * VECTOR_BYTES;
constexpr u32 STAGE_BYTES = QUERY_BYTES + 2 * KEY_BYTES;

// With padded rows, a line of global memory covers parts of two lines of shared memory, and cp.async fetches some
// sectors twice. Small problems are copied through registers instead.
constexpr bool THROUGH_REGISTERS = PITCH != VECTORS && FRAMES <= 32 && KEYS <= 32;

// Starts copies of the ROWS rows of a tensor of a problem. `thread` is the index within the problem.
template <u32 ROWS>
__device__ inline void load_tensor(u32 to, const Element *__restrict__ from, u32 thread, u64 stride) {
    constexpr u32 COUNT = ROWS * VECTORS;
#pragma unroll
    for (u32 first = 0; first < COUNT; first += THREADS) {
        const u32 vector = first + thread, row = vector / VECTORS, column = vector % VECTORS;
        if (first + THREADS <= COUNT || vector < COUNT) {
            const u32 address = to + (row * PITCH + column) * VECTOR_BYTES;
            const Element *at = from + (STRIDED ? row * stride + column * 8 : vector * 8);
            if (THROUGH_REGISTERS) {
                st_shared_v4(address, __ldcs(reinterpret_cast<const uint4 *>(at)));
            } else {
                cp_async_16(address, at);
            }
        }
    }
}

// Starts the copies of a problem in two groups: keys and queries, then values.
__device__ inline void load_problem(const Problem &problem, u32 stage, u32 thread) {
    load_tensor<FRAMES>(stage, problem.q, thread, problem.q_stride);
    load_tensor<KEYS>(stage + QUERY_BYTES, problem.k, thread, problem.k_stride);
    cp_async_commit_group();
    load_tensor<KEYS>(stage + QUERY_BYTES + KEY_BYTES, problem.v, thread, problem.v_stride);
    cp_async_commit_group();
}

// The address of a vector of k or v. Rows past the last key are clamped to it.
__device__ inline u32 vector_at(u32 tensor, u32 first_row, u32 rows, u32 row, u32 column) {
    u32 key = first_row + row;
    if (first_row + rows > KEYS) key = key < KEYS ? key : KEYS - 1;
    return tensor + (key * PITCH + column) * VECTOR_BYTES;
}

template <bool LAST>
__device__ inline void compute_problem(const Problem &problem, u32 stage, u32 thread, float scale) {
    const u32 warp = thread / WARP, lane = thread % WARP, group = lane / 4, quad = lane % 4;
    const u32 queries = stage, keys = stage + QUERY_BYTES, values = keys + KEY_BYTES;

    // The copies of values, and of the next problem, stay in flight.
    if (LAST) {
        cp_async_wait_group<1>();
    } else {
        cp_async_wait_group<3>();
    }
    sync_problem();

    // The warp's tiles are `warp`, `warp + WARPS` and so on; the last ones may be past the end.
    u32 query[TILES][VECTORS / 2 + 1][4];
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
        const u32 first = (warp + m * WARPS) * 16;
        const u32 at = min(first + lane % 16, FRAMES - 1) * PITCH * VECTOR_BYTES + queries;
#pragma unroll
        for (u32 i = 0; i + 1 < VECTORS; i += 2) ldmatrix_x4(query[m][i / 2], at + (i + lane / 16) * VECTOR_BYTES);
        if (VECTORS % 2) ldmatrix_x2(query[m][VECTORS / 2][0], query[m][VECTORS / 2][1], at + (VECTORS - 1) * VECTOR_BYTES);
    }

    float row_max[TILES][2], row_sum[TILES][2], sums[TILES][VECTORS][4];
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) row_max[m][half] = LOWEST, row_sum[m][half] = 0.f;
#pragma unroll
        for (u32 j = 0; j < VECTORS; ++j) sums[m][j][0] = sums[m][j][1] = sums[m][j][2] = sums[m][j][3] = 0.f;
    }

#pragma unroll
    for (u32 block = 0; block < KEY_BLOCKS; ++block) {
        float scores[TILES][KEY_BLOCK][4];
#pragma unroll
        for (u32 n = 0; n < KEY_BLOCK; ++n) {
#pragma unroll
            for (u32 m = 0; m < TILES; ++m) scores[m][n][0] = scores[m][n][1] = scores[m][n][2] = scores[m][n][3] = 0.f;
            const u32 first = (block * KEY_BLOCK + n) * 8;
            if (first >= KEYS) continue;
#pragma unroll
            for (u32 i = 0; i < VECTORS; i += 4) {
                u32 key[4];
                if (i + 4 <= VECTORS) {
                    ldmatrix_x4(key, vector_at(keys, first, 8, lane % 8, i + lane / 8));
                } else if (i + 2 <= VECTORS) {
                    ldmatrix_x2(key[0], key[1], vector_at(keys, first, 8, lane % 8, i + lane / 8 % 2));
                    if (i + 3 <= VECTORS) ldmatrix_x1(key[2], vector_at(keys, first, 8, lane % 8, i + 2));
                } else {
                    ldmatrix_x1(key[0], vector_at(keys, first, 8, lane % 8, i));
                }
#pragma unroll
                for (u32 m = 0; m < TILES; ++m) {
#pragma unroll
                    for (u32 s = 0; s < 4; s += 2) {
                        const u32(&a)[4] = query[m][(i + s) / 2];
                        if (i + s + 2 <= VECTORS) {
                            mma_m16n8k16(scores[m][n], a[0], a[1], a[2], a[3], key[s], key[s + 1]);
                        } else if (i + s + 1 <= VECTORS) {
                            mma_m16n8k8(scores[m][n], a[0], a[1], key[s]);
                        }
                    }
                }
            }
        }

#pragma unroll
        for (u32 m = 0; m < TILES; ++m) {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 row = (warp + m * WARPS) * 16 + half * 8 + group;
                float new_max = row_max[m][half];
#pragma unroll
                for (u32 n = 0; n < KEY_BLOCK; ++n) {
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        float &score = scores[m][n][2 * half + i];
                        const u32 key = (block * KEY_BLOCK + n) * 8 + 2 * quad + i;
                        score = masked_score(score, row, key, FRAMES, KEYS, scale, problem);
                        new_max = fmaxf(new_max, score);
                    }
                }
                new_max = group_max<4>(new_max);
                const float shift = score_shift(new_max, scale);
                float sum = 0.f;
#pragma unroll
                for (u32 n = 0; n < KEY_BLOCK; ++n) {
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        float &score = scores[m][n][2 * half + i];
                        score = ex2_approx(score * score_factor(scale) - shift);
                        sum += score;
                    }
                }
                if (KEY_BLOCKS > 1) {
                    const float rescale = ex2_approx(score_shift(row_max[m][half], scale) - shift);
                    row_sum[m][half] *= rescale;
#pragma unroll
                    for (u32 j = 0; j < VECTORS; ++j) sums[m][j][2 * half] *= rescale, sums[m][j][2 * half + 1] *= rescale;
                }
                row_max[m][half] = new_max;
                row_sum[m][half] += sum;
            }
        }

        if (block == 0) {
            if (LAST) {
                cp_async_wait_group<0>();
            } else {
                cp_async_wait_group<2>();
            }
            sync_problem();
        }
#pragma unroll
        for (u32 s = 0; s < KEY_BLOCK / 2; ++s) {
            const u32 first = (block * KEY_BLOCK + 2 * s) * 8;
            if (first >= KEYS) continue;
            u32 weight[TILES][4];
#pragma unroll
            for (u32 m = 0; m < TILES; ++m) {
                const float(&even)[4] = scores[m][2 * s], (&odd)[4] = scores[m][2 * s + 1];
                weight[m][0] = cvt_rn_x2(even[0], even[1]), weight[m][1] = cvt_rn_x2(even[2], even[3]);
                weight[m][2] = cvt_rn_x2(odd[0], odd[1]), weight[m][3] = cvt_rn_x2(odd[2], odd[3]);
            }
#pragma unroll
            for (u32 j = 0; j < VECTORS; j += 2) {
                u32 value[4];
                if (j + 2 <= VECTORS) {
                    ldmatrix_x4_trans(value, vector_at(values, first, 16, lane % 16, j + lane / 16));
                } else {
                    ldmatrix_x2_trans(value[0], value[1], vector_at(values, first, 16, lane % 16, j));
                }
#pragma unroll
                for (u32 m = 0; m < TILES; ++m) {
                    const u32(&a)[4] = weight[m];
                    mma_m16n8k16(sums[m][j], a[0], a[1], a[2], a[3], value[0], value[1]);
                    if (j + 2 <= VECTORS) mma_m16n8k16(sums[m][j + 1], a[0], a[1], a[2], a[3], value[2], value[3]);
                }
            }
        }
    }

    // Stage out in the shared memory of the warp's own queries, which are in registers.
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
        const u32 first = (warp + m * WARPS) * 16;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const float norm = reciprocal_of_sum(group_sum<4>(row_sum[m][half]));
            const u32 row = first + half * 8 + group;
            if (row < FRAMES) {
                const u32 at = queries + row * PITCH * VECTOR_BYTES + quad * 4;
#pragma unroll
                for (u32 j = 0; j < VECTORS; ++j) {
                    const u32 word = cvt_rn_x2(sums[m][j][2 * half] * norm, sums[m][j][2 * half + 1] * norm);
                    st_shared_u32(at + j * VECTOR_BYTES, word);
                }
            }
        }
    }
    __syncwarp();
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
        const u32 first_row = (warp + m * WARPS) * 16;
        constexpr u32 COUNT = 16 * VECTORS;
#pragma unroll
        for (u32 first = 0; first < COUNT; first += WARP) {
            const u32 vector = first + lane, row = first_row + vector / VECTORS, column = vector % VECTORS;
            if ((first + WARP <= COUNT || vector < COUNT) && row < FRAMES) {
                const uint4 x = ld_shared_v4(queries + (row * PITCH + column) * VECTOR_BYTES);
                __stcs(reinterpret_cast<uint4 *>(problem.out + row * problem.out_stride + column * 8), x);
            }
        }
    }
}

// For wide heads, a minimum of one block makes the compiler use all registers instead of spilling.
extern "C" __global__ void __launch_bounds__(THREADS *PROBLEMS, HEAD_DIM > (__CUDA_ARCH__ >= 1000 ? 64 : 80) ? 1 : 0)
    tiled_attention(ATTENTION_PARAMETERS) {
    const Overlap overlap;
    extern __shared__ uint4 shared[];
    const u32 slot = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
    const u32 base = u32(__cvta_generic_to_shared(shared)) + slot * STAGES * STAGE_BYTES;
    const u64 first = (linear_block_index() * PROBLEMS + slot) * ROUNDS, problems = items * heads;
    scale *= LOG2_E;

    if (first >= problems) return;
    Problem problem = PROBLEM(first, FRAMES, KEYS, HEAD_DIM);
    load_problem(problem, base, thread);
    if constexpr (ROUNDS == 1) {
        compute_problem<true>(problem, base, thread, scale);
    } else {
        for (u32 round = 0; round < ROUNDS; ++round) {
            const u64 next = first + round + 1;
            const bool more = round + 1 < ROUNDS && next < problems;
            const Problem next_problem = PROBLEM(more ? next : first, FRAMES, KEYS, HEAD_DIM);
            const u32 stage = base + (STAGES == 2 ? round % 2 * STAGE_BYTES : 0);
            if (STAGES == 2 && more) {
                load_problem(next_problem, base + (round + 1) % 2 * STAGE_BYTES, thread);
                compute_problem<false>(problem, stage, thread, scale);
            } else {
                compute_problem<true>(problem, stage, thread, scale);
            }
            if (!more) return;
            // No thread of the problem reads this round's stage any more.
            sync_problem();
            problem = next_problem;
            if (STAGES == 1) load_problem(problem, base, thread);
        }
    }
}
