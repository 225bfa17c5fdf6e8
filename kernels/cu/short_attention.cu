// Attention over at most 32 frames on tensor cores, from registers only, compiled for the shape.
//
// Contract (attention.cu has the common part)
//   macros      ELEMENT is F16 or BF16. FRAMES and KEYS are 1 to 32, HEAD_DIM is a multiple of 8 up to 160. A
//               block has PROBLEMS problems, one warp for each.
//   block       32 * PROBLEMS threads on x.
//   arithmetic  m16n8k16 with f32 accumulation.
//   needs       sm_80.
//
// A dot product may take its columns in any order if q and k use the same order. The columns of out may be
// computed in any order too. So each lane loads contiguous parts of rows, and uses their columns as the columns
// that the instruction expects in this lane. No shared memory, and no shuffles of q, k, v and out.

// Queries in tiles of 16; keys in tiles of 8, two for each step of 16 keys.
constexpr u32 ROW_TILES = divide_up(FRAMES, 16);
constexpr u32 KEY_STEPS = divide_up(KEYS, 16);
constexpr u32 KEY_TILES = 2 * KEY_STEPS;
// 32-bit words, of two elements each, of a row of q or k in a lane.
constexpr u32 WORDS = HEAD_DIM / 8;
// Dimensions of v and out in a lane for a key, and the words that hold them.
constexpr u32 DIMS = HEAD_DIM / 8;
constexpr u32 DIM_WORDS = divide_up(DIMS, 2);

// Loads of a row: 16 bytes each where they fit, then one of each narrower width that fits.
constexpr u32 Q_WIDE = HEAD_DIM / 32;
constexpr bool Q_HALF = HEAD_DIM & 16, Q_QUARTER = HEAD_DIM & 8;
constexpr u32 V_WIDE = HEAD_DIM / 64;
constexpr bool V_HALF = HEAD_DIM & 32, V_QUARTER = HEAD_DIM & 16, V_EIGHTH = HEAD_DIM & 8;

template <typename T>
__device__ inline T ldcs(const Element *from) {
    return __ldcs(reinterpret_cast<const T *>(from));
}

template <typename T>
__device__ inline void stcs(Element *to, T value) {
    __stcs(reinterpret_cast<T *>(to), value);
}

// The part of a row of q or k in lane `t` of a quad; zeros past the last row.
__device__ inline void load_columns(u32 (&words)[WORDS], const Element *__restrict__ tensor, u64 stride, u32 rows,
                                    u32 frame, u32 t) {
#pragma unroll
    for (u32 i = 0; i < WORDS; ++i) words[i] = 0;
    if (frame >= rows) return;
    const Element *row = tensor + frame * stride;
#pragma unroll
    for (u32 i = 0; i < Q_WIDE; ++i) {
        const uint4 x = ldcs<uint4>(row + 32 * i + 8 * t);
        words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
    }
    if constexpr (Q_HALF) {
        const uint2 x = ldcs<uint2>(row + 32 * Q_WIDE + 4 * t);
        words[4 * Q_WIDE] = x.x, words[4 * Q_WIDE + 1] = x.y;
    }
    if constexpr (Q_QUARTER) words[WORDS - 1] = ldcs<u32>(row + HEAD_DIM - 8 + 2 * t);
}

// Of eight neighbouring vectors of 16 bytes of a row of v, the one in lane group `g`. So a lane of out, which serves two
// groups, has a vector of each half, and four lanes store 64 contiguous bytes. Stores of half a sector each are slower.
__device__ inline u32 vector_of_group(u32 g) { return g / 2 + g % 2 * 4; }

// The dimensions of a row of v in lane group `g`; zeros past the last key.
__device__ inline void load_dims(u32 (&words)[DIM_WORDS], const Element *__restrict__ v, u64 stride, u32 key, u32 g) {
#pragma unroll
    for (u32 i = 0; i < DIM_WORDS; ++i) words[i] = 0;
    if (key >= KEYS) return;
    const Element *row = v + key * stride;
#pragma unroll
    for (u32 i = 0; i < V_WIDE; ++i) {
        const uint4 x = ldcs<uint4>(row + 64 * i + 8 * vector_of_group(g));
        words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
    }
    const Element *rest = row + 64 * V_WIDE;
    if constexpr (V_HALF) {
        const uint2 x = ldcs<uint2>(rest + 4 * g);
        words[4 * V_WIDE] = x.x, words[4 * V_WIDE + 1] = x.y;
        rest += 32;
    }
    if constexpr (V_QUARTER) words[4 * V_WIDE + 2 * V_HALF] = ldcs<u32>(rest + 2 * g), rest += 16;
    if constexpr (V_EIGHTH) words[DIM_WORDS - 1] = ldcs<u16>(rest + g);
}

// The j-th dimension of two keys as one word.
__device__ inline u32 byte_perm_pair(const u32 (&one)[DIM_WORDS], const u32 (&other)[DIM_WORDS], u32 j) {
    return __byte_perm(one[j / 2], other[j / 2], j % 2 ? 0x7632 : 0x5410);
}

// Replaces the scores of a row, two of each tile in this lane, by their weights. Returns the sum of the weights.
__device__ inline float weights_of_scores(float (&scores)[KEY_TILES][4], u32 half, u32 row, u32 t, float scale,
                              const Problem problem) {
    float row_max = LOWEST;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            score = masked_score(score, row, 8 * n + 2 * t + i, FRAMES, KEYS, scale, problem);
            row_max = fmaxf(row_max, score);
        }
    }
    const float shift = score_shift(group_max<4>(row_max), scale);
    float row_sum = 0.f;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            score = ex2_approx(score * score_factor(scale) - shift);
            row_sum += score;
        }
    }
    return group_sum<4>(row_sum);
}

