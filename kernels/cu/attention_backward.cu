// The gradients of attention on tensor cores, compiled for the shape. The softmax is computed again from q and k.
//
// Contract (attention.cu has the common part)
//   macros      FRAMES and KEYS are 1 to 128, HEAD_DIM is a multiple of 8 (of 4 for F32) up to 512. WARPS warps share a
//               problem, and PROBLEMS problems are side by side in a block.
//   layout      grad (of out) and dq are as q, dk as k, dv as v. Elements of dq, dk and dv do not overlap.
//   arguments   q, k, v, grad, dq, dk, dv (addresses of the chunk's first item), [bias], items of the chunk (u64),
//               heads (u32), [strides], scale (f32).
//   block       32 * WARPS * PROBLEMS threads on x.
//   shared      dynamic: of each problem q, grad, k and v, with rows rounded up to 16, then weights and gradients of
//               scores, which take the place of v if there are no more tiles of queries than warps.
//   arithmetic  F16 and BF16: m16n8k16 (m16n8k8 on sm_75) with f32 accumulation; weights and gradients of scores are
//               rounded to the element type before they are multiplied. F32: three m16n8k8 products in TF32, so that a
//               product of two elements has an error of at most 2^-20. No atomics: each sum has a fixed order.
//   needs       sm_75 for F16, sm_80 for BF16 and F32.
//
// First each warp takes tiles of 16 queries, with all keys: P = softmax(scale * q k^T + bias), dP = grad v^T,
// dS = P (dP - sum(P dP)), dq = scale * dS k. Then each warp takes tiles of 16 keys, with all queries: dv = P^T grad,
// dk = scale * dS^T q.

constexpr u32 ROW_TILES = divide_up(FRAMES, 16);
constexpr u32 KEY_STEPS = divide_up(KEYS, 16);
constexpr u32 KEY_TILES = 2 * KEY_STEPS;
constexpr u32 COLUMN_TILES = divide_up(HEAD_DIM, 8);
// A warp multiplies as many tiles of 8 columns at once as fit into its registers, an even number of them if there are more.
constexpr u32 COLUMN_BLOCKS = divide_up(COLUMN_TILES, 10);
constexpr u32 COLUMN_BLOCK = COLUMN_BLOCKS == 1 ? COLUMN_TILES : divide_up(COLUMN_TILES, 2 * COLUMN_BLOCKS) * 2;
// Vectors of 16 bytes of a row of a tensor, of a row of scores, and of a row of a block of columns.
constexpr u32 VECTORS = HEAD_DIM / WIDTH;
constexpr u32 SCORE_VECTORS = 16 * KEY_STEPS / WIDTH;
constexpr u32 BLOCK_VECTORS = COLUMN_BLOCK * 8 / WIDTH;
constexpr u32 VECTOR_BYTES = 16;

constexpr u32 TILE_BYTES = 16 * VECTORS * VECTOR_BYTES;
constexpr u32 SCORE_BYTES = 16 * SCORE_VECTORS * VECTOR_BYTES;
constexpr u32 BLOCK_BYTES = 16 * BLOCK_VECTORS * VECTOR_BYTES;
// Of a tile of queries: first a block of columns of dq, then the weights and the gradients of the scores.
constexpr u32 AREA_BYTES = 2 * SCORE_BYTES > BLOCK_BYTES ? 2 * SCORE_BYTES : BLOCK_BYTES;
constexpr u32 QUERY_BYTES = ROW_TILES * TILE_BYTES;
// k and v have a place for a block of columns of each tile of dv and dk.
constexpr u32 STAGE_BYTES = TILE_BYTES > BLOCK_BYTES ? TILE_BYTES : BLOCK_BYTES;
constexpr u32 KEY_BYTES = KEY_STEPS * STAGE_BYTES;
// If each warp has one tile of queries, all have read v before one writes its area.
constexpr bool AREAS_REPLACE_VALUES = ROW_TILES <= WARPS;
constexpr u32 VALUES = 2 * QUERY_BYTES + KEY_BYTES;
constexpr u32 AREAS = AREAS_REPLACE_VALUES ? VALUES : VALUES + KEY_BYTES;
constexpr u32 AREAS_END = AREAS + ROW_TILES * AREA_BYTES;
constexpr u32 PROBLEM_BYTES = AREAS_END > VALUES + KEY_BYTES ? AREAS_END : VALUES + KEY_BYTES;

