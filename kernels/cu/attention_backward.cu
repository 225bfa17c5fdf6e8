// The gradients of attention on tensor cores, compiled for the shape. The softmax is computed again from q and k.
//
// Contract (attention.cu has the common part)
//   macros      FRAMES and KEYS are 1 to 128, HEAD_DIM is a multiple of 8 (of 4 for F32) up to 512. WARPS warps share a
//               problem, and PROBLEMS problems are side by side in a block. ROUNDS problems follow each other in each of
//               these slots. STAGES is 1, or 2 to load the next round's problem while this one is computed. BLOCKS is
//               the least number of blocks of a multiprocessor, which limits registers. If WARPGROUP is 1, WARPS is a
//               multiple of 4, PROBLEMS is 1, ELEMENT is not F32 and HEAD_DIM is at most 128. BIAS_GRAD is 1 for the
//               gradient of the bias. KEY_SLICE is for sliced_backward.cu.
//   layout      grad (of out) and dq are as q, dk as k, dv as v. Elements of dq, dk and dv do not overlap.
//               dbias is [items, heads, frames, keys] and contiguous.
//   arguments   q, k, v, grad, dq, dk, dv, [dbias] (addresses of the chunk's first item), [bias], items of the chunk
//               (u64), heads (u32), [strides], scale (f32).
//   block       32 * WARPS * PROBLEMS threads on x.
//   shared      dynamic: for each problem STAGES times q, grad, k and v, with rows rounded up to 16, then weights and
//               gradients of scores. These take the place of v if there is one stage and a warp for each tile of queries.
//   arithmetic  F16 and BF16: m16n8k16 (m16n8k8 on sm_75) or wgmma with f32 accumulation; weights and gradients of scores are
//               rounded to the element type before they are multiplied. F32: three m16n8k8 products in TF32, which
//               have an error of at most 2^-19 of each product. No atomics: each sum has a fixed order.
//   needs       sm_75 for F16, sm_80 for BF16 and F32, sm_90a with WARPGROUP.
//
// First each warp takes tiles of 16 queries, with all keys: P = softmax(scale * q k^T + bias), dP = grad v^T,
// dS = P (dP - sum(P dP)), dq = scale * dS k. Then each warp takes tiles of 16 keys, with all queries: dv = P^T grad,
// dk = scale * dS^T q.

#ifndef KEY_SLICE
// If each warp has one tile of queries, all have read v before one writes its area.
constexpr bool AREAS_REPLACE_VALUES = ROW_TILES <= WARPS && STAGES == 1;
constexpr u32 AREAS = AREAS_REPLACE_VALUES ? VALUES : STAGES * TENSORS_BYTES;
// The area of a tile of queries has first a block of columns of dq, then of each step of seen keys a square of weights and
// one of gradients of scores.
constexpr u32 AREA_UNIT = 2 * SQUARE_BYTES;
__device__ constexpr u32 seen_steps(u32 tile) { return CAUSAL && !WARPGROUP && tile + 1 < KEY_STEPS ? tile + 1 : KEY_STEPS; }
__device__ constexpr u32 area_offset(u32 tile) {
    constexpr u32 LEAST = divide_up(BLOCK_BYTES, AREA_UNIT);
    u32 units = 0;
    for (u32 before = 0; before < tile; ++before) units += seen_steps(before) > LEAST ? seen_steps(before) : LEAST;
    return units * AREA_UNIT;
}
constexpr u32 AREAS_END = AREAS + area_offset(ROW_TILES);
constexpr u32 PROBLEM_BYTES = AREAS_END > TENSORS_BYTES ? AREAS_END : TENSORS_BYTES;

// The bias of a tile of queries, as products have it, for exponentials to base 2.
struct Bias {
#if BIAS
    float x[KEY_TILES][4];
#endif
};
__device__ inline Bias load_bias(const Tensors &of, u32 tile, u32 group, u32 quad STRIDES_OF_PROBLEM) {
    Bias bias;
#if BIAS
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 row = 16 * tile + i / 2 * 8 + group, column = 8 * n + 2 * quad + i % 2;
            const bool exists = row < FRAMES && column < KEYS;
            bias.x[n][i] = exists ? widen(of.bias[row * BIAS_ROW + column]) * LOG2_E : 0.f;
        }
    }
#endif
    return bias;
}

// Replaces the scores of a row, two of each tile in this lane, by exp(score - largest score). Returns 1 / their sum.
__device__ inline float exponentials_of_row(float (&scores)[KEY_TILES][4], u32 half, u32 row, u32 quad, u32 steps,
                                            float scale, const Bias &bias) {
    float row_max = LOWEST;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
        if (CAUSAL && !WARPGROUP && n >= 2 * steps) break;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            const u32 column = 8 * n + 2 * quad + i;
#if BIAS
            score = score * scale + bias.x[n][2 * half + i];
#endif
            if (column >= KEYS || (CAUSAL && column > row)) score = __int_as_float(0xff800000);
            row_max = fmaxf(row_max, score);
        }
    }
    const float shift = score_shift(group_max<4>(row_max), scale);
    float sum = 0.f;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
        if (CAUSAL && !WARPGROUP && n >= 2 * steps) break;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            score = ex2_approx(score * score_factor(scale) - shift);
            sum += score;
        }
    }
