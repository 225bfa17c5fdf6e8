// Temporal attention over at most 32 frames, forward: softmax(scale * q k^T + bias) v, on tensor cores
// and straight from registers, compiled for the shape.
//
// Contract
//   macros      ELEMENT (F16 or BF16), FRAMES and KEYS (1 to 32), HEAD_DIM (a multiple of 8 up to 160),
//               CAUSAL, BIAS, STRIDED (see attention_prelude.cu), PROBLEMS: problems of a block
//   layout      q, out: [items, heads, FRAMES, HEAD_DIM], k, v: [items, heads, KEYS, HEAD_DIM], bias:
//               [FRAMES, KEYS]; where STRIDED any strides of the first three axes, also for a bias of
//               [items, heads, FRAMES, KEYS]; rows are contiguous; out overlaps none
//   grid        a warp for each (item, head), numbered item * heads + head, PROBLEMS of them a block,
//               along one axis; the last block may have fewer
//   block       32 * PROBLEMS threads on x
//   arguments   q, k, v, out (addresses of the chunk's first item), [bias], items of the chunk (u64),
//               heads (u32), [strides], scale (f32)
//   alignment   16 bytes, strides too
//   arithmetic  m16n8k16 with f32 accumulation, softmax in one pass in f32; 64-bit offsets. A row
//               whose every score is -inf gives zeros
//   needs       sm_80
//
// The order of the columns in a dot product is free as long as q and k agree, and so is the order in
// which out's columns are computed. So each lane loads contiguous pieces of rows, and takes the
// columns that it has for those that the instruction wants of it; no shared memory, no shuffles.

// Queries in tiles of 16; keys in tiles of 8, two for each step of 16 keys.
constexpr u32 ROW_TILES = (FRAMES + 15) / 16;
constexpr u32 KEY_STEPS = (KEYS + 15) / 16;
constexpr u32 KEY_TILES = 2 * KEY_STEPS;
// 32-bit words of a row of q or k that a lane has, two elements each.
constexpr u32 WORDS = HEAD_DIM / 8;
// Dimensions of v and out that a lane has for a key, and the words that hold them.
constexpr u32 DIMS = HEAD_DIM / 8;
constexpr u32 DIM_WORDS = (DIMS + 1) / 2;

// Pieces of a row: as many of the widest as fit, then one of each narrower one that still does.
constexpr u32 Q_WIDE = HEAD_DIM / 32;
constexpr bool Q_HALF = HEAD_DIM & 16, Q_QUARTER = HEAD_DIM & 8;
constexpr u32 V_WIDE = HEAD_DIM / 64;
constexpr bool V_HALF = HEAD_DIM & 32, V_QUARTER = HEAD_DIM & 16, V_EIGHTH = HEAD_DIM & 8;

// Each byte is read once: past the caches.
template <typename T>
__device__ inline T read(const Element *from) {
    return __ldcs(reinterpret_cast<const T *>(from));
}

template <typename T>
__device__ inline void write(Element *to, T value) {
    __stcs(reinterpret_cast<T *>(to), value);
}

// Lane `t` of a quad's part of a row of q or k; zeros past the last of `rows`.
__device__ inline void read_columns(u32 (&words)[WORDS], const Element *__restrict__ tensor, u64 stride, u32 rows,
                                    u32 frame, u32 t) {
#pragma unroll
    for (u32 i = 0; i < WORDS; ++i) words[i] = 0;
    if (frame >= rows) return;
    const Element *row = tensor + frame * stride;
#pragma unroll
    for (u32 i = 0; i < Q_WIDE; ++i) {
        const uint4 x = read<uint4>(row + 32 * i + 8 * t);
        words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
    }
    if constexpr (Q_HALF) {
        const uint2 x = read<uint2>(row + 32 * Q_WIDE + 4 * t);
        words[4 * Q_WIDE] = x.x, words[4 * Q_WIDE + 1] = x.y;
    }
    if constexpr (Q_QUARTER) words[WORDS - 1] = read<u32>(row + HEAD_DIM - 8 + 2 * t);
}

// Lane group `g`'s dimensions of a row of v; zeros past the last key.
__device__ inline void read_dims(u32 (&words)[DIM_WORDS], const Element *__restrict__ v, u64 stride, u32 key, u32 g) {
#pragma unroll
    for (u32 i = 0; i < DIM_WORDS; ++i) words[i] = 0;
    if (key >= KEYS) return;
    const Element *row = v + key * stride;
#pragma unroll
    for (u32 i = 0; i < V_WIDE; ++i) {
        const uint4 x = read<uint4>(row + 64 * i + 8 * g);
        words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
    }
    const Element *rest = row + 64 * V_WIDE;
    if constexpr (V_HALF) {
        const uint2 x = read<uint2>(rest + 4 * g);
        words[4 * V_WIDE] = x.x, words[4 * V_WIDE + 1] = x.y;
        rest += 32;
    }
    if constexpr (V_QUARTER) words[4 * V_WIDE + 2 * V_HALF] = read<u32>(rest + 2 * g), rest += 16;
    if constexpr (V_EIGHTH) words[DIM_WORDS - 1] = read<u16>(rest + g);
}

// The j-th dimension of two keys as one word.
__device__ inline u32 pair(const u32 (&one)[DIM_WORDS], const u32 (&other)[DIM_WORDS], u32 j) {
    return __byte_perm(one[j / 2], other[j / 2], j % 2 ? 0x7632 : 0x5410);
}

