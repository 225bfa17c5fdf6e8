// The gradients of attention over longer rows, whose weights fit neither into registers nor into shared memory. It comes
// before attention_backward.cu.
//
// Contract: that of attention_backward.cu, except
//   macros      FRAMES and KEYS are limited by shared memory. Warps compute KEY_SLICE steps of 16 keys at once for their
//               queries, and QUERY_SLICE tiles of 16 queries for their keys. With WARPGROUP, KEY_SLICE divides the number of
//               steps, and QUERY_SLICE the number of tiles.
//   shared      dynamic: for each problem STAGES times q, grad, k and v, then the statistics of rows of scores, then a
//               block of columns for each warp.
//
// First each warp takes tiles of 16 queries. It goes over the keys for the statistics of its rows, and again for dq. Then each
// warp takes tiles of 16 keys and goes over the queries: transposed scores are operands of dv and dk as they are. So weights
// stay in registers, but scores are computed three times, or twice if KEY_SLICE has all keys.

constexpr u32 STATISTICS_BYTES = 8;
constexpr u32 AREAS = STAGES * TENSORS_BYTES;
constexpr u32 BLOCKS_OF_COLUMNS = 16 * ROW_TILES * STATISTICS_BYTES;
constexpr u32 PROBLEM_BYTES = AREAS + BLOCKS_OF_COLUMNS + WARPS * BLOCK_BYTES;
constexpr bool HAS_ALL_KEYS = KEY_SLICE >= KEY_STEPS;
// A warpgroup has the tiles of its four warps at once.
constexpr u32 GROUP_TILES = WARPGROUP ? 4 : 1;

constexpr u32 ROUNDED_TILES = divide_up(ROW_TILES, GROUP_TILES) * GROUP_TILES;
constexpr u32 ROUNDED_STEPS = divide_up(KEY_STEPS, GROUP_TILES) * GROUP_TILES;

// Only kernels that keep the bias in registers load it before the problem.
struct Bias {};
__device__ inline Bias load_bias(const Tensors &, u32, u32, u32 STRIDES_OF_PROBLEM) { return {}; }

// The logarithm to base 2 of the sum of exponentials of a row, and the sum of weights times their gradients.
struct Statistics {
    float log_sum, delta;
};
// The same of a lane's part of a row, relative to the exponential of the highest score.
struct Sums {
    float highest = LOWEST, sum = 0.f, products = 0.f;
};

// Tiles of 16 of the rows of a product and of its columns.
struct Tiles {
    u32 row, first_column, columns;
};

// scores = a b^T and grads = c d^T, for a tile of rows of a and c, and for some rows of b and d.
template <u32 N>
__device__ inline void multiply_tiles(float (&scores)[N][4], float (&grads)[N][4], u32 a, u32 b, u32 c, u32 d, bool exists,
                                      const Tiles &tiles, u32 lane) {
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) scores[n][i] = grads[n][i] = 0.f;
    }
    const u32 row = tiles.row * TILE_BYTES, column = tiles.first_column * TILE_BYTES;
#if WARPGROUP
    multiply_rows(scores, a + row, b + column, exists, lane);
    multiply_rows(grads, c + row, d + column, exists, lane);
    wgmma_wait_group<0>();
#else
    multiply_rows(scores, a + row, b + column, tiles.columns, lane);
    multiply_rows(grads, c + row, d + column, tiles.columns, lane);
#endif
}

// Adds the bias to scores and hides scores by -inf. TRANSPOSED has rows of keys.
template <bool TRANSPOSED, u32 N>
__device__ inline void mask_scores(float (&scores)[N][4], const Tiles &tiles, const Tensors &of, float scale,
                                   u32 lane STRIDES_OF_PROBLEM) {
    const u32 end = tiles.first_column + tiles.columns;
    const bool has_padding = TRANSPOSED ? FRAMES % 16 > 0 && end == ROW_TILES : KEYS % 16 > 0 && end == KEY_STEPS;
    const bool has_hidden = CAUSAL && (TRANSPOSED ? tiles.first_column <= tiles.row : end > tiles.row);
    if (!BIAS && !has_padding && !has_hidden) return;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 row = 16 * tiles.row + i / 2 * 8 + lane / 4, column = 16 * tiles.first_column + 8 * n + lane % 4 * 2 + i % 2;
            const u32 query = TRANSPOSED ? column : row, key = TRANSPOSED ? row : column;
            const bool exists = query < FRAMES && key < KEYS;
#if BIAS
            if (exists) scores[n][i] = scores[n][i] * scale + widen(of.bias[query * BIAS_ROW + key]) * LOG2_E;
#endif
            if (!exists || (CAUSAL && key > query)) scores[n][i] = __int_as_float(0xff800000);
        }
    }
}

