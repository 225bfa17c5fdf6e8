// The gradients of attention over longer rows, whose weights do not fit into shared memory. It comes before
// attention_backward.cu.
//
// Contract: that of attention_backward.cu, except
//   macros      FRAMES and KEYS are limited by shared memory. A slice has KEY_SLICE steps of 16 keys.
//   shared      dynamic: for each problem STAGES times q, grad, k and v, then weights and gradients of scores of a slice of
//               keys, then a block of columns for each warp.
//
// First each warp goes over the keys for the statistics of its tiles of queries: the logarithm of the sum of exponentials, and
// sum(P dP). Then all warps take one slice of keys after another, as attention_backward.cu takes all keys, and keep dq in
// registers.

constexpr u32 SLICES = divide_up(KEY_STEPS, KEY_SLICE);
constexpr u32 AREA_UNIT = 2 * SQUARE_BYTES;
constexpr u32 AREA_BYTES = KEY_SLICE * AREA_UNIT;
constexpr u32 AREAS = STAGES * TENSORS_BYTES;
constexpr u32 STAGED = ROW_TILES * AREA_BYTES;
constexpr u32 PROBLEM_BYTES = AREAS + STAGED + WARPS * BLOCK_BYTES;
// The last slice may have fewer keys.
constexpr u32 LAST_SLICE = (SLICES - 1) * KEY_SLICE;
// Neighbouring warps of a warpgroup have neighbouring tiles.
constexpr u32 GROUP = WARPGROUP ? 4 : 1;
constexpr u32 ROUNDED_TILES = divide_up(ROW_TILES, GROUP) * GROUP;
constexpr u32 TURNS = divide_up(ROUNDED_TILES, WARPS);

// Only kernels that keep the bias in registers load it before the problem.
struct Bias {};
__device__ inline Bias load_bias(const Tensors &, u32, u32 STRIDES_OF_PROBLEM) { return {}; }

// Starts the copies of a slice of k and v, which nothing reads any more once dq has its keys.
__device__ inline void load_slice(const Tensors &of, u32 to, u32 first, u32 thread STRIDES_OF_PROBLEM) {
    const u32 at = to + 2 * QUERY_BYTES + first * TILE_BYTES;
    const Element *const k = of.k + 16 * first * ROW(k), *const v = of.v + 16 * first * ROW(v);
    if (first == LAST_SLICE) {
        load_rows<KEYS - 16 * LAST_SLICE>(at, k, ROW(k), thread);
        load_rows<KEYS - 16 * LAST_SLICE>(at + KEY_BYTES, v, ROW(v), thread);
    } else {
        load_rows<16 * KEY_SLICE>(at, k, ROW(k), thread);
        load_rows<16 * KEY_SLICE>(at + KEY_BYTES, v, ROW(v), thread);
    }
}
// Starts the copies of a problem. The k and v of a problem that is not the first of its block have been started.
__device__ inline void start_problem(const Tensors &of, u32 to, bool is_first, u32 thread STRIDES_OF_PROBLEM) {
    if (is_first) return load_problem(of, to, thread STRIDES_ARGUMENT);
    load_rows<FRAMES>(to, of.q, ROW(q), thread);
    load_rows<FRAMES>(to + QUERY_BYTES, of.grad, ROW(grad), thread);
    cp_async_commit_group();
}

// The logarithm to base 2 of the sum of exponentials of a row, and the sum of weights times their gradients.
struct Statistics {
    float log_sum, delta;
};
// The same of a lane's part of a row, relative to the exponential of the highest score.
struct Sums {
    float highest = LOWEST, sum = 0.f, products = 0.f;
};

// A tile of queries, and the steps of a slice that it sees.
struct Slice {
    u32 tile, first, steps;
};
typedef float Scores[2 * KEY_SLICE][4];

__device__ inline Slice slice_of(u32 turn, u32 first, u32 warp) {
    const u32 tile = tile_of_turn(turn * WARPS, warp);
    const u32 end = CAUSAL ? min((tile / GROUP + 1) * GROUP, KEY_STEPS) : KEY_STEPS;
    if ((ROUNDED_TILES % WARPS > 0 && tile >= ROUNDED_TILES) || (CAUSAL && end <= first)) return {tile, first, 0};
    // Warpgroups multiply whole slices.
    const bool is_whole = WARPGROUP || (KEY_STEPS % KEY_SLICE == 0 && !CAUSAL);
    return {tile, first, is_whole ? KEY_SLICE : min(KEY_SLICE, end - first)};
}