// Turns the scores of one row, of which this lane has two in each tile, into weights; gives their sum.
__device__ inline float weigh(float (&scores)[KEY_TILES][4], u32 half, u32 row, u32 t, float scale,
                              const Problem problem) {
    float most = LOWEST;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            score = score_of(score, row, 8 * n + 2 * t + i, FRAMES, KEYS, scale, problem);
            most = fmaxf(most, score);
        }
    }
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
    const float shift = shift_of(most, scale);
    float total = 0.f;
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float &score = scores[n][2 * half + i];
            score = exp2_fast(score * factor_of(scale) - shift);
            total += score;
        }
    }
    total += __shfl_xor_sync(ALL_LANES, total, 1);
    return total + __shfl_xor_sync(ALL_LANES, total, 2);
}

// Writes this lane's dimensions of one row of out, each with its factor 1 / total applied.
__device__ inline void write_row(Element *__restrict__ row, const float (&sums)[DIMS][4], u32 half, u32 t,
                                 float norm) {
    // Two neighbouring dimensions of the lane's first (`side` 0) or second lane group's.
    const auto two = [&](u32 j, u32 side) {
        return pack(sums[j][2 * half + side] * norm, sums[j + 1][2 * half + side] * norm);
    };
#pragma unroll
    for (u32 i = 0; i < V_WIDE; ++i) {
        const u32 j = 8 * i;
        Element *to = row + 64 * i + 16 * t;
        write(to, uint4{two(j, 0), two(j + 2, 0), two(j + 4, 0), two(j + 6, 0)});
        write(to + 8, uint4{two(j, 1), two(j + 2, 1), two(j + 4, 1), two(j + 6, 1)});
    }
    Element *rest = row + 64 * V_WIDE;
    constexpr u32 J = 8 * V_WIDE;
    if constexpr (V_HALF) {
        write(rest + 8 * t, uint4{two(J, 0), two(J + 2, 0), two(J, 1), two(J + 2, 1)});
        rest += 32;
    }
    if constexpr (V_QUARTER) {
        constexpr u32 j = J + 4 * V_HALF;
        write(rest + 4 * t, uint2{two(j, 0), two(j, 1)});
        rest += 16;
    }
    if constexpr (V_EIGHTH) {
        const float(&last)[4] = sums[DIMS - 1];
        write(rest + 2 * t, pack(last[2 * half] * norm, last[2 * half + 1] * norm));
    }
}

extern "C" __global__ void __launch_bounds__(WARP *PROBLEMS, HEAD_DIM > 128 ? 1 : 0) short_attention(ATTENTION_PARAMETERS) {
    const Overlap overlap;
    const u64 number = block_number() * PROBLEMS + threadIdx.x / WARP;
    if (PROBLEMS > 1 && number >= items * heads) return;
    const Problem problem = PROBLEM(number, FRAMES, KEYS, HEAD_DIM);
    const u32 g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    scale *= LOG2_E;

    u32 keys[KEY_TILES][WORDS];
#pragma unroll
    for (u32 n = 0; n < KEY_TILES; ++n) read_columns(keys[n], problem.k, problem.k_stride, KEYS, 8 * n + g, t);
    u32 queries[ROW_TILES][2][WORDS];
#pragma unroll
    for (u32 m = 0; m < ROW_TILES; ++m) {
        read_columns(queries[m][0], problem.q, problem.q_stride, FRAMES, 16 * m + g, t);
        read_columns(queries[m][1], problem.q, problem.q_stride, FRAMES, 16 * m + g + 8, t);
    }
    // For each tile of 16 keys this lane has four: 2t, 2t + 1, 2t + 8 and 2t + 9.
    u32 values[KEY_STEPS][4][DIM_WORDS];
#pragma unroll
    for (u32 s = 0; s < KEY_STEPS; ++s) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            read_dims(values[s][i], problem.v, problem.v_stride, 16 * s + 2 * t + i % 2 + i / 2 * 8, g);
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
                multiply_16(weights[n], top[i], bottom[i], top[i + 1], bottom[i + 1], keys[n][i], keys[n][i + 1]);
            }
            if constexpr (WORDS % 2) multiply_8(weights[n], top[WORDS - 1], bottom[WORDS - 1], keys[n][WORDS - 1]);
        }
        const u32 row = 16 * m + g;
        const float top_norm = norm_of(weigh(weights, 0, row, t, scale, problem));
        const float bottom_norm = norm_of(weigh(weights, 1, row + 8, t, scale, problem));

        float sums[DIMS][4] = {};
#pragma unroll
        for (u32 s = 0; s < KEY_STEPS; ++s) {
            const float(&even)[4] = weights[2 * s], (&odd)[4] = weights[2 * s + 1];
            const u32 a0 = pack(even[0], even[1]), a1 = pack(even[2], even[3]);
            const u32 a2 = pack(odd[0], odd[1]), a3 = pack(odd[2], odd[3]);
#pragma unroll
            for (u32 j = 0; j < DIMS; ++j) {
                const u32 b0 = pair(values[s][0], values[s][1], j), b1 = pair(values[s][2], values[s][3], j);
                multiply_16(sums[j], a0, a1, a2, a3, b0, b1);
            }
        }
        if (row < FRAMES) write_row(problem.out + row * problem.out_stride, sums, 0, t, top_norm);
        if (row + 8 < FRAMES) write_row(problem.out + (row + 8) * problem.out_stride, sums, 1, t, bottom_norm);
    }
}
