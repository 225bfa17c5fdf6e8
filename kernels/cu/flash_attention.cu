// Attention on tensor cores with an online softmax over blocks of keys, compiled for the shape.
//
// Contract (attention.cu has the common part)
//   macros      FRAMES and KEYS are 1 to 512. HEAD_DIM and VALUE_DIM (by default HEAD_DIM) are multiples of 8 (of 4 for F32)
//               up to 512. WARPS warps share a problem. Each multiplies QUERY_TILES tiles of 16 queries, 1 or 2, with the same
//               keys; there are at most as many warps as such pairs of tiles. A block of keys has at most MAX_STEPS
//               steps of 16 keys; above a VALUE_DIM of 128 it has all keys. PROBLEMS problems are side by side in a block.
//               If STREAMED is 1, blocks of keys are loaded one after another, for problems larger than shared memory, and
//               PROBLEMS is 1. BLOCKS is the least number of blocks of a multiprocessor, which limits registers. WARPGROUP
//               is 0.
//   layout      v is [items, heads, keys, value_dim], out [items, heads, frames, value_dim].
//   block       32 * WARPS * PROBLEMS threads on x.
//   shared      dynamic: for each problem q, k and v, with rows rounded up to 16. If STREAMED, the queries of
//               all warps, and two blocks of keys and values.
//   arithmetic  F16 and BF16: m16n8k16 (m16n8k8 on sm_75) with f32 accumulation; exponentials are rounded to the element
//               type. F32: three m16n8k8 products in TF32, which have an error of at most 2^-18 of each product.
//   needs       sm_75 for F16, sm_80 for BF16 and F32.

#ifndef VALUE_DIM
#define VALUE_DIM HEAD_DIM
#endif

constexpr u32 TURNS = divide_up(ROW_TILES, WARPS * QUERY_TILES);
constexpr u32 BLOCKS_OF_KEYS = divide_up(KEY_STEPS, MAX_STEPS);
constexpr u32 BLOCK_STEPS = divide_up(KEY_STEPS, BLOCKS_OF_KEYS);
constexpr u32 BLOCK_TILES = BLOCKS_OF_KEYS == 1 ? KEY_TILES : 2 * BLOCK_STEPS;

// Tiles of columns of out that a warp computes at once: all of them if there are several blocks of keys.
constexpr u32 VALUE_TILES = COLUMN_TILES_OF<VALUE_DIM>;
constexpr u32 COLUMNS = BLOCKS_OF_KEYS > 1 || VALUE_TILES <= 10 ? VALUE_TILES : 8;

constexpr u32 OUT_BYTES = 16 * BLOCK_VECTORS_OF<COLUMNS> * VECTOR_BYTES;
constexpr u32 QUERY_TILE_BYTES = ELEMENT == F32 || TILE_BYTES > OUT_BYTES ? TILE_BYTES : OUT_BYTES;
constexpr u32 VALUE_TILE_BYTES = TILE_BYTES_OF<VALUE_DIM>;
constexpr u32 KEYS_AT = (STREAMED ? WARPS * QUERY_TILES : ROW_TILES) * QUERY_TILE_BYTES;
// k and v of a block of keys, one after the other.
constexpr u32 BLOCK_BYTES_OF_KEYS = BLOCK_STEPS * (TILE_BYTES + VALUE_TILE_BYTES);
constexpr u32 VALUES_AT = KEYS_AT + (STREAMED ? BLOCK_STEPS : KEY_STEPS) * TILE_BYTES;
constexpr u32 PROBLEM_BYTES = STREAMED ? KEYS_AT + 2 * BLOCK_BYTES_OF_KEYS : VALUES_AT + KEY_STEPS * VALUE_TILE_BYTES;

// Starts the copies of COUNT tiles of queries.
template <u32 COUNT>
__device__ inline void load_queries(const Problem &problem, u32 to, u32 first_tile, u32 thread) {
    constexpr u32 TILES_AT_ONCE = QUERY_TILE_BYTES == TILE_BYTES ? COUNT : 1;
#pragma unroll
    for (u32 tile = 0; tile < COUNT; tile += TILES_AT_ONCE) {
        const u32 first = 16 * (first_tile + tile);
        const u32 rows = first + 16 * TILES_AT_ONCE <= FRAMES ? 16 * TILES_AT_ONCE : first < FRAMES ? FRAMES - first : 0;
        load_rows<16 * TILES_AT_ONCE>(to + tile * QUERY_TILE_BYTES, problem.q + first * problem.q_stride, problem.q_stride, thread, rows);
    }
}

// Starts the copies of a problem in two groups: queries and keys, then values.
__device__ inline void load_problem(const Problem &problem, u32 to, u32 thread) {
    load_queries<ROW_TILES>(problem, to, 0, thread);
    load_rows<KEYS>(to + KEYS_AT, problem.k, problem.k_stride, thread);
    cp_async_commit_group();
    load_rows<KEYS, VALUE_DIM>(to + VALUES_AT, problem.v, problem.v_stride, thread);
    cp_async_commit_group();
}