// Warps past the last tile take part in the warpgroup's products alone.
__device__ inline bool has_rows(const Slice &slice) { return ROUNDED_TILES == ROW_TILES || slice.tile < ROW_TILES; }

// c = a b^T for a tile of queries and a slice of keys. With WARPGROUP, starts it for the warpgroup's tiles, of which those behind
// the last one are any memory.
__device__ inline void multiply_slice(Scores &c, u32 a, u32 b, const Slice &slice, u32 lane) {
#if WARPGROUP
    constexpr u32 PITCH = PITCH_OF<HEAD_DIM>, WIDE = PANEL<PITCH>;
    const u64 queries = row_descriptor<HEAD_DIM>(a + slice.tile / GROUP * GROUP * TILE_BYTES), keys = row_descriptor<HEAD_DIM>(b + slice.first * TILE_BYTES);
    wgmma_fence();
#pragma unroll
    for (u32 i = 0; i < PITCH; i += 2) {
        const u32 offset = i / WIDE * (8 * WIDE * VECTOR_BYTES) + i % WIDE * VECTOR_BYTES;
        wgmma<0>(c, descriptor_at(queries, offset), descriptor_at(keys, offset), i > 0);
    }
    wgmma_commit_group();
#else
#pragma unroll
    for (u32 n = 0; n < 2 * KEY_SLICE; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) c[n][i] = 0.f;
    }
    multiply_rows(c, a + slice.tile * TILE_BYTES, b + slice.first * TILE_BYTES, slice.steps, lane);
#endif
}
// Waits for all products but the last ones that were started.
__device__ inline void wait_first() {
#if WARPGROUP
    wgmma_wait_group<1>();
#endif
}
__device__ inline void wait_all() {
#if WARPGROUP
    wgmma_wait_group<0>();
#endif
}

// Adds the bias to scores, and hides scores by -inf.
__device__ inline void mask_scores(Scores &scores, const Slice &slice, const Tensors &of, float scale, u32 lane STRIDES_OF_PROBLEM) {
    const u32 end = slice.first + slice.steps;
    const bool has_padding = KEYS % (WARPGROUP ? 16 * KEY_SLICE : 16) > 0 && end >= KEY_STEPS, has_hidden = CAUSAL && end > slice.tile;
    if (!BIAS && !has_padding && !has_hidden) return;
#pragma unroll
    for (u32 n = 0; n < 2 * KEY_SLICE; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 query = 16 * slice.tile + i / 2 * 8 + lane / 4, key = 16 * slice.first + 8 * n + lane % 4 * 2 + i % 2;
#if BIAS
            if (query < FRAMES && key < KEYS) {
                scores[n][i] = scores[n][i] * scale + widen(of.bias[query * BIAS_ROW + key]) * LOG2_E;
            }
#endif
            if (key >= KEYS || (CAUSAL && key > query)) scores[n][i] = __int_as_float(0xff800000);
        }
    }
}

// Replaces scores by exponentials, relative to the highest score so far, and adds them to the sums of rows.
__device__ inline void add_scores(Sums (&sums)[2], Scores &scores, u32 steps, float scale) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        Sums &own = sums[half];
        float highest = LOWEST;
#pragma unroll
        for (u32 n = 0; n < 2 * KEY_SLICE; ++n) {
            if (n >= 2 * steps) break;
            highest = fmaxf(highest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        }
        highest = fmaxf(own.highest, highest * score_factor(scale));
        const float correction = ex2_approx(own.highest - highest);
        own.highest = highest, own.sum *= correction, own.products *= correction;
#pragma unroll
        for (u32 n = 0; n < 2 * KEY_SLICE; ++n) {
            if (n >= 2 * steps) break;
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                float &score = scores[n][2 * half + i];
                score = ex2_approx(score * score_factor(scale) - highest);
                own.sum += score;
            }
        }
    }
}
__device__ inline Statistics statistics_of(const Sums &own) {
    const float highest = group_max<4>(own.highest), correction = ex2_approx(own.highest - highest);
    const float sum = group_sum<4>(own.sum * correction), products = group_sum<4>(own.products * correction);
    // A row without any visible key has weights of 0.
    if (sum == 0.f) return {__int_as_float(0x7f800000), 0.f};
    return {highest + __log2f(sum), products * rcp_approx(sum)};
}