// Adds the scores of the lane's two rows to their sums.
__device__ inline void add_scores(Sums (&sums)[2], const float (&scores)[2 * KEY_SLICE][4], const float (&grads)[2 * KEY_SLICE][4],
                                  u32 steps, float scale) {
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
                const float weight = ex2_approx(scores[n][2 * half + i] * score_factor(scale) - highest);
                own.sum += weight, own.products += weight * grads[n][2 * half + i];
            }
        }
    }
}
__device__ inline Statistics statistics_of(const Sums &own, bool exists) {
    const float highest = group_max<4>(own.highest), correction = ex2_approx(own.highest - highest);
    const float sum = group_sum<4>(own.sum * correction), products = group_sum<4>(own.products * correction);
    // Rows of padding, and rows without any visible key, have weights of 0.
    if (!exists || sum == 0.f) return {__int_as_float(0x7f800000), 0.f};
    return {highest + __log2f(sum), products / sum};
}

// Replaces a score by its weight, and the gradient of the weight by the gradient of the score.
__device__ inline void differentiate(float &score, float &grad, const Statistics &row, float scale) {
    score = ex2_approx(score * score_factor(scale) - row.log_sum);
    grad = score * (grad - row.delta);
}

// c += a b for a tile of a in registers, and for some rows of b.
template <u32 N>
__device__ inline void multiply_tiles(float (&c)[COLUMN_BLOCK][4], const float (&a)[N][4], u32 b, const Tiles &tiles, u32 first,
                                      u32 lane) {
    b += tiles.first_column * TILE_BYTES;
#if WARPGROUP
    Operand operands[N / 2];
#pragma unroll
    for (u32 s = 0; s < N / 2; ++s) operands[s] = operand_of(a[2 * s], a[2 * s + 1]);
    wgmma_fence();
#pragma unroll
    for (u32 s = 0; s < N / 2; ++s) multiply_step(c, operands[s], b + s * TILE_BYTES, true);
    wgmma_commit_group();
#else
#pragma unroll
    for (u32 s = 0; s < N / 2; ++s) {
        if (s >= tiles.columns) break;
        multiply_step(c, operand_of(a[2 * s], a[2 * s + 1]), b + s * TILE_BYTES, first, lane);
    }
#endif
}