// Starts the copies of a block of keys and values, as one group.
__device__ inline void load_block(const Problem &problem, u32 to, u32 block, u32 thread) {
    const u32 first = 16 * BLOCK_STEPS * block, rows = min(16 * BLOCK_STEPS, KEYS - first);
    load_rows<16 * BLOCK_STEPS>(to + KEYS_AT, problem.k + first * problem.k_stride, problem.k_stride, thread, rows);
    load_rows<16 * BLOCK_STEPS, VALUE_DIM>(to + VALUES_AT, problem.v + first * problem.v_stride, problem.v_stride, thread, rows);
    cp_async_commit_group();
}

// What a lane knows of two of its rows: the largest score so far, and the sum of the exponentials.
struct Rows {
    float max[2] = {LOWEST, LOWEST}, sum[2] = {};
};

// Replaces the scores of a block of keys by exponentials. Returns what scales the sums of the blocks before.
__device__ inline float exponentials(float (&scores)[BLOCK_TILES][4], Rows &rows, u32 half, u32 row, u32 first_key,
                                     u32 quad, u32 steps, float scale, const Problem &problem) {
    float largest = rows.max[half];
#pragma unroll
    for (u32 n = 0; n < BLOCK_TILES; ++n) {
        if (n >= 2 * steps) break;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            score = masked_score(score, row, first_key + 8 * n + 2 * quad + i, FRAMES, KEYS, scale, problem);
            largest = fmaxf(largest, score);
        }
    }
    largest = group_max<4>(largest);
    const float shift = score_shift(largest, scale), factor = score_factor(scale);
    float sum = 0.f;
#pragma unroll
    for (u32 n = 0; n < BLOCK_TILES; ++n) {
        if (n >= 2 * steps) break;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            score = ex2_approx(score * factor - shift);
            sum += score;
        }
    }
    const float rescale = BLOCKS_OF_KEYS > 1 ? ex2_approx(score_shift(rows.max[half], scale) - shift) : 0.f;
    rows.sum[half] = BLOCKS_OF_KEYS > 1 ? rows.sum[half] * rescale + sum : sum;
    rows.max[half] = largest;
    return rescale;
}

// The operand of a step of 16 keys. The last tile of eight may be missing.
__device__ inline Operand operand_of_step(const float (&x)[BLOCK_TILES][4], u32 step) {
    const float none[4] = {};
    return 2 * step + 1 < BLOCK_TILES ? operand_of(x[2 * step], x[2 * step + 1 < BLOCK_TILES ? 2 * step + 1 : 0]) : operand_of(x[2 * step], none);
}