// Replaces a step's gradients of weights by gradients of scores.
__device__ inline void differentiate_step(const Scores &weights, Scores &grads, u32 step, const Slice &slice,
                                          const Statistics (&rows)[2]) {
#pragma unroll
    for (u32 n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            grads[n][i] = weights[n][i] * (grads[n][i] - rows[i / 2].delta);
            // A whole slice may have memory behind the last key.
            if (WARPGROUP && KEY_STEPS % KEY_SLICE > 0 && slice.first + step >= KEY_STEPS) grads[n][i] = 0.f;
        }
    }
}

// dv, and dk, of 16 keys of the slice for each warp.
__device__ inline void compute_keys(const Tensors &of, u32 first, u32 grads, u32 queries, u32 areas, u32 staged, u32 warp, u32 lane,
                                    float scale STRIDES_OF_PROBLEM) {
    constexpr u32 PARTS = 2 * COLUMN_BLOCKS;
    const u32 steps = min(KEY_SLICE, KEY_STEPS - first);
    for (u32 unit = warp; unit < divide_up(steps, GROUP) * GROUP * PARTS; unit += WARPS) {
        const u32 part = unit / GROUP, step = part / PARTS * GROUP + unit % GROUP, block = part / 2 % COLUMN_BLOCKS * COLUMN_BLOCK;
        const bool of_keys = part % 2;
        // A step behind the last one is any memory.
        const u32 area = areas + min(step, KEY_SLICE - 1) * AREA_UNIT + (of_keys ? SQUARE_BYTES : 0), others = of_keys ? queries : grads;
        float sums[COLUMN_BLOCK][4] = {};
        // The first tile of queries that has seen the keys.
        const u32 begin = CAUSAL ? (first + step) / GROUP * GROUP : 0;
#if WARPGROUP
        Operand operands[ROW_TILES];
#pragma unroll
        for (u32 tile = 0; tile < ROW_TILES; ++tile) operands[tile] = transposed(area + tile * AREA_BYTES, lane);
        wgmma_fence();
#pragma unroll
        for (u32 tile = 0; tile < ROW_TILES; ++tile) multiply_step(sums, operands[tile], others, tile * TILE_BYTES, tile > 0);
        wgmma_commit_wait();
#else
#pragma unroll 2
        for (u32 tile = begin; tile < ROW_TILES; ++tile) {
            multiply_step(sums, transposed(area + tile * AREA_BYTES, lane), others + tile * TILE_BYTES, block, lane);
        }
#endif
        const u32 row = 16 * (first + step);
        if (step >= steps) continue;
        if (of_keys) {
            store_block(of.dk + row * ROW(dk), ROW(dk), KEYS - row, sums, block, scale, staged, lane);
        } else {
            store_block(of.dv + row * ROW(dv), ROW(dv), KEYS - row, sums, block, 1.f, staged, lane);
        }
    }
}

__device__ inline void compute_problem(const Tensors &of, Bias &, const Tensors &next, bool more, u32 base, u32 areas, u32 warp, u32 lane,
                                       float scale STRIDES_OF_PROBLEM) {
    const u32 queries = base, grads = queries + QUERY_BYTES, keys = grads + QUERY_BYTES, values = base + VALUES;
    const u32 staged = areas + STAGED + warp * BLOCK_BYTES;
    const float log_scale = scale * LOG2_E;

    Statistics rows[TURNS][2];
#pragma unroll
    for (u32 turn = 0; turn < TURNS; ++turn) {
        Sums sums[2];
#pragma unroll 1
        for (u32 first = 0; first < KEY_STEPS; first += KEY_SLICE) {
            const Slice slice = slice_of(turn, first, warp);
            if (slice.steps == 0) break;
            Scores scores, score_grads;
            multiply_slice(scores, queries, keys, slice, lane);
            multiply_slice(score_grads, grads, values, slice, lane);
            wait_first();
            if (has_rows(slice)) {
                mask_scores(scores, slice, of, log_scale, lane STRIDES_ARGUMENT);
                add_scores(sums, scores, slice.steps, log_scale);
            }
            wait_all();
            if (!has_rows(slice)) continue;
#pragma unroll
            for (u32 n = 0; n < 2 * KEY_SLICE; ++n) {
                if (n >= 2 * min(slice.steps, KEY_STEPS - first)) break;
#pragma unroll
                for (u32 i = 0; i < 4; ++i) sums[i / 2].products += scores[n][i] * score_grads[n][i];
            }
        }
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            rows[turn][half] = statistics_of(sums[half]);
            // Rows of padding have weights of 0.
            const u32 row = 16 * tile_of_turn(turn * WARPS, warp) + 8 * half + lane / 4;
            if (FRAMES % 16 > 0 && row >= FRAMES) rows[turn][half] = {__int_as_float(0x7f800000), 0.f};
        }
    }

    float dq[TURNS][COLUMN_BLOCKS][COLUMN_BLOCK][4] = {};
