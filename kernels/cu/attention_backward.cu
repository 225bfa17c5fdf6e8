// The gradients of attention on tensor cores, compiled for the shape. The softmax is computed again from q and k.
//
// Contract (attention.cu has the common part)
//   macros      FRAMES and KEYS are 1 to 128, HEAD_DIM is a multiple of 8 (of 4 for F32) up to 512. WARPS warps share a
//               problem, and PROBLEMS problems are side by side in a block. ROUNDS problems follow each other in each of
//               these slots. STAGES is 2 to load the next round's problem while this one is computed, or 1 to ask only
//               for its tensors in the L2 cache. BLOCKS is the least number of blocks of a multiprocessor, which limits
//               registers. If WARPGROUP is 1, WARPS is a multiple of 4, PROBLEMS is 1, ELEMENT is not F32 and HEAD_DIM is
//               at most 128. BIAS_GRAD is 1 for the gradient of the bias. KEY_SLICE is for sliced_backward.cu.
//   layout      grad (of out) and dq are as q, dk as k, dv as v. Elements of dq, dk and dv do not overlap.
//               dbias is [items, heads, frames, keys] and contiguous.
//   arguments   q, k, v, grad, dq, dk, dv, [dbias] (addresses of the chunk's first item), [bias], items of the chunk
//               (u64), heads (u32), [strides], scale (f32).
//   block       32 * WARPS * PROBLEMS threads on x.
//   shared      dynamic: for each problem STAGES times q, grad, k and v, with rows rounded up to 16, then weights and
//               gradients of scores. These take the place of v if there is one stage and a warp for each tile of queries.
//   arithmetic  F16 and BF16: m16n8k16 (m16n8k8 on sm_75) or wgmma with f32 accumulation; weights and gradients of scores are
//               rounded to the element type before they are multiplied. F32: three m16n8k8 products in TF32, which
//               have an error of at most 2^-18 of each product. No atomics: each sum has a fixed order.
//   needs       sm_75 for F16, sm_80 for BF16 and F32, sm_90a with WARPGROUP.
//
// First each warp takes tiles of 16 queries, with all keys: P = softmax(scale * q k^T + bias), dP = grad v^T,
// dS = P (dP - sum(P dP)), dq = scale * dS k. Then each warp takes tiles of 16 keys, with all queries: dv = P^T grad,
// dk = scale * dS^T q. Without WARPGROUP, a warp has several of them at once, for dv or for dk, so that they share loads.

#ifndef KEY_SLICE
// If each warp has one tile of queries, all have read v before one writes its area.
constexpr bool AREAS_REPLACE_VALUES = ROW_TILES <= WARPS && STAGES == 1;
constexpr u32 AREAS = AREAS_REPLACE_VALUES ? VALUES : STAGES * TENSORS_BYTES;
constexpr bool SKIPS = CAUSAL && !WARPGROUP;
// The area of a tile of queries has first a block of columns of dq, then of each step of seen keys a square of weights and
// one of gradients of scores.
constexpr u32 AREA_UNIT = 2 * SQUARE_BYTES;
constexpr u32 LEAST_UNITS = divide_up(BLOCK_BYTES, AREA_UNIT);
__device__ constexpr u32 least(u32 x, u32 y) { return x < y ? x : y; }
__device__ constexpr u32 sum_to(u32 count) { return count * (count + 1) / 2; }
__device__ constexpr u32 area_offset(u32 tile) {
    if (!SKIPS || LEAST_UNITS >= KEY_STEPS) return tile * (LEAST_UNITS > KEY_STEPS ? LEAST_UNITS : KEY_STEPS) * AREA_UNIT;
    // Tile t sees t + 1 steps.
    const u32 narrow = least(tile, LEAST_UNITS), rising = least(tile, KEY_STEPS);
    return (narrow * LEAST_UNITS + sum_to(rising) - sum_to(narrow) + (tile - rising) * KEY_STEPS) * AREA_UNIT;
}
constexpr u32 AREAS_END = AREAS + area_offset(ROW_TILES);
constexpr u32 PROBLEM_BYTES = AREAS_END > TENSORS_BYTES ? AREAS_END : TENSORS_BYTES;