__device__ inline void compute_problem(const Problem &problem, u32 base, u32 thread, float scale) {
    const u32 warp = thread / WARP, lane = thread % WARP, group = lane / 4, quad = lane % 4;
    if (!STREAMED) {
        load_problem(problem, base, thread);
        cp_async_wait_group<1>();
        sync_problem();
    }
#pragma unroll 1
    for (u32 turn = 0; turn < TURNS; ++turn) {
        const u32 first_tile = (turn * WARPS + warp) * QUERY_TILES;
        if (!STREAMED && turn > 0 && ROW_TILES % (WARPS * QUERY_TILES) > 0 && first_tile >= ROW_TILES) break;
        // Tiles past the last one are multiplied with whatever the memory has, and not stored.
        u32 queries[QUERY_TILES];
#pragma unroll
        for (u32 m = 0; m < QUERY_TILES; ++m) queries[m] = base + ((STREAMED ? warp * QUERY_TILES : first_tile) + m) * QUERY_TILE_BYTES;
        // Steps that a causal mask does not hide from all of these queries, and from all that take part in a barrier.
        const u32 seen = CAUSAL ? min(first_tile + QUERY_TILES, KEY_STEPS) : KEY_STEPS;
        const u32 end = CAUSAL && STREAMED ? min((turn + 1) * WARPS * QUERY_TILES, KEY_STEPS) : seen;
        if (STREAMED) {
            load_queries<WARPS * QUERY_TILES>(problem, base, turn * WARPS * QUERY_TILES, thread);
            load_block(problem, base, 0, thread);
        }

        Rows rows[QUERY_TILES];
        float sums[QUERY_TILES][COLUMNS][4] = {};
#pragma unroll 1
        for (u32 block = 0; block < BLOCKS_OF_KEYS; ++block) {
            const u32 first_step = block * BLOCK_STEPS;
            const bool is_last = block + 1 == BLOCKS_OF_KEYS || (CAUSAL && first_step + BLOCK_STEPS >= end);
            const bool is_ragged = CAUSAL || KEY_STEPS % BLOCK_STEPS > 0;
            const u32 steps = is_ragged ? (STREAMED && seen < first_step ? 0 : seen - first_step) : BLOCK_STEPS;
            const u32 stage = STREAMED ? block % 2 * BLOCK_BYTES_OF_KEYS : first_step * TILE_BYTES;
            const u32 keys = base + KEYS_AT + stage;
            // Rows of the same size need one address.
            const u32 values = STREAMED || TILE_BYTES == VALUE_TILE_BYTES ? keys + (VALUES_AT - KEYS_AT) : base + VALUES_AT + first_step * VALUE_TILE_BYTES;
            if (STREAMED) {
                if (!is_last) load_block(problem, base + (block + 1) % 2 * BLOCK_BYTES_OF_KEYS, block + 1, thread);
                if (is_last) {
                    cp_async_wait_group<0>();
                } else {
                    cp_async_wait_group<1>();
                }
                sync_problem();
            }
            float scores[QUERY_TILES][BLOCK_TILES][4] = {};
            multiply_rows(scores, queries, keys, steps, lane);
#pragma unroll
            for (u32 m = 0; m < QUERY_TILES; ++m) {
#pragma unroll
                for (u32 half = 0; half < 2; ++half) {
                    const u32 row = 16 * (first_tile + m) + 8 * half + group;
                    const float rescale = exponentials(scores[m], rows[m], half, row, 16 * first_step, quad, steps, scale, problem);
#pragma unroll
                    for (u32 j = 0; j < COLUMNS; ++j) {
                        if (BLOCKS_OF_KEYS > 1) sums[m][j][2 * half] *= rescale, sums[m][j][2 * half + 1] *= rescale;
                    }
                }
            }
            if (!STREAMED && turn == 0 && block == 0) {
                cp_async_wait_group<0>();
                sync_problem();
            }

#pragma unroll(ELEMENT == F32 && VALUE_TILES > 16 ? 1 : VALUE_TILES)
            for (u32 first = 0; first < VALUE_TILES; first += COLUMNS) {
                if (first > 0) {
#pragma unroll
                    for (u32 m = 0; m < QUERY_TILES; ++m) {
#pragma unroll
                        for (u32 j = 0; j < COLUMNS; ++j) sums[m][j][0] = sums[m][j][1] = sums[m][j][2] = sums[m][j][3] = 0.f;
                    }
                }
#if ELEMENT == F32
                float small[QUERY_TILES][COLUMNS][4] = {};
#endif
#pragma unroll
                for (u32 s = 0; s < BLOCK_STEPS; ++s) {
                    if (s >= steps) break;
                    Operand weights[QUERY_TILES];
#pragma unroll
                    for (u32 m = 0; m < QUERY_TILES; ++m) weights[m] = operand_of_step(scores[m], s);
#if ELEMENT == F32
                    multiply_step<VALUE_DIM>(sums, small, weights, values + s * VALUE_TILE_BYTES, first, lane, min(2u, BLOCK_TILES - 2 * s));
#else
                    multiply_step<VALUE_DIM>(sums, weights, values + s * VALUE_TILE_BYTES, first, lane);
#endif
                }
#if ELEMENT == F32
                add_small(sums, small);
#endif
                if (!is_last) continue;
#pragma unroll
                for (u32 m = 0; m < QUERY_TILES; ++m) {
                    const u32 tile = first_tile + m;
                    if (ROW_TILES % (WARPS * QUERY_TILES) > 0 && tile >= ROW_TILES) break;
                    Element *const to = problem.out + 16 * tile * problem.out_stride;
                    float factors[2];
#pragma unroll
                    for (u32 half = 0; half < 2; ++half) factors[half] = reciprocal_of_sum(group_sum<4>(rows[m].sum[half]));
                    store_block<VALUE_DIM>(to, problem.out_stride, FRAMES - 16 * tile, sums[m], first, factors, queries[m], lane);
                }
            }
            // No warp reads this block any more, nor the queries of the turn.
            if (STREAMED) sync_problem();
            if (is_last) break;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS *PROBLEMS, BLOCKS) flash_attention(ATTENTION_PARAMETERS) {
    const Overlap overlap;
    extern __shared__ __align__(1024) uint4 shared[];
    const u32 slot = PROBLEMS == 1 ? 0 : threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
    const u32 base = u32(__cvta_generic_to_shared(shared)) + slot * PROBLEM_BYTES;
    const u64 number = linear_block_index() * PROBLEMS + slot;
    if (number >= items * heads) return;
    Problem problem = PROBLEM(number, FRAMES, KEYS, HEAD_DIM);
    if (!STRIDED && VALUE_DIM != HEAD_DIM) {
        problem.v = v + number * (KEYS * VALUE_DIM), problem.v_stride = VALUE_DIM;
        problem.out = out + number * (FRAMES * VALUE_DIM), problem.out_stride = VALUE_DIM;
    }
    compute_problem(problem, base, thread, scale * LOG2_E);
}