// The offset of a vector in rows of COUNT vectors. The vectors of a row are permuted by the row's number, so that
// eight rows of a column use different banks.
template <u32 COUNT>
__device__ inline u32 swizzled(u32 row, u32 vector) {
    constexpr u32 PANEL = COUNT % 8 == 0 ? 8 : COUNT % 4 == 0 ? 4 : COUNT % 2 == 0 ? 2 : 1;
    return (row * COUNT + (vector ^ row % 8 / (8 / PANEL))) * VECTOR_BYTES;
}

struct BackwardStrides {
    Stride q, k, v, grad, dq, dk, dv;
#if BIAS
    Stride bias;
#endif
};
#if STRIDED
#define BACKWARD_STRIDES_PARAMETER const BackwardStrides strides,
#else
#define BACKWARD_STRIDES_PARAMETER
#endif

// Starts copies of the ROWS rows of a tensor, and fills the last tile with zeros.
template <u32 ROWS>
__device__ inline void load_rows(u32 to, const Element *__restrict__ from, u64 stride, u32 thread) {
    constexpr u32 COUNT = divide_up(ROWS, 16) * 16 * VECTORS;
#pragma unroll
    for (u32 first = 0; first < COUNT; first += THREADS) {
        const u32 index = first + thread, row = index / VECTORS, vector = index % VECTORS;
        if (first + THREADS <= COUNT || index < COUNT) {
            const u32 at = to + swizzled<VECTORS>(row, vector);
            if (ROWS % 16 == 0 || row < ROWS) {
                cp_async_16(at, from + row * stride + vector * WIDTH);
            } else {
                st_shared_v4(at, uint4{0, 0, 0, 0});
            }
        }
    }
}

// An operand of 16 rows and 16 columns: from sums of products, or the transposed scores at `scores` of 16 keys.
#if ELEMENT == F32
struct Operand {
    float x[2][4];
};
__device__ inline Operand operand_of(const float (&even)[4], const float (&odd)[4]) {
    // The columns 2t and 2t + 1 of a tile of 8 are in lane t, where the instruction expects t and t + 4.
    return Operand{{{even[0], even[2], even[1], even[3]}, {odd[0], odd[2], odd[1], odd[3]}}};
}
__device__ inline Operand transposed(u32 scores, u32 step, u32 lane) {
    const u32 group = lane / 4, quad = lane % 4;
    Operand operand;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            // Queries in the order of `multiply_step`: 2t, then 2t + 1.
            const u32 row = 8 * half + 2 * quad + i / 2, column = 16 * step + i % 2 * 8 + group;
            operand.x[half][i] = ld_shared_f32(scores + swizzled<SCORE_VECTORS>(row, column / 4) + column % 4 * 4);
        }
    }
    return operand;
}

// c += a b for 16 columns of a and 16 rows of b, of which COLUMN_BLOCK tiles of columns from `first` on.
__device__ inline void multiply_step(float (&c)[COLUMN_BLOCK][4], const Operand &a, u32 tile, u32 first, u32 lane) {
    const u32 group = lane / 4, quad = lane % 4;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const Tf32x2<4> split(a.x[half]);
#pragma unroll
        for (u32 j = 0; j < COLUMN_BLOCK; ++j) {
            const u32 column = (first + j) * 8 + group;
            if (first + j >= COLUMN_TILES) continue;
            float b[2] = {};
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u32 at = tile + swizzled<VECTORS>(8 * half + 2 * quad + i, column / 4) + column % 4 * 4;
                if (HEAD_DIM % 8 == 0 || column < HEAD_DIM) b[i] = ld_shared_f32(at);
            }
            mma_3xtf32(c[j], split, Tf32x2<2>(b));
        }
    }
}