// The bias of a tile of queries, as products have it: of each tile of keys two columns of two rows. Two elements share a
// register unless they are loaded under products, which would wait for them.
struct Bias {
#if BIAS
    static constexpr bool IS_PACKED = sizeof(Element) == 2 && ROW_TILES > WARPS;
    u32 x[KEY_TILES][2][IS_PACKED ? 1 : 2];
    __device__ inline void set(u32 n, u32 half, Element even, Element odd) {
#if ELEMENT == F32
        x[n][half][0] = __float_as_uint(even), x[n][half][1] = __float_as_uint(odd);
#else
        x[n][half][0] = IS_PACKED ? even | u32(odd) << 16 : even;
        if (!IS_PACKED) x[n][half][1] = odd;
#endif
    }
    __device__ inline float get(u32 n, u32 half, u32 i) const {
#if ELEMENT == F32
        return __uint_as_float(x[n][half][i]);
#else
        return widen(Element(IS_PACKED ? x[n][half][0] >> 16 * i : x[n][half][i]));
#endif
    }
#endif
};
__device__ inline Bias load_bias(const Tensors &of, u32 tile, u32 lane STRIDES_OF_PROBLEM) {
    Bias bias;
#if BIAS
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        // Padding is never stored, and has a bias that exists.
        const Element *const row = of.bias + least(16 * tile + 8 * half + lane / 4, FRAMES - 1) * BIAS_ROW;
#pragma unroll
        for (u32 n = 0; n < KEY_TILES; ++n) {
            const u32 column = 8 * n + lane % 4 * 2;
            bias.set(n, half, row[least(column, KEYS - 1)], row[least(column + 1, KEYS - 1)]);
        }
    }
#endif
    return bias;
}

// Replaces the scores of a row, two of each tile in this lane, by exp(score - largest score). Returns 1 / their sum.
template <u32 N>
__device__ inline float exponentials_of_row(float (&scores)[N][4], u32 half, u32 row, u32 quad, float scale, const Bias &bias) {
    float row_max = LOWEST;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            const u32 column = 8 * n + 2 * quad + i;
#if BIAS
            score = score * scale + bias.get(n, half, i);
#endif
            // A causal tile of queries sees all keys of the steps before its last one.
            if (column >= KEYS || (CAUSAL && (!SKIPS || n + 2 >= N) && column > row)) score = __int_as_float(0xff800000);
            row_max = fmaxf(row_max, score);
        }
    }
    // A row of scores that are all -inf has a finite shift.
    const float factor = BIAS ? LOG2_E : scale * LOG2_E, shift = fmaxf(group_max<4>(row_max) * factor, LOWEST);
    float sum = 0.f;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            score = ex2_approx(score * factor - shift);
            sum += score;
        }
    }
    sum = group_sum<4>(sum);
    return sum == 0.f ? 0.f : rcp_approx(sum);
}

// Replaces exponentials of a row by weights, and the gradients of the weights by the gradients of the scores.
template <u32 N>
__device__ inline void differentiate_row(float (&weights)[N][4], float (&grads)[N][4], u32 half, float norm) {
    float delta = 0.f;
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &weight = weights[n][2 * half + i];
            weight *= norm;
            delta += weight * grads[n][2 * half + i];
        }
    }
    delta = group_sum<4>(delta);
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &grad = grads[n][2 * half + i];
            grad = weights[n][2 * half + i] * (grad - delta);
        }
    }
}

// The operand of a step of 16 keys. The last tile of eight may be missing.
template <u32 N>
__device__ inline Operand operand_of_step(const float (&x)[N][4], u32 step) {
    const float none[4] = {};
    return 2 * step + 1 < N ? operand_of(x[2 * step], x[2 * step + 1 < N ? 2 * step + 1 : 0]) : operand_of(x[2 * step], none);
}

// The tensors of a problem in shared memory, and the areas.
struct Places {
    u32 queries, grads, keys, values, areas;
};

// dq of a tile of queries, and the weights and the gradients of scores of the STEPS steps of keys that it sees.
template <u32 STEPS>
__device__ inline void compute_tile(const Tensors &of, const Bias &bias, const Places &at, u32 tile, u32 lane,
                                    float scale STRIDES_OF_PROBLEM) {
    constexpr u32 N = least(2 * STEPS, KEY_TILES);
    const u32 group = lane / 4, quad = lane % 4, area = at.areas + area_offset(tile);
    const bool exists = !WARPGROUP || tile < ROW_TILES;
    float weights[N][4] = {}, score_grads[N][4] = {};
#if WARPGROUP
    multiply_rows(weights, at.queries + tile * TILE_BYTES, at.keys, exists, lane);
    multiply_rows(score_grads, at.grads + tile * TILE_BYTES, at.values, exists, lane);
    wgmma_wait_group<1>();
#else
    multiply_rows(weights, at.queries + tile * TILE_BYTES, at.keys, STEPS, lane);
    multiply_rows(score_grads, at.grads + tile * TILE_BYTES, at.values, STEPS, lane);
#endif
    float norm[2] = {};
    if (exists) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            norm[half] = exponentials_of_row(weights, half, 16 * tile + 8 * half + group, quad, scale, bias);
        }
    }