#pragma unroll 1
    for (u32 first = 0; first < KEY_STEPS; first += KEY_SLICE) {
#pragma unroll
        for (u32 turn = 0; turn < TURNS; ++turn) {
            const Slice slice = slice_of(turn, first, warp);
            if (slice.steps == 0) {
#if BIAS_GRAD
                store_bias_grads(of, Scores{}, slice.tile, first, lane);
#endif
                continue;
            }
            Scores weights, score_grads;
            multiply_slice(weights, queries, keys, slice, lane);
            multiply_slice(score_grads, grads, values, slice, lane);
            wait_first();
            if (has_rows(slice)) {
                mask_scores(weights, slice, of, log_scale, lane STRIDES_ARGUMENT);
#pragma unroll
                for (u32 n = 0; n < 2 * KEY_SLICE; ++n) {
                    if (n >= 2 * slice.steps) break;
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) {
                        weights[n][i] = ex2_approx(weights[n][i] * score_factor(log_scale) - rows[turn][i / 2].log_sum);
                    }
                }
            }
            wait_all();
            Operand operands[KEY_SLICE];
#pragma unroll
            for (u32 s = 0; s < KEY_SLICE; ++s) {
                // Hidden steps have gradients of 0.
                if (s < slice.steps) differentiate_step(weights, score_grads, s, slice, rows[turn]);
                store_bias_grads(of, reinterpret_cast<const float(&)[2][4]>(score_grads[2 * s]), slice.tile, first + s, lane);
                if (s >= slice.steps) continue;
                operands[s] = operand_of(score_grads[2 * s], score_grads[2 * s + 1]);
                const u32 area = areas + slice.tile * AREA_BYTES + s * AREA_UNIT;
                // Tested at run time, as branches without a test need 45 registers more at 512 keys.
                if (slice.tile >= ROW_TILES) continue;
                store_operand(area, operand_of(weights[2 * s], weights[2 * s + 1]), lane);
                store_operand(area + SQUARE_BYTES, operands[s], lane);
            }
#if WARPGROUP
            wgmma_fence();
#endif
#pragma unroll
            for (u32 block = 0; block < COLUMN_BLOCKS; ++block) {
#pragma unroll
                for (u32 s = 0; s < KEY_SLICE; ++s) {
                    const u32 offset = (first + s) * TILE_BYTES;
#if WARPGROUP
                    multiply_step(dq[turn][block], operands[s], keys, offset, true);
#else
                    if (s >= slice.steps) break;
                    multiply_step(dq[turn][block], operands[s], keys + offset, block * COLUMN_BLOCK, lane);
#endif
                }
            }
#if WARPGROUP
            // The next turn waits for dq when it waits for its first product.
            wgmma_commit_group();
#endif
        }
        wait_all();
        sync_problem();
        if (STAGES == 1 && more) load_slice(next, base, first, warp * WARP + lane STRIDES_ARGUMENT);
        compute_keys(of, first, grads, queries, areas, staged, warp, lane, scale STRIDES_ARGUMENT);
        sync_problem();
    }
#pragma unroll
    for (u32 turn = 0; turn < TURNS; ++turn) {
        const u32 tile = tile_of_turn(turn * WARPS, warp);
        if (tile >= ROW_TILES) continue;
#pragma unroll
        for (u32 block = 0; block < COLUMN_BLOCKS; ++block) {
            store_block(of.dq + 16 * tile * ROW(dq), ROW(dq), FRAMES - 16 * tile, dq[turn][block], block * COLUMN_BLOCK, scale, staged,
                        lane);
        }
    }
}
