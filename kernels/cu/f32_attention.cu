// Temporal attention in f32, exactly (no tf32), forward: softmax(scale * q k^T + bias) v over the frames
// of each (item, head), compiled for the shape.
//
// Contract
//   macros      ELEMENT (F32), FRAMES and KEYS (1 to 128), HEAD_DIM (a multiple of 4 up to 160),
//               CAUSAL, BIAS, STRIDED (see attention_prelude.cu)
//               WARPS: warps that share a problem; PROBLEMS: problems side by side in a block
//   layout      q, out: [items, heads, FRAMES, HEAD_DIM], k, v: [items, heads, KEYS, HEAD_DIM], bias:
//               [FRAMES, KEYS]; where STRIDED any strides of the first three axes, also for a bias of
//               [items, heads, FRAMES, KEYS]; rows are contiguous; out overlaps none
//   grid        PROBLEMS problems a block, numbered item * heads + head, along one axis; the last block
//               may have fewer
//   block       32 * WARPS * PROBLEMS threads on x
//   shared      dynamic, for each problem k, v and the weights of a tile of each warp
//   arguments   q, k, v, out (addresses of the chunk's first item), [bias], items of the chunk (u64),
//               heads (u32), [strides], scale (f32)
//   alignment   16 bytes, strides too
//   arithmetic  f32 throughout, softmax in one pass; 64-bit offsets. A row whose every score is -inf
//               gives zeros
//   needs       sm_75
//
// A warp takes tiles of 16 queries, four for each lane: so each piece of a key or value that comes
// from shared memory serves four multiplications for each of its elements. Eight lanes share a query,
// each with every eighth piece of the head dimension; their parts of the scores are summed such that
// each of them ends up with two keys of 16.

constexpr u32 ROW_TILES = (FRAMES + 15) / 16;
constexpr u32 TILES = (ROW_TILES + WARPS - 1) / WARPS;
constexpr u32 BLOCK_KEYS = 16;
// Of them, those that a lane ends with.
constexpr u32 OWN_KEYS = BLOCK_KEYS / 8;
constexpr u32 KEY_BLOCKS = (KEYS + BLOCK_KEYS - 1) / BLOCK_KEYS;
// Lanes that share a query, queries of a lane, pieces of 16 bytes that it has of each.
constexpr u32 PARTS = 8;
constexpr u32 ROWS = 4;
constexpr u32 PIECES = HEAD_DIM / 4;
constexpr u32 OWN = (PIECES + PARTS - 1) / PARTS;

constexpr u32 TENSOR = KEYS * PIECES;
// A tile's weights, in float4; an odd number of them to a row, so that four rows meet different banks.
constexpr u32 WEIGHT_PITCH = BLOCK_KEYS / 4 + 1;
constexpr u32 WEIGHTS = 16 * WEIGHT_PITCH;
constexpr u32 PROBLEM_SIZE = 2 * TENSOR + WARPS * WEIGHTS;

__device__ inline void copy_tensor(float4 *to, const float *__restrict__ from, u32 thread, u64 stride) {
#pragma unroll
    for (u32 first = 0; first < TENSOR; first += THREADS) {
        const u32 piece = first + thread;
        if (first + THREADS <= TENSOR || piece < TENSOR) {
            const float *at = from + (STRIDED ? piece / PIECES * stride + piece % PIECES * 4 : piece * 4);
            copy_piece(u32(__cvta_generic_to_shared(to + piece)), at);
        }
    }
}

__device__ inline void multiply(float &sum, float4 a, float4 b) {
    sum += a.x * b.x, sum += a.y * b.y, sum += a.z * b.z, sum += a.w * b.w;
}
__device__ inline void multiply(float4 &sum, float a, float4 b) {
    sum.x += a * b.x, sum.y += a * b.y, sum.z += a * b.z, sum.w += a * b.w;
}