#if WARPGROUP
    wgmma_wait_group<0>();
#endif
    if (AREAS_REPLACE_VALUES) sync_problem();
    if (exists) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) differentiate_row(weights, score_grads, half, norm[half]);
        if (FRAMES % 16 > 0 && tile == ROW_TILES - 1) {
            // Padding is multiplied with rows of zeros.
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const bool is_padding = 16 * tile + i / 2 * 8 + group >= FRAMES;
#pragma unroll
                for (u32 n = 0; n < N; ++n) {
                    if (is_padding) weights[n][i] = score_grads[n][i] = 0.f;
                }
            }
        }
        store_bias_grads(of, score_grads, tile, 0, lane);
#if BIAS_GRAD
        const float zeros[2][4] = {};
        for (u32 step = STEPS; step < KEY_STEPS; ++step) store_bias_grads(of, zeros, tile, step, lane);
#endif
    }
    Operand operands[STEPS];
#pragma unroll
    for (u32 s = 0; s < STEPS; ++s) operands[s] = operand_of_step(score_grads, s);
#pragma unroll
    for (u32 first = 0; first < COLUMN_TILES; first += COLUMN_BLOCK) {
        float sums[COLUMN_BLOCK][4] = {};
#if WARPGROUP
        wgmma_fence();
#pragma unroll
        for (u32 s = 0; s < STEPS; ++s) multiply_step(sums, operands[s], at.keys, s * TILE_BYTES, s > 0);
        wgmma_commit_wait();
#else
#pragma unroll
        for (u32 s = 0; s < STEPS; ++s) multiply_step(sums, operands[s], at.keys + s * TILE_BYTES, first, lane);
#endif
        const u32 rows = FRAMES % 16 == 0 ? 16 : FRAMES - 16 * tile;
        if (exists) store_block(of.dq + 16 * tile * ROW(dq), ROW(dq), rows, sums, first, scale, area, lane);
    }
    if (!exists) return;
#pragma unroll
    for (u32 s = 0; s < STEPS; ++s) {
        store_operand(area + s * AREA_UNIT, operand_of_step(weights, s), lane);
        store_operand(area + s * AREA_UNIT + SQUARE_BYTES, operands[s], lane);
    }
}
template <u32 STEPS = KEY_STEPS>
__device__ inline void compute_seen(const Tensors &of, const Bias &bias, const Places &at, u32 tile, u32 lane,
                                    float scale STRIDES_OF_PROBLEM) {
    if constexpr (SKIPS && STEPS > 1) {
        if (tile + 1 < STEPS) return compute_seen<STEPS - 1>(of, bias, at, tile, lane, scale STRIDES_ARGUMENT);
    }
    compute_tile<STEPS>(of, bias, at, tile, lane, scale STRIDES_ARGUMENT);
}

#if !WARPGROUP
// For dv or dk, a warp multiplies a group of steps of keys at once, as many as fit into its registers and keep all warps busy.
constexpr u32 KEY_WARPS = least(WARPS, KEY_STEPS);
__device__ constexpr u32 group_turns(u32 steps) { return divide_up(2 * divide_up(KEY_STEPS, steps), KEY_WARPS); }
__device__ constexpr u32 best_group() {
    u32 best = 1;
    for (u32 steps = 2; steps <= KEY_STEPS && steps * COLUMN_BLOCK <= 16; ++steps) {
        if (group_turns(steps) * steps <= group_turns(best) * best) best = steps;
    }
    return best;
}
constexpr u32 GROUP_STEPS = best_group();
constexpr u32 GROUPS = divide_up(KEY_STEPS, GROUP_STEPS);
// Products in f32 of several turns need too many registers.
constexpr u32 UNROLLED_TURNS = ELEMENT == F32 && KEY_STEPS * COLUMN_BLOCKS > 1 ? 1 : 2 * GROUPS;