#if WARPGROUP
    return reciprocal_of_sum(group_sum<4>(sum));
#else
    sum = group_sum<4>(sum);
    return sum == 0.f ? 0.f : rcp_approx(sum);
#endif
}

// Replaces exponentials of a row by weights, and the gradients of the weights by the gradients of the scores.
__device__ inline void differentiate_row(float (&weights)[KEY_TILES][4], float (&grads)[KEY_TILES][4], u32 half, u32 row,
                                         u32 quad, u32 steps, float norm) {
    float delta = 0.f;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
        if (CAUSAL && !WARPGROUP && n >= 2 * steps) break;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &weight = weights[n][2 * half + i];
            weight *= norm;
            delta += weight * grads[n][2 * half + i];
        }
    }
    delta = group_sum<4>(delta);
    // Padding is multiplied with rows of zeros.
    const bool is_padding = FRAMES % 16 > 0 && row >= FRAMES;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
        if (CAUSAL && !WARPGROUP && n >= 2 * steps) break;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &weight = weights[n][2 * half + i], &grad = grads[n][2 * half + i];
            grad = weight * (grad - delta);
            if (is_padding) weight = grad = 0.f;
        }
    }
}

// The operand of a step of 16 keys. The last tile of eight may be missing.
__device__ inline Operand operand_of_step(const float (&x)[KEY_TILES][4], u32 step) {
    const float none[4] = {};
    return 2 * step + 1 < KEY_TILES ? operand_of(x[2 * step], x[2 * step + 1 < KEY_TILES ? 2 * step + 1 : 0]) : operand_of(x[2 * step], none);
}

__device__ inline void compute_problem(const Tensors &of, Bias &tile_bias, const Tensors &, bool, u32 base, u32 areas, u32 warp, u32 lane,
                                       float scale STRIDES_OF_PROBLEM) {
    const u32 queries = base, grads = queries + QUERY_BYTES, keys = grads + QUERY_BYTES, values = base + VALUES;
    const u32 group = lane / 4, quad = lane % 4;

    // All warps of a group take part in its products.
    constexpr u32 ROUNDED_TILES = WARPGROUP ? divide_up(ROW_TILES, 4) * 4 : ROW_TILES;
    constexpr u32 ROUNDED_STEPS = WARPGROUP ? divide_up(KEY_STEPS, 4) * 4 : KEY_STEPS;
    if (AREAS_REPLACE_VALUES && warp >= ROUNDED_TILES) sync_problem();
    for (u32 turn = 0; turn < ROUNDED_TILES; turn += WARPS) {
        const u32 tile = tile_of_turn(turn, warp);
        if (ROUNDED_TILES % WARPS > 0 && tile >= ROUNDED_TILES) break;
        const bool exists = !WARPGROUP || tile < ROW_TILES;
        const u32 steps = seen_steps(tile), area = areas + area_offset(tile);
        float weights[KEY_TILES][4] = {}, score_grads[KEY_TILES][4] = {};
#if WARPGROUP
        multiply_rows(weights, queries + tile * TILE_BYTES, keys, exists, lane);
        multiply_rows(score_grads, grads + tile * TILE_BYTES, values, exists, lane);
        wgmma_wait_group<1>();
#else
        multiply_rows(weights, queries + tile * TILE_BYTES, keys, steps, lane);
        multiply_rows(score_grads, grads + tile * TILE_BYTES, values, steps, lane);
#endif
        float norm[2] = {};
        if (exists) {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 row = 16 * tile + 8 * half + group;
                norm[half] = exponentials_of_row(weights, half, row, quad, steps, scale * LOG2_E, tile_bias);
            }
        }
#if WARPGROUP
        wgmma_wait_group<0>();
#endif
        if (AREAS_REPLACE_VALUES) sync_problem();
        if (BIAS && turn + WARPS < ROW_TILES) tile_bias = load_bias(of, tile_of_turn(turn + WARPS, warp), group, quad STRIDES_ARGUMENT);
        if (exists) {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 row = 16 * tile + 8 * half + group;
                differentiate_row(weights, score_grads, half, row, quad, steps, norm[half]);
            }
            store_bias_grads(of, score_grads, tile, 0, lane);
        }
        Operand operands[KEY_STEPS];
#pragma unroll
        for (u32 s = 0; s < KEY_STEPS; ++s) operands[s] = operand_of_step(score_grads, s);