// Sums each lane's `2 * LEFT` keys with those of the lane `bit` away, and keeps one half of them.
template <u32 LEFT>
__device__ inline void halve(float (&scores)[ROWS][BLOCK_KEYS], u32 bit, bool upper) {
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
#pragma unroll
        for (u32 i = 0; i < LEFT; ++i) {
            const float low = scores[r][i], high = scores[r][i + LEFT];
            scores[r][i] = (upper ? high : low) + __shfl_xor_sync(ALL_LANES, upper ? low : high, bit);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS *PROBLEMS) f32_attention(ATTENTION_PARAMETERS) {
    const Overlap overlap;
    extern __shared__ float4 shared[];
    const u32 place = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
    const u32 warp = thread / WARP, lane = thread % WARP, part = lane % PARTS, group = lane / PARTS;
    float4 *const keys = shared + place * PROBLEM_SIZE, *const values = keys + TENSOR;
    float4 *const weights = values + TENSOR + warp * WEIGHTS;

    const u64 number = block_number() * PROBLEMS + place;
    if (number >= items * heads) return;
    const Problem problem = PROBLEM(number, FRAMES, KEYS, HEAD_DIM);
    copy_tensor(keys, problem.k, thread, problem.k_stride);
    commit();
    copy_tensor(values, problem.v, thread, problem.v_stride);
    commit();
    scale *= LOG2_E;

#pragma unroll 1
    for (u32 m = 0; m < TILES; ++m) {
        const u32 first_row = (warp + m * WARPS) * 16 + group;
        float4 query[ROWS][OWN], sums[ROWS][OWN];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            // A row past the last frame computes that one again and is not written.
            const float *row = problem.q + min(first_row + r * 4, FRAMES - 1) * problem.q_stride;
#pragma unroll
            for (u32 i = 0; i < OWN; ++i) {
                const u32 piece = i * PARTS + part;
                query[r][i] = sums[r][i] = float4{0.f, 0.f, 0.f, 0.f};
                if ((i + 1) * PARTS <= PIECES || piece < PIECES) {
                    query[r][i] = __ldcs(reinterpret_cast<const float4 *>(row + piece * 4));
                }
            }
        }
        float most[ROWS], total[ROWS];
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) most[r] = LOWEST, total[r] = 0.f;
        if (m == 0) {
            wait<1>();
            meet();
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
                    // Past the head dimension the query is zero, and so must the key be.
                    const u32 piece = i * PARTS + part;
                    const bool inside = (i + 1) * PARTS <= PIECES || piece < PIECES;
                    const float4 x = inside ? keys[key * PIECES + piece] : float4{0.f, 0.f, 0.f, 0.f};
#pragma unroll
                    for (u32 r = 0; r < ROWS; ++r) multiply(scores[r][n], query[r][i], x);
                }
            }
            halve<BLOCK_KEYS / 2>(scores, 4, part & 4);
            halve<BLOCK_KEYS / 4>(scores, 2, part & 2);
            halve<BLOCK_KEYS / 8>(scores, 1, part & 1);
            // Now this lane has those from here on.
            const u32 first_key = part * OWN_KEYS;
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) {
                const u32 row = first_row + r * 4;
                float highest = most[r];
#pragma unroll
                for (u32 i = 0; i < OWN_KEYS; ++i) {
                    float &score = scores[r][i];
                    const u32 key = block * BLOCK_KEYS + first_key + i;
                    score = score_of(score, row, key, FRAMES, KEYS, scale, problem);
                    highest = fmaxf(highest, score);
                }
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 1));
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 2));
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 4));
                const float shift = shift_of(highest, scale), factor = factor_of(scale);
                if (KEY_BLOCKS > 1) {
                    const float shrink = exp2_fast(shift_of(most[r], scale) - shift);
                    total[r] *= shrink;
                    most[r] = highest;
#pragma unroll
                    for (u32 i = 0; i < OWN; ++i) {
                        sums[r][i].x *= shrink, sums[r][i].y *= shrink, sums[r][i].z *= shrink, sums[r][i].w *= shrink;
                    }
                }
                float *to = reinterpret_cast<float *>(weights + (group + r * 4) * WEIGHT_PITCH) + first_key;
#pragma unroll
                for (u32 i = 0; i < OWN_KEYS; ++i) {
                    const float weight = exp2_fast(scores[r][i] * factor - shift);
                    total[r] += weight;
                    to[i] = weight;
                }
            }
            __syncwarp();
            if (m == 0 && block == 0) {
                wait<0>();
                meet();
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
                        const u32 piece = i * PARTS + part;
                        const bool inside = (i + 1) * PARTS <= PIECES || piece < PIECES;
                        const float4 x = inside ? values[key * PIECES + piece] : float4{0.f, 0.f, 0.f, 0.f};
#pragma unroll
                        for (u32 r = 0; r < ROWS; ++r) {
                            const float4 w = weight[r];
                            multiply(sums[r][i], j == 0 ? w.x : j == 1 ? w.y : j == 2 ? w.z : w.w, x);
                        }
                    }
                }
            }
            // The weights' place is written anew.
            __syncwarp();
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; ++r) {
            float sum = total[r];
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            sum += __shfl_xor_sync(ALL_LANES, sum, 4);
            const float norm = norm_of(sum);
            const u32 row = first_row + r * 4;
            if (row >= FRAMES) continue;
#pragma unroll
            for (u32 i = 0; i < OWN; ++i) {
                const u32 piece = i * PARTS + part;
                if ((i + 1) * PARTS <= PIECES || piece < PIECES) {
                    const float4 x = sums[r][i];
                    __stcs(reinterpret_cast<float4 *>(problem.out + row * problem.out_stride + piece * 4),
                           float4{x.x * norm, x.y * norm, x.z * norm, x.w * norm});
                }
            }
        }
    }
}