// dv or dk of a group of steps of keys: the squares at `squares` times rows of grad or q.
template <u32 GROUP = GROUPS - 1>
__device__ inline void compute_group(Element *to, u64 stride, u32 squares, u32 rows, u32 group, u32 stage, float factor, u32 lane) {
    if constexpr (GROUP > 0 && (SKIPS || (GROUP == GROUPS - 1 && KEY_STEPS % GROUP_STEPS > 0))) {
        if (group < GROUP) return compute_group<GROUP - 1>(to, stride, squares, rows, group, stage, factor, lane);
    }
    constexpr u32 STEPS = least(GROUP_STEPS, KEY_STEPS - GROUP * GROUP_STEPS), FIRST_TILE = SKIPS ? GROUP * GROUP_STEPS : 0;
    const u32 first_step = group * GROUP_STEPS;
#pragma unroll
    for (u32 first = 0; first < COLUMN_TILES; first += COLUMN_BLOCK) {
        float sums[STEPS][COLUMN_BLOCK][4] = {};
#pragma unroll
        for (u32 tile = FIRST_TILE; tile < ROW_TILES; ++tile) {
            const u32 square = squares + area_offset(tile) + first_step * AREA_UNIT;
            Operand a[STEPS] = {};
#pragma unroll
            for (u32 s = 0; s < STEPS; ++s) {
                if (!SKIPS || FIRST_TILE + s <= tile) a[s] = transposed(square + s * AREA_UNIT, lane);
            }
            multiply_step(sums, a, rows + tile * TILE_BYTES, first, lane);
        }
#pragma unroll
        for (u32 s = 0; s < STEPS; ++s) {
            const u32 step = first_step + s, exist = KEYS % 16 == 0 ? 16 : KEYS - 16 * step;
            store_block(to + 16 * step * stride, stride, exist, sums[s], first, factor, stage, lane);
        }
    }
}
#endif