#pragma unroll
        for (u32 first = 0; first < COLUMN_TILES; first += COLUMN_BLOCK) {
            float sums[COLUMN_BLOCK][4] = {};
#if WARPGROUP
            wgmma_fence();
#pragma unroll
            for (u32 s = 0; s < KEY_STEPS; ++s) multiply_step(sums, operands[s], keys + s * TILE_BYTES, s > 0);
            wgmma_commit_wait();
#else
#pragma unroll
            for (u32 s = 0; s < KEY_STEPS; ++s) {
                if (CAUSAL && s >= steps) break;
                multiply_step(sums, operands[s], keys + s * TILE_BYTES, first, lane);
            }
#endif
            if (exists) store_block(of.dq + 16 * tile * ROW(dq), ROW(dq), FRAMES - 16 * tile, sums, first, scale, area, lane);
        }
        if (!exists) continue;
#pragma unroll
        for (u32 s = 0; s < KEY_STEPS; ++s) {
            if (CAUSAL && s >= steps) break;
            store_operand(area + s * AREA_UNIT, operand_of_step(weights, s), lane);
            store_operand(area + s * AREA_UNIT + SQUARE_BYTES, operands[s], lane);
        }
    }
    sync_problem();

    for (u32 turn = 0; turn < ROUNDED_STEPS; turn += WARPS) {
        const u32 step = tile_of_turn(turn, warp);
        if (ROUNDED_STEPS % WARPS > 0 && step >= ROUNDED_STEPS) break;
        const bool exists = !WARPGROUP || step < KEY_STEPS;
        const u32 rows = KEYS - 16 * step;
        // A warp that reads k is before the barrier.
        const u32 stage = keys + step * STAGE_BYTES;
#pragma unroll
        for (u32 first = 0; first < COLUMN_TILES; first += COLUMN_BLOCK) {
            float value_sums[COLUMN_BLOCK][4] = {}, key_sums[COLUMN_BLOCK][4] = {};
#if WARPGROUP
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
            for (u32 tile = 0; tile < ROW_TILES; ++tile) multiply_step(value_sums, of_values[tile], grads + tile * TILE_BYTES, tile > 0);
            wgmma_commit_group();
#pragma unroll
            for (u32 tile = 0; tile < ROW_TILES; ++tile) multiply_step(key_sums, of_keys[tile], queries + tile * TILE_BYTES, tile > 0);
            wgmma_commit_group();
            wgmma_wait_group<1>();
            if (exists) store_block(of.dv + 16 * step * ROW(dv), ROW(dv), rows, value_sums, first, 1.f, stage, lane);
            wgmma_wait_group<0>();
#else
#pragma unroll
            for (u32 tile = 0; tile < ROW_TILES; ++tile) {
                if (CAUSAL && seen_steps(tile) <= step) continue;
                multiply_step(value_sums, transposed(areas + area_offset(tile) + step * AREA_UNIT, lane), grads + tile * TILE_BYTES, first, lane);
                const Operand a = transposed(areas + area_offset(tile) + step * AREA_UNIT + SQUARE_BYTES, lane);
                multiply_step(key_sums, a, queries + tile * TILE_BYTES, first, lane);
            }
            store_block(of.dv + 16 * step * ROW(dv), ROW(dv), rows, value_sums, first, 1.f, stage, lane);
#endif
            if (exists) store_block(of.dk + 16 * step * ROW(dk), ROW(dk), rows, key_sums, first, scale, stage, lane);
        }
    }
}

__device__ inline void load_rest(const Tensors &of, u32 to, u32 thread STRIDES_OF_PROBLEM) {
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
    const u32 slot = SLOTS == 1 ? 0 : threadIdx.x / THREADS, thread = threadIdx.x % THREADS, warp = thread / WARP, lane = thread % WARP;
    const u32 base = u32(__cvta_generic_to_shared(shared)) + slot * PROBLEM_BYTES;
    const u64 first = (linear_block_index() * PROBLEMS + (PROBLEMS == 1 ? 0 : slot)) * ROUNDS, problems = items * heads;
    if (first >= problems) return;
    const Tensors all{q, k, v, grad, dq, dk, dv, BIAS_GRAD_ARGUMENT BIAS_ARGUMENT};

    Tensors of = tensors_of(all, first, heads STRIDES_ARGUMENT);
    load_problem(of, base, thread STRIDES_ARGUMENT);
    Bias bias_of_tile = load_bias(of, warp, lane / 4, lane % 4 STRIDES_ARGUMENT);
    for (u32 round = 0; round < ROUNDS; ++round) {
        const u64 next = first + round + 1;
        const bool more = ROUNDS > 1 && round + 1 < ROUNDS && next < problems;
        const u32 stage = base + (STAGES == 2 ? round % 2 * TENSORS_BYTES : 0);
        const Tensors after = tensors_of(all, more ? next : first, heads STRIDES_ARGUMENT);
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
#if BIAS
        if (ROW_TILES > WARPS || after.bias != of.bias) bias_of_tile = load_bias(after, warp, lane / 4, lane % 4 STRIDES_ARGUMENT);
#endif
        of = after;
        if (STAGES == 1) load_rest(of, base, thread STRIDES_ARGUMENT);
    }
}