// Two neighbouring tiles of 8 keys times 16 queries: c += a b^T for rows of q or grad and of k or v.
__device__ inline void multiply_rows(float (&c)[KEY_TILES][4], u32 rows, u32 others, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < VECTORS; i += 2) {
        const bool is_whole = i + 2 <= VECTORS;
        u32 a[4] = {};
        if (is_whole) {
            ldmatrix_x4(a, rows + swizzled<VECTORS>(lane % 16, i + lane / 16));
        } else {
            ldmatrix_x2(a[0], a[1], rows + swizzled<VECTORS>(lane % 16, i));
        }
        const Tf32x2<4> split(a);
#pragma unroll
        for (u32 s = 0; s < KEY_STEPS; ++s) {
            u32 b[4] = {};
            const u32 tile = others + s * TILE_BYTES;
            if (is_whole) {
                ldmatrix_x4(b, tile + swizzled<VECTORS>(lane / 16 * 8 + lane % 8, i + lane / 8 % 2));
            } else {
                ldmatrix_x2(b[0], b[2], tile + swizzled<VECTORS>(lane % 16, i));
            }
            const u32 even[2] = {b[0], b[1]}, odd[2] = {b[2], b[3]};
            mma_3xtf32(c[2 * s], split, Tf32x2<2>(even));
            mma_3xtf32(c[2 * s + 1], split, Tf32x2<2>(odd));
        }
    }
}

// Two neighbouring columns of a row, from an even one on.
template <u32 COUNT>
__device__ inline void store_two(u32 rows, u32 row, u32 column, float x, float y) {
    st_shared_v2_f32(rows + swizzled<COUNT>(row, column / 4) + column % 4 * 4, x, y);
}
#else
struct Operand {
    u32 x[4];
};
__device__ inline Operand operand_of(const float (&even)[4], const float (&odd)[4]) {
    return Operand{{cvt_rn_x2(even[0], even[1]), cvt_rn_x2(even[2], even[3]), cvt_rn_x2(odd[0], odd[1]),
                    cvt_rn_x2(odd[2], odd[3])}};
}
__device__ inline Operand transposed(u32 scores, u32 step, u32 lane) {
    Operand operand;
    const u32 row = lane / 16 * 8 + lane % 8;
    ldmatrix_x4_trans(operand.x, scores + swizzled<SCORE_VECTORS>(row, 2 * step + lane / 8 % 2));
    return operand;
}

__device__ inline void multiply_step(float (&c)[COLUMN_BLOCK][4], const Operand &a, u32 tile, u32 first, u32 lane) {
    const u32(&x)[4] = a.x;
#pragma unroll
    for (u32 j = 0; j < COLUMN_BLOCK; j += 2) {
        u32 b[4];
        if (first + j + 2 <= COLUMN_TILES && j + 2 <= COLUMN_BLOCK) {
            ldmatrix_x4_trans(b, tile + swizzled<VECTORS>(lane % 16, first + j + lane / 16));
            mma_m16n8k16(c[j + 1], x[0], x[1], x[2], x[3], b[2], b[3]);
        } else if (first + j < COLUMN_TILES) {
            ldmatrix_x2_trans(b[0], b[1], tile + swizzled<VECTORS>(lane % 16, first + j));
        } else {
            continue;
        }
        mma_m16n8k16(c[j], x[0], x[1], x[2], x[3], b[0], b[1]);
    }
}

__device__ inline void multiply_rows(float (&c)[KEY_TILES][4], u32 rows, u32 others, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < VECTORS; i += 2) {
        u32 a[4];
        if (i + 2 <= VECTORS) {
            ldmatrix_x4(a, rows + swizzled<VECTORS>(lane % 16, i + lane / 16));
        } else {
            ldmatrix_x2(a[0], a[1], rows + swizzled<VECTORS>(lane % 16, i));
        }
#pragma unroll
        for (u32 s = 0; s < KEY_STEPS; ++s) {
            u32 b[4];
            const u32 tile = others + s * TILE_BYTES;
            if (i + 2 <= VECTORS) {
                ldmatrix_x4(b, tile + swizzled<VECTORS>(lane / 16 * 8 + lane % 8, i + lane / 8 % 2));
                mma_m16n8k16(c[2 * s], a[0], a[1], a[2], a[3], b[0], b[1]);
                mma_m16n8k16(c[2 * s + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            } else {
                ldmatrix_x2(b[0], b[1], tile + swizzled<VECTORS>(lane % 16, i));
                mma_m16n8k8(c[2 * s], a[0], a[1], b[0]);
                mma_m16n8k8(c[2 * s + 1], a[0], a[1], b[1]);
            }
        }
    }
}

template <u32 COUNT>
__device__ inline void store_two(u32 rows, u32 row, u32 column, float x, float y) {
    st_shared_u32(rows + swizzled<COUNT>(row, column / 8) + column % 8 * 2, cvt_rn_x2(x, y));
}
#endif

// Stores a block of columns of 16 rows of a gradient, of which `rows` exist, through the shared memory at `stage`.
__device__ inline void store_block(Element *__restrict__ to, u64 stride, u32 rows, const float (&c)[COLUMN_BLOCK][4],
                                   u32 first, float factor, u32 stage, u32 lane) {
    const u32 group = lane / 4, quad = lane % 4;
    __syncwarp();
#pragma unroll
    for (u32 j = 0; j < COLUMN_BLOCK; ++j) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 column = 8 * j + 2 * quad;
            // The last tile of F32 may have four columns.
            if (BLOCK_VECTORS * WIDTH == COLUMN_BLOCK * 8 || column < BLOCK_VECTORS * WIDTH) {
                store_two<BLOCK_VECTORS>(stage, 8 * half + group, column, c[j][2 * half] * factor,
                                         c[j][2 * half + 1] * factor);
            }
        }
    }
    __syncwarp();
    constexpr u32 COUNT = 16 * BLOCK_VECTORS;
    const u32 column = first * 8 / WIDTH;