__device__ inline void compute_problem(const Tensors &of, Bias &, u32 base, u32 statistics, u32 warp, u32 lane,
                                       float scale STRIDES_OF_PROBLEM) {
    const u32 queries = base, grads = queries + QUERY_BYTES, keys = grads + QUERY_BYTES, values = base + VALUES;
    const u32 group = lane / 4, quad = lane % 4, staged = statistics + BLOCKS_OF_COLUMNS + warp * BLOCK_BYTES;
    const float log_scale = scale * LOG2_E;

    for (u32 turn = 0; turn < ROUNDED_TILES; turn += WARPS) {
        const u32 tile = tile_of_turn(turn, warp);
        if (ROUNDED_TILES % WARPS > 0 && tile >= ROUNDED_TILES) continue;
        const bool exists = tile < ROW_TILES;
        const u32 seen = CAUSAL ? min((tile / GROUP_TILES + 1) * GROUP_TILES, KEY_STEPS) : KEY_STEPS;
        float weights[2 * KEY_SLICE][4], score_grads[2 * KEY_SLICE][4];
        const auto multiply_keys = [&](u32 first) {
            const Tiles tiles{tile, first, KEY_STEPS % KEY_SLICE == 0 && !CAUSAL ? KEY_SLICE : min(KEY_SLICE, seen - first)};
            multiply_tiles(weights, score_grads, queries, keys, grads, values, exists, tiles, lane);
            mask_scores<false>(weights, tiles, of, log_scale, lane STRIDES_ARGUMENT);
            return tiles;
        };
        Sums sums[2];
#pragma unroll 1
        for (u32 first = 0; first < seen; first += KEY_SLICE) {
            const Tiles tiles = multiply_keys(first);
            add_scores(sums, weights, score_grads, tiles.columns, log_scale);
        }
        Statistics rows[2];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = 16 * tile + 8 * half + group;
            rows[half] = statistics_of(sums[half], FRAMES % 16 == 0 || row < FRAMES);
            const float own = quad == 0 ? rows[half].log_sum : rows[half].delta;
            if (exists && quad < 2) st_shared_u32(statistics + row * STATISTICS_BYTES + 4 * quad, __float_as_uint(own));
        }
#pragma unroll 1
        for (u32 block = 0; block < COLUMN_TILES; block += COLUMN_BLOCK) {
            float dq[COLUMN_BLOCK][4] = {};
#pragma unroll 1
            for (u32 first = 0; first < seen; first += KEY_SLICE) {
                Tiles tiles{tile, 0, min(KEY_SLICE, seen)};
                if (!HAS_ALL_KEYS || block > 0) tiles = multiply_keys(first);
#pragma unroll
                for (u32 n = 0; n < 2 * KEY_SLICE; ++n) {
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) differentiate(weights[n][i], score_grads[n][i], rows[i / 2], log_scale);
                }
                if (block == 0) store_bias_grads(of, score_grads, tile, tiles.first_column, lane);
                multiply_tiles(dq, score_grads, keys, tiles, block, lane);
#if WARPGROUP
                wgmma_wait_group<0>();
#endif
            }
#if BIAS_GRAD
            const float zeros[2][4] = {};
            for (u32 first = seen; block == 0 && first < KEY_STEPS; ++first) store_bias_grads(of, zeros, tile, first, lane);
#endif
            if (exists) store_block(of.dq + 16 * tile * ROW(dq), ROW(dq), FRAMES - 16 * tile, dq, block, scale, staged, lane);
        }
    }
    sync_problem();

    for (u32 turn = 0; turn < ROUNDED_STEPS; turn += WARPS) {
        const u32 step = tile_of_turn(turn, warp);
        if (ROUNDED_STEPS % WARPS > 0 && step >= ROUNDED_STEPS) continue;
        const bool exists = step < KEY_STEPS;
        // The first queries that see the keys.
        const u32 begin = CAUSAL ? step / GROUP_TILES * GROUP_TILES / (WARPGROUP ? QUERY_SLICE : 1) * (WARPGROUP ? QUERY_SLICE : 1) : 0;
#pragma unroll 1
        for (u32 block = 0; block < COLUMN_TILES; block += COLUMN_BLOCK) {
            float dv[COLUMN_BLOCK][4] = {}, dk[COLUMN_BLOCK][4] = {};
#pragma unroll 1
            for (u32 first = begin; first < ROW_TILES; first += QUERY_SLICE) {
                const Tiles tiles{step, first, ROW_TILES % QUERY_SLICE == 0 && !CAUSAL ? QUERY_SLICE : min(QUERY_SLICE, ROW_TILES - first)};
                float weights[2 * QUERY_SLICE][4], score_grads[2 * QUERY_SLICE][4];
                multiply_tiles(weights, score_grads, keys, queries, values, grads, exists, tiles, lane);
                mask_scores<true>(weights, tiles, of, log_scale, lane STRIDES_ARGUMENT);
#pragma unroll
                for (u32 n = 0; n < 2 * QUERY_SLICE; ++n) {
                    if (n >= 2 * tiles.columns) break;
                    const uint4 words = ld_shared_v4(statistics + (16 * first + 8 * n + 2 * quad) * STATISTICS_BYTES);
                    const Statistics even{__uint_as_float(words.x), __uint_as_float(words.y)};
                    const Statistics odd{__uint_as_float(words.z), __uint_as_float(words.w)};
#pragma unroll
                    for (u32 i = 0; i < 4; ++i) differentiate(weights[n][i], score_grads[n][i], i % 2 ? odd : even, log_scale);
                }
                multiply_tiles(dv, weights, grads, tiles, block, lane);
                multiply_tiles(dk, score_grads, queries, tiles, block, lane);
#if WARPGROUP
                wgmma_wait_group<0>();
#endif
            }
            if (!exists) continue;
            store_block(of.dv + 16 * step * ROW(dv), ROW(dv), KEYS - 16 * step, dv, block, 1.f, staged, lane);
            store_block(of.dk + 16 * step * ROW(dk), ROW(dk), KEYS - 16 * step, dk, block, scale, staged, lane);
        }
    }
}