// Stores this lane's dimensions of one row of out, scaled by `norm`.
__device__ inline void store_row(Element *__restrict__ row, const float (&sums)[DIMS][4], u32 half, u32 t,
                                 float norm) {
    // Two neighbouring dimensions, of the first (`side` 0) or second of the two lane groups that this lane serves.
    const auto two = [&](u32 j, u32 side) {
        return cvt_rn_x2(sums[j][2 * half + side] * norm, sums[j + 1][2 * half + side] * norm);
    };
#pragma unroll
    for (u32 i = 0; i < V_WIDE; ++i) {
        const u32 j = 8 * i;
        Element *to = row + 64 * i + 8 * t;
        stcs(to, uint4{two(j, 0), two(j + 2, 0), two(j + 4, 0), two(j + 6, 0)});
        stcs(to + 32, uint4{two(j, 1), two(j + 2, 1), two(j + 4, 1), two(j + 6, 1)});
    }
    Element *rest = row + 64 * V_WIDE;
    constexpr u32 J = 8 * V_WIDE;
    if constexpr (V_HALF) {
        stcs(rest + 8 * t, uint4{two(J, 0), two(J + 2, 0), two(J, 1), two(J + 2, 1)});
        rest += 32;
    }
    if constexpr (V_QUARTER) {
        constexpr u32 j = J + 4 * V_HALF;
        stcs(rest + 4 * t, uint2{two(j, 0), two(j, 1)});
        rest += 16;
    }
    if constexpr (V_EIGHTH) {
        const float(&last)[4] = sums[DIMS - 1];
        stcs(rest + 2 * t, cvt_rn_x2(last[2 * half] * norm, last[2 * half + 1] * norm));
    }
}

extern "C" __global__ void __launch_bounds__(WARP *PROBLEMS, HEAD_DIM > 128 ? 1 : 0) short_attention(ATTENTION_PARAMETERS) {
    const Overlap overlap;
    const u64 number = linear_block_index() * PROBLEMS + threadIdx.x / WARP;
    if (PROBLEMS > 1 && number >= items * heads) return;
    const Problem problem = PROBLEM(number, FRAMES, KEYS, HEAD_DIM);
    const u32 g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    scale *= LOG2_E;

    u32 keys[KEY_TILES][WORDS];
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) load_columns(keys[n], problem.k, problem.k_stride, KEYS, 8 * n + g, t);
    u32 queries[ROW_TILES][2][WORDS];
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; ++m) {
        load_columns(queries[m][0], problem.q, problem.q_stride, FRAMES, 16 * m + g, t);
        load_columns(queries[m][1], problem.q, problem.q_stride, FRAMES, 16 * m + g + 8, t);
    }
    // This lane has the keys 2t, 2t + 1, 2t + 8 and 2t + 9 of each tile of 16.
    u32 values[KEY_STEPS][4][DIM_WORDS];
#pragma unroll
    for (u32 s = 0; s < KEY_STEPS; ++s) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            load_dims(values[s][i], problem.v, problem.v_stride, 16 * s + 2 * t + i % 2 + i / 2 * 8, g);
        }
    }

#pragma unroll
    for (u32 m = 0; m < ROW_TILES; ++m) {
        const u32(&top)[WORDS] = queries[m][0], (&bottom)[WORDS] = queries[m][1];
        float weights[KEY_TILES][4] = {};
#pragma unroll
        for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
            for (u32 i = 0; i + 1 < WORDS; i += 2) {
                mma_m16n8k16(weights[n], top[i], bottom[i], top[i + 1], bottom[i + 1], keys[n][i], keys[n][i + 1]);
            }
            if constexpr (WORDS % 2) mma_m16n8k8(weights[n], top[WORDS - 1], bottom[WORDS - 1], keys[n][WORDS - 1]);
        }
        const u32 row = 16 * m + g;
        const float top_norm = reciprocal_of_sum(weights_of_scores(weights, 0, row, t, scale, problem));
        const float bottom_norm = reciprocal_of_sum(weights_of_scores(weights, 1, row + 8, t, scale, problem));

        float sums[DIMS][4] = {};
#pragma unroll
        for (u32 s = 0; s < KEY_STEPS; ++s) {
            const float(&even)[4] = weights[2 * s], (&odd)[4] = weights[2 * s + 1];
            const u32 a0 = cvt_rn_x2(even[0], even[1]), a1 = cvt_rn_x2(even[2], even[3]);
            const u32 a2 = cvt_rn_x2(odd[0], odd[1]), a3 = cvt_rn_x2(odd[2], odd[3]);
#pragma unroll
            for (u32 j = 0; j < DIMS; ++j) {
                const u32 b0 = byte_perm_pair(values[s][0], values[s][1], j), b1 = byte_perm_pair(values[s][2], values[s][3], j);
                mma_m16n8k16(sums[j], a0, a1, a2, a3, b0, b1);
            }
        }
        if (row < FRAMES) store_row(problem.out + row * problem.out_stride, sums, 0, t, top_norm);
        if (row + 8 < FRAMES) store_row(problem.out + (row + 8) * problem.out_stride, sums, 1, t, bottom_norm);
    }
}