#pragma unroll
    for (u32 from = 0; from < COUNT; from += WARP) {
        const u32 index = from + lane, row = index / BLOCK_VECTORS, vector = index % BLOCK_VECTORS;
        if ((from + WARP <= COUNT || index < COUNT) && row < rows && column + vector < VECTORS) {
            const uint4 x = ld_shared_v4(stage + swizzled<BLOCK_VECTORS>(row, vector));
            __stcs(reinterpret_cast<uint4 *>(to + row * stride + (column + vector) * WIDTH), x);
        }
    }
    __syncwarp();
}

// Replaces the scores of a row, two of each tile in this lane, by their weights, and the gradients of these weights by
// the gradients of the scores.
__device__ inline void differentiate_row(float (&scores)[KEY_TILES][4], float (&grads)[KEY_TILES][4], u32 half, u32 row,
                                         u32 quad, float scale, const Problem &problem) {
    float row_max = LOWEST;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            score = masked_score(score, row, 8 * n + 2 * quad + i, FRAMES, KEYS, scale, problem);
            row_max = fmaxf(row_max, score);
        }
    }
    const float shift = score_shift(group_max<4>(row_max), scale);
    float sum = 0.f;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            score = ex2_approx(score * score_factor(scale) - shift);
            sum += score;
        }
    }
    const float norm = reciprocal_of_sum(group_sum<4>(sum));
    float delta = 0.f;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const bool exists = 8 * n + 2 * quad + i < KEYS;
            float &weight = scores[n][2 * half + i];
            // Padding is multiplied with rows of zeros.
            weight = row < FRAMES && exists ? weight * norm : 0.f;
            if (exists) delta += weight * grads[n][2 * half + i];
        }
    }
    delta = group_sum<4>(delta);
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &grad = grads[n][2 * half + i];
            const bool exists = row < FRAMES && 8 * n + 2 * quad + i < KEYS;
            grad = exists ? scores[n][2 * half + i] * (grad - delta) : 0.f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS *PROBLEMS, 1)
    attention_backward(const Element *__restrict__ q, const Element *__restrict__ k, const Element *__restrict__ v,
                       const Element *__restrict__ grad, Element *__restrict__ dq, Element *__restrict__ dk,
                       Element *__restrict__ dv, BIAS_PARAMETER u64 items, u32 heads,
                       BACKWARD_STRIDES_PARAMETER float scale) {
    const Overlap overlap;
    extern __shared__ uint4 shared[];
    const u32 slot = threadIdx.x / THREADS, thread = threadIdx.x % THREADS, warp = thread / WARP, lane = thread % WARP;
    const u32 base = u32(__cvta_generic_to_shared(shared)) + slot * PROBLEM_BYTES;
    const u64 number = linear_block_index() * PROBLEMS + slot;
    if (number >= items * heads) return;
#if STRIDED
    const u64 item = number / heads, head = number % heads;
    const auto offset = [&](const Stride &stride) { return item * stride.item + head * stride.head; };
    q += offset(strides.q), k += offset(strides.k), v += offset(strides.v), grad += offset(strides.grad);
    dq += offset(strides.dq), dk += offset(strides.dk), dv += offset(strides.dv);
#define ROW(tensor) strides.tensor.frame
#else
    const u64 first_query = number * (FRAMES * HEAD_DIM), first_key = number * (KEYS * HEAD_DIM);
    q += first_query, grad += first_query, dq += first_query;
    k += first_key, v += first_key, dk += first_key, dv += first_key;
#define ROW(tensor) u64(HEAD_DIM)
#endif
    Problem problem{};
#if BIAS && STRIDED
    problem.bias = bias + offset(strides.bias), problem.bias_stride = strides.bias.frame;
#elif BIAS
    problem.bias = bias, problem.bias_stride = KEYS;
#endif

    const u32 queries = base, grads = queries + QUERY_BYTES, keys = grads + QUERY_BYTES, values = base + VALUES;
    const auto area = [&](u32 tile) { return base + AREAS + tile * AREA_BYTES; };
    load_rows<FRAMES>(queries, q, ROW(q), thread);
    load_rows<KEYS>(keys, k, ROW(k), thread);
    load_rows<FRAMES>(grads, grad, ROW(grad), thread);
    load_rows<KEYS>(values, v, ROW(v), thread);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    sync_problem();

    const u32 group = lane / 4, quad = lane % 4;
    if (AREAS_REPLACE_VALUES && warp >= ROW_TILES) sync_problem();
    for (u32 tile = warp; tile < ROW_TILES; tile += WARPS) {
        float weights[KEY_TILES][4] = {}, score_grads[KEY_TILES][4] = {};
        multiply_rows(weights, queries + tile * TILE_BYTES, keys, lane);
        multiply_rows(score_grads, grads + tile * TILE_BYTES, values, lane);
        if (AREAS_REPLACE_VALUES) sync_problem();
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            differentiate_row(weights, score_grads, half, 16 * tile + 8 * half + group, quad, scale * LOG2_E, problem);
        }
#pragma unroll
        for (u32 first = 0; first < COLUMN_TILES; first += COLUMN_BLOCK) {
            float sums[COLUMN_BLOCK][4] = {};
#pragma unroll
            for (u32 s = 0; s < KEY_STEPS; ++s) {
                const Operand a = operand_of(score_grads[2 * s], score_grads[2 * s + 1]);
                multiply_step(sums, a, keys + s * TILE_BYTES, first, lane);
            }
            store_block(dq + 16 * tile * ROW(dq), ROW(dq), FRAMES - 16 * tile, sums, first, scale, area(tile), lane);
        }
#pragma unroll
        for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 row = 8 * half + group, column = 8 * n + 2 * quad;
                const float(&w)[4] = weights[n], (&s)[4] = score_grads[n];
                store_two<SCORE_VECTORS>(area(tile), row, column, w[2 * half], w[2 * half + 1]);
                store_two<SCORE_VECTORS>(area(tile) + SCORE_BYTES, row, column, s[2 * half], s[2 * half + 1]);
            }
        }
    }
    sync_problem();

    for (u32 step = warp; step < KEY_STEPS; step += WARPS) {
        const u32 rows = KEYS - 16 * step;
        // A warp that reads k is before the barrier.
        const u32 stage = keys + step * STAGE_BYTES;
#pragma unroll
        for (u32 first = 0; first < COLUMN_TILES; first += COLUMN_BLOCK) {
            float value_sums[COLUMN_BLOCK][4] = {}, key_sums[COLUMN_BLOCK][4] = {};
#pragma unroll
            for (u32 tile = 0; tile < ROW_TILES; ++tile) {
                multiply_step(value_sums, transposed(area(tile), step, lane), grads + tile * TILE_BYTES, first, lane);
                const Operand a = transposed(area(tile) + SCORE_BYTES, step, lane);
                multiply_step(key_sums, a, queries + tile * TILE_BYTES, first, lane);
            }
            store_block(dv + 16 * step * ROW(dv), ROW(dv), rows, value_sums, first, 1.f, stage, lane);
            store_block(dk + 16 * step * ROW(dk), ROW(dk), rows, key_sums, first, scale, stage, lane);
        }
    }
}