// Also loads the bias of the problem `after` it, and asks for its tensors if there are `more` problems.
__device__ inline void compute_problem(const Tensors &of, Bias &bias, const Tensors &after, bool more, u32 base, u32 areas, u32 warp, u32 lane,
                                       float scale STRIDES_OF_PROBLEM) {
    if (STAGES == 1 && more) prefetch_problem(after, warp * WARP + lane STRIDES_ARGUMENT);
    const Places at{base, base + QUERY_BYTES, base + 2 * QUERY_BYTES, base + VALUES, areas};

    // All warps of a group take part in its products.
    constexpr u32 ROUNDED_TILES = WARPGROUP ? divide_up(ROW_TILES, 4) * 4 : ROW_TILES;
    if (AREAS_REPLACE_VALUES && warp >= ROUNDED_TILES) sync_problem();
    for (u32 turn = 0; turn < ROUNDED_TILES; turn += WARPS) {
        const u32 tile = tile_of_turn(turn, warp);
        if (ROUNDED_TILES % WARPS > 0 && tile >= ROUNDED_TILES) break;
        compute_seen(of, bias, at, tile, lane, scale STRIDES_ARGUMENT);
        if (BIAS && turn + WARPS < ROW_TILES) bias = load_bias(of, tile_of_turn(turn + WARPS, warp), lane STRIDES_ARGUMENT);
    }
#if BIAS
    if (ROUNDS > 1 && (ROW_TILES > WARPS || after.bias != of.bias)) bias = load_bias(after, warp, lane STRIDES_ARGUMENT);
#endif
    sync_problem();

    // A warp that reads k is before the barrier.
#if WARPGROUP
    constexpr u32 ROUNDED_STEPS = divide_up(KEY_STEPS, 4) * 4;
    for (u32 turn = 0; turn < ROUNDED_STEPS; turn += WARPS) {
        const u32 step = tile_of_turn(turn, warp);
        if (ROUNDED_STEPS % WARPS > 0 && step >= ROUNDED_STEPS) break;
        const bool exists = step < KEY_STEPS;
        const u32 rows = KEYS % 16 == 0 ? 16 : KEYS - 16 * step;
        const u32 stage = at.keys + step * STAGE_BYTES;
        float value_sums[COLUMN_BLOCK][4] = {}, key_sums[COLUMN_BLOCK][4] = {};
        Operand of_values[ROW_TILES] = {}, of_keys[ROW_TILES] = {};
        if (exists) {
#pragma unroll
            for (u32 tile = 0; tile < ROW_TILES; ++tile) {
                of_values[tile] = transposed(areas + area_offset(tile) + step * AREA_UNIT, lane);
                of_keys[tile] = transposed(areas + area_offset(tile) + step * AREA_UNIT + SQUARE_BYTES, lane);
            }
        }
        wgmma_fence();
#pragma unroll
        for (u32 tile = 0; tile < ROW_TILES; ++tile) multiply_step(value_sums, of_values[tile], at.grads, tile * TILE_BYTES, tile > 0);
        wgmma_commit_group();
#pragma unroll
        for (u32 tile = 0; tile < ROW_TILES; ++tile) multiply_step(key_sums, of_keys[tile], at.queries, tile * TILE_BYTES, tile > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (exists) store_block(of.dv + 16 * step * ROW(dv), ROW(dv), rows, value_sums, 0, 1.f, stage, lane);
        wgmma_wait_group<0>();
        if (exists) store_block(of.dk + 16 * step * ROW(dk), ROW(dk), rows, key_sums, 0, scale, stage, lane);
    }
#else
#pragma unroll (UNROLLED_TURNS)
    for (u32 turn = 0; turn < 2 * GROUPS; turn += KEY_WARPS) {
        const u32 job = turn + (CAUSAL && turn / KEY_WARPS % 2 ? KEY_WARPS - 1 - warp : warp);
        if ((KEY_WARPS < WARPS && warp >= KEY_WARPS) || (2 * GROUPS % KEY_WARPS > 0 && job >= 2 * GROUPS)) continue;
        const bool of_keys = job % 2;
        compute_group(of_keys ? of.dk : of.dv, of_keys ? ROW(dk) : ROW(dv), areas + (of_keys ? SQUARE_BYTES : 0),
                      of_keys ? at.queries : at.grads, job / 2, at.keys + warp * STAGE_BYTES, of_keys ? scale : 1.f, lane);
    }
#endif
}

__device__ inline void start_problem(const Tensors &of, u32 to, bool, u32 thread STRIDES_OF_PROBLEM) {
    load_problem(of, to, thread STRIDES_ARGUMENT);
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS *PROBLEMS, BLOCKS)
    attention_backward(const Element *__restrict__ q, const Element *__restrict__ k, const Element *__restrict__ v,
                       const Element *__restrict__ grad, Element *__restrict__ dq, Element *__restrict__ dk,
                       Element *__restrict__ dv, BIAS_GRAD_PARAMETER BIAS_PARAMETER u64 items, u32 heads,
                       BACKWARD_STRIDES_PARAMETER float scale) {
    const Overlap overlap;
    extern __shared__ __align__(1024) uint4 shared[];
    // With several rounds, addresses that the compiler takes for different ones in each thread are faster.
    constexpr u32 SLOTS = PROBLEMS == 1 && ROUNDS == 1 ? 1 : PROBLEMS + 1;
    const u32 slot = SLOTS == 1 ? 0 : threadIdx.x / THREADS, thread = threadIdx.x % THREADS, lane = thread % WARP;
#if WARPGROUP
    const u32 warp = thread / WARP;
#else
    // A shuffle tells the compiler that all lanes have the same value.
    const u32 warp = WARPS == 1 ? 0 : __shfl_sync(ALL_LANES, thread / WARP, 0);
#endif
    const u32 base = u32(__cvta_generic_to_shared(shared)) + slot * PROBLEM_BYTES;
    const u64 first = (linear_block_index() * PROBLEMS + (PROBLEMS == 1 ? 0 : slot)) * ROUNDS, problems = items * heads;
    if (first >= problems) return;
    const Tensors all{q, k, v, grad, dq, dk, dv, BIAS_GRAD_ARGUMENT BIAS_ARGUMENT};

    Position position = position_of(first, heads);
    Bias bias_of_tile = load_bias(tensors_of(all, position STRIDES_ARGUMENT), warp, lane STRIDES_ARGUMENT);
    for (u32 round = 0; round < ROUNDS; ++round) {
        const bool more = round + 1 < ROUNDS && position.number + 1 < problems;
        const Position next = more ? next_position(position, heads) : position;
        const Tensors of = tensors_of(all, position STRIDES_ARGUMENT), after = tensors_of(all, next STRIDES_ARGUMENT);
        const u32 stage = base + (STAGES == 2 ? round % 2 * TENSORS_BYTES : 0);
        if (STAGES == 1 || round == 0) start_problem(of, stage, round == 0, thread STRIDES_ARGUMENT);
        if (STAGES == 2 && more) {
            load_problem(after, base + (round + 1) % 2 * TENSORS_BYTES, thread STRIDES_ARGUMENT);
            cp_async_wait_group<1>();
        } else {
            cp_async_wait_group<0>();
        }
#if WARPGROUP
        fence_proxy_async();
#endif
        sync_problem();
        compute_problem(of, bias_of_tile, after, more, stage, base + AREAS, warp, lane, scale STRIDES_ARGUMENT);
        if (!more) return;
        // No warp reads this round's problem any more.
        sync_problem();
        position = next;
    }
}
