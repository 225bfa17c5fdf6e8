// Attention with Hopper's warpgroup instructions, compiled for the shape.
//
// Contract (attention.cu has the common part)
//   macros      ELEMENT is F16 or BF16. FRAMES and KEYS are 1 to 512, HEAD_DIM is a multiple of 8 up to 128.
//               WARPS (4, 8 or 16) warps share a problem. A block has ROUNDS problems, one after another. STAGES is 1,
//               or 2 to load the next problem while this one is computed.
//   block       32 * WARPS threads on x.
//   shared      dynamic: q, k and v of STAGES problems, with rows rounded up to 16 and vectors to whole panels.
//   arithmetic  wgmma with f32 accumulation.
//   needs       sm_90a.
//
// A warpgroup multiplies a tile of 64 queries with a block of keys at once. Weights are in registers, keys and values in
// swizzled shared memory. A warp stages its rows of out in the shared memory of its queries.

constexpr u32 THREADS = WARP * WARPS;
constexpr u32 GROUPS = WARPS / 4;
// Tiles of 64 queries, 16 of each warp.
constexpr u32 ROW_TILES = divide_up(FRAMES, 64);
constexpr u32 TILES = divide_up(ROW_TILES, GROUPS);
// Keys are multiplied in steps of 16, and blocks that leave registers for other warps. Smaller blocks skip more keys that
// a causal mask hides.
constexpr u32 KEY_STEPS = divide_up(KEYS, 16);
constexpr u32 MOST_BLOCK_STEPS = CAUSAL ? 4 : 8;
constexpr u32 KEY_BLOCKS = divide_up(KEY_STEPS, MOST_BLOCK_STEPS);
constexpr u32 BLOCK_STEPS = CAUSAL && KEY_BLOCKS > 1 ? MOST_BLOCK_STEPS : divide_up(KEY_STEPS, KEY_BLOCKS);
// Keys after the whole blocks, in tiles of 8.
constexpr u32 WHOLE_BLOCKS = KEYS / (16 * BLOCK_STEPS);
constexpr u32 REST_TILES = divide_up(KEYS % (16 * BLOCK_STEPS), 8);

// A bias that rounds share stays in registers if each warp has one tile.
constexpr bool KEEPS_BIAS = BIAS && TILES == 1 && KEY_BLOCKS == 1;
constexpr u32 KEPT_TILES = KEEPS_BIAS ? divide_up(KEYS, 8) : 1;
// One block of keys leaves registers for queries.
constexpr bool SHARED_QUERIES = KEY_BLOCKS > 1;

// The warps of a group have unequal work in the last tile, of which LAST_WARPS have rows, and in tiles with the causal
// mask's edge. A quarter of the processor runs every fourth warp, so each problem begins with another warp.
constexpr u32 LAST_WARPS = divide_up(FRAMES - (ROW_TILES - 1) * 64, 16);
constexpr bool ROTATES = !KEEPS_BIAS && !SHARED_QUERIES && (CAUSAL || LAST_WARPS < 4);
// Queries in shared memory are rotated by a tile that begins in the tile before.
constexpr bool SHIFTS = SHARED_QUERIES && ROW_TILES > 1 && LAST_WARPS < 4;

// Vectors of 16 bytes. Shared memory has panels of eight rows, as wide as the widest swizzle that divides a row.
// The swizzle permutes the vectors of a row by the row's number, so that eight rows of a column use different
// banks.
constexpr u32 VECTORS = HEAD_DIM / 8;
constexpr u32 VECTOR_BYTES = 16;
constexpr u32 PANEL = VECTORS % 8 == 0 ? 8 : VECTORS % 4 == 0 ? 4 : 2;
constexpr u32 SWIZZLE = PANEL == 8 ? 1 : PANEL == 4 ? 2 : 3;
constexpr u32 PANELS = divide_up(VECTORS, PANEL);
constexpr u32 PANEL_BYTES = 8 * PANEL * VECTOR_BYTES;
constexpr u32 EIGHT_ROWS_BYTES = PANELS * PANEL_BYTES;
constexpr u32 QUERY_BYTES = 2 * divide_up(FRAMES, 16) * EIGHT_ROWS_BYTES;
constexpr u32 KEY_BYTES = 2 * KEY_STEPS * EIGHT_ROWS_BYTES;
constexpr u32 STAGE_BYTES = QUERY_BYTES + 2 * KEY_BYTES;

// The byte offset of a vector in the panels of a tensor.
__device__ inline u32 swizzled_offset(u32 row, u32 vector) {
    const u32 permutation = row % 8 / (8 / PANEL);
    return row / 8 * EIGHT_ROWS_BYTES + vector / PANEL * PANEL_BYTES + row % 8 * (PANEL * VECTOR_BYTES) +
           (vector % PANEL ^ permutation) * VECTOR_BYTES;
}

// Starts copies of the ROWS rows of a tensor of a problem.
template <u32 ROWS>
__device__ inline void load_tensor(u32 to, const Element *__restrict__ from, u64 stride) {
    constexpr u32 COUNT = ROWS * VECTORS;
    u32 row = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
    if constexpr (THREADS % (8 * VECTORS) == 0) {
        // A step has whole rows, and swizzles them as the step before.
        to += swizzled_offset(row, vector);
        from += STRIDED ? row * stride + vector * 8 : threadIdx.x * 8;
#pragma unroll(STRIDED ? 4 : divide_up(COUNT, THREADS))
        for (u32 first = 0; first < COUNT; first += THREADS) {
            if (first + THREADS <= COUNT || first + threadIdx.x < COUNT) {
                cp_async_16(to + first / (8 * VECTORS) * EIGHT_ROWS_BYTES, from);
            }
            from += STRIDED ? THREADS / VECTORS * stride : THREADS * 8;
        }
    } else {
        // Not unrolled, because the compiler would keep all addresses in registers.
#pragma unroll 1
        for (u32 index = threadIdx.x; index < COUNT; index += THREADS) {
            cp_async_16(to + swizzled_offset(row, vector), STRIDED ? from + row * stride + vector * 8 : from + index * 8);
            row += THREADS / VECTORS, vector += THREADS % VECTORS;
            if (vector >= VECTORS) vector -= VECTORS, ++row;
        }
    }
}

// wgmma multiplies the padding rows of the values and the padding vectors of the keys with zeros. The padding
// must not hold NaN.
__device__ inline void fill_padding(u32 stage) {
    const uint4 zeros{0, 0, 0, 0};
    if constexpr (KEYS % 16 > 0) {
        for (u32 i = threadIdx.x; i < (KEY_STEPS * 16 - KEYS) * VECTORS; i += THREADS) {
            st_shared_v4(stage + QUERY_BYTES + KEY_BYTES + swizzled_offset(KEYS + i / VECTORS, i % VECTORS), zeros);
        }
    }
    if constexpr (VECTORS % 2 > 0) {
        if constexpr (SHARED_QUERIES) {
            for (u32 row = threadIdx.x; row < divide_up(FRAMES, 16) * 16; row += THREADS) {
                st_shared_v4(stage + swizzled_offset(row, VECTORS), zeros);
            }
        }
        for (u32 row = threadIdx.x; row < KEY_STEPS * 16; row += THREADS) {
            st_shared_v4(stage + QUERY_BYTES + swizzled_offset(row, VECTORS), zeros);
        }
    }
}

// Starts the copies of a problem. If they are not under the products of the problem before, values come in a second group.
__device__ inline void load_problem(const Problem &problem, u32 stage, bool exists = true) {
    if (exists) {
        load_tensor<FRAMES>(stage, problem.q, problem.q_stride);
        load_tensor<KEYS>(stage + QUERY_BYTES, problem.k, problem.k_stride);
        if (STAGES == 1) cp_async_commit_group();
        load_tensor<KEYS>(stage + QUERY_BYTES + KEY_BYTES, problem.v, problem.v_stride);
    }
    // Empty after the last problem.
    cp_async_commit_group();
}

// The largest score of earlier keys serves as long as no exponential exceeds 2^SLACK, so that sums are rarely rescaled.
constexpr float SLACK = 8.f;

// The exponent of a score is score * factor - shift.
__device__ inline float exponent_factor(float scale) { return BIAS ? LOG2_E : scale * LOG2_E; }

// Pairs of columns of the bias, as products have them: two rows of each tile.
template <u32 COUNT>
struct Bias {
    u32 pairs[BIAS ? COUNT : 1][2];

    // From this column of the lane on.
    __device__ inline void load(const Problem &problem, u32 first_row, u32 first_column) {
#if BIAS
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = min(first_row + half * 8 + threadIdx.x % WARP / 4, FRAMES - 1);
            const u32 first = first_column + threadIdx.x % 4 * 2;
            const BiasElement *at = problem.bias + row * problem.bias_stride + first;
            const bool aligned = BIAS == 1 && ((reinterpret_cast<u64>(problem.bias) / sizeof(Element)) | problem.bias_stride) % 2 == 0;
#pragma unroll
            for (u32 n = 0; n < COUNT; ++n) {
                u32 &pair = pairs[n][half];
                pair = 0;
                if (aligned && KEYS % 2 == 0) {
                    if (first + n * 8 < KEYS) pair = *reinterpret_cast<const u32 *>(at + n * 8);
                } else {
                    if (first + n * 8 < KEYS) pair = bias_element(at[n * 8]);
                    if (first + n * 8 + 1 < KEYS) pair |= u32(bias_element(at[n * 8 + 1])) << 16;
                }
            }
        }
#endif
    }
    __device__ inline float of(u32 n, u32 half, u32 i) const { return widen(Element(pairs[n][half] >> 16 * i)); }
};

// What a lane has of 16 queries, in two rows: products with values, and the sums and shifts of its exponentials.
struct Rows {
    u32 query[SHARED_QUERIES ? 1 : (VECTORS + 1) / 2][4];
    float sums[VECTORS][4], norm[2], shift[2];
};

// Replaces the scores of a block by exponentials, of the first SEEN steps. If MASKED, the last of them has the causal mask's
// edge. The last tile of the REST may have fewer keys.
template <u32 SEEN, bool MASKED, bool REST, u32 COUNT>
__device__ inline void weigh(Rows &rows, float (&scores)[COUNT][4], const Bias<COUNT> &bias, u32 first_row, u32 first_step, float scale) {
    constexpr u32 TILES_SEEN = 2 * SEEN < COUNT ? 2 * SEEN : COUNT;
    const u32 lane = threadIdx.x % WARP, group = lane / 4, quad = lane % 4;
    const float factor = exponent_factor(scale);
    float most[4];
#pragma unroll
    for (u32 n = 0; n < TILES_SEEN; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            float &score = scores[n][i];
            if (BIAS) score = score * scale + bias.of(n, i / 2, i % 2);
            const u32 column = n * 8 + 2 * quad + i % 2;
            const bool hidden = MASKED && n / 2 + 1 == SEEN && column > n / 2 * 16 + i / 2 * 8 + group;
            if (hidden || (REST && column >= KEYS % (16 * BLOCK_STEPS))) score = __int_as_float(0xff800000);
            most[i] = n == 0 ? score : fmaxf(most[i], score);
        }
    }
    const float lane_max[2] = {fmaxf(most[0], most[1]), fmaxf(most[2], most[3])};
    // Lanes exchange their largest scores only to rescale. Rows past the last one are any memory, and must not decide whether
    // the warp's other rows are rescaled.
    const auto exceeds = [&](u32 half) {
        const bool exists = FRAMES % 16 == 0 || first_row + half * 8 + group < FRAMES;
        return exists && lane_max[half] * factor > rows.shift[half] + SLACK;
    };
    if (KEY_BLOCKS == 1 || first_step == 0) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) rows.shift[half] = fmaxf(group_max<4>(lane_max[half]) * factor, LOWEST);
    } else if (__any_sync(ALL_LANES, exceeds(0) || exceeds(1))) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const float shift = fmaxf(group_max<4>(lane_max[half]) * factor, rows.shift[half]);
            const float rescale = ex2_approx(rows.shift[half] - shift);
            rows.shift[half] = shift;
            rows.norm[half] *= rescale;
#pragma unroll
            for (u32 j = 0; j < VECTORS; ++j) rows.sums[j][2 * half] *= rescale, rows.sums[j][2 * half + 1] *= rescale;
        }
    }
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
#pragma unroll
        for (u32 n = 0; n < TILES_SEEN; ++n) {
            float &x = scores[n][2 * half], &y = scores[n][2 * half + 1];
            x = ex2_approx(x * factor - rows.shift[half]), y = ex2_approx(y * factor - rows.shift[half]);
            rows.norm[half] += x + y;
        }
    }
#pragma unroll
    for (u32 n = TILES_SEEN; n < COUNT; ++n) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.f;
}

// Calls `weigh` for the steps up to the causal mask's edge. Branches in `weigh` would need many more registers.
template <u32 SEEN, bool REST, u32 COUNT>
__device__ inline void weigh_to(Rows &rows, float (&scores)[COUNT][4], const Bias<COUNT> &bias, u32 first_row, u32 first_step,
                                float scale) {
    const u32 edge = first_row / 16 - first_step;
    if constexpr (SEEN > divide_up(COUNT, 2)) {
        weigh<SEEN, false, REST>(rows, scores, bias, first_row, first_step, scale);
    } else if (edge < SEEN) {
        weigh<SEEN, true, REST>(rows, scores, bias, first_row, first_step, scale);
    } else {
        weigh_to<SEEN + 1, REST>(rows, scores, bias, first_row, first_step, scale);
    }
}

// A tile of 64 queries in shared memory, with all keys and values. The warp's queries begin at `first_row`.
struct Tile {
    u32 queries, keys, values, first_row;
    bool is_first;
};

// Attends to a block of COUNT tiles of keys. If MASKED, it may have the causal mask's edge.
template <u32 COUNT, bool MASKED, bool REST>
__device__ inline void attend(Rows &rows, const Problem &problem, const Tile &tile, u32 first_step, float scale,
                              const Bias<KEPT_TILES> &kept_bias) {
    constexpr u32 STEPS = divide_up(COUNT, 2);
    Bias<COUNT> bias;
    if constexpr (KEEPS_BIAS) {
        bias = kept_bias;
    } else {
        bias.load(problem, tile.first_row, first_step * 16);
    }

    const u64 key = matrix_descriptor(tile.keys + first_step * 2 * EIGHT_ROWS_BYTES, VECTOR_BYTES, EIGHT_ROWS_BYTES, SWIZZLE);
    const u64 query = matrix_descriptor(tile.queries, VECTOR_BYTES, EIGHT_ROWS_BYTES, SWIZZLE);
    float scores[COUNT][4];
    wgmma_fence();
#pragma unroll
    for (u32 i = 0; i < VECTORS; i += 2) {
        const u32 offset = i / PANEL * PANEL_BYTES + i % PANEL * VECTOR_BYTES;
        if constexpr (SHARED_QUERIES) {
            wgmma<0>(scores, descriptor_at(query, offset), descriptor_at(key, offset), i > 0);
        } else {
            wgmma<0>(scores, rows.query[i / 2], descriptor_at(key, offset), i > 0);
        }
    }
    wgmma_commit_wait();

    if (tile.first_row < FRAMES) {
        if constexpr (MASKED) {
            weigh_to<1, REST>(rows, scores, bias, tile.first_row, first_step, scale);
        } else {
            weigh<STEPS, false, REST>(rows, scores, bias, tile.first_row, first_step, scale);
        }
    }

    u32 weights[STEPS][4];
#pragma unroll
    for (u32 s = 0; s < STEPS; ++s) {
        weights[s][0] = cvt_rn_x2(scores[2 * s][0], scores[2 * s][1]);
        weights[s][1] = cvt_rn_x2(scores[2 * s][2], scores[2 * s][3]);
        const bool whole = 2 * s + 1 < COUNT;
        const float(&odd)[4] = scores[whole ? 2 * s + 1 : 0];
        weights[s][2] = whole ? cvt_rn_x2(odd[0], odd[1]) : 0, weights[s][3] = whole ? cvt_rn_x2(odd[2], odd[3]) : 0;
    }

    if (STAGES == 1 && tile.is_first && first_step == 0) {
        cp_async_wait_group<0>();
        fence_proxy_async();
        __syncthreads();
    }
    const u64 value = matrix_descriptor(tile.values + first_step * 2 * EIGHT_ROWS_BYTES, PANEL_BYTES, EIGHT_ROWS_BYTES, SWIZZLE);
    wgmma_fence();
#pragma unroll
    for (u32 s = 0; s < STEPS; ++s) {
        const bool adds = s > 0 || KEY_BLOCKS > 1 && first_step > 0;
        wgmma<1>(rows.sums, weights[s], descriptor_at(value, s * 2 * EIGHT_ROWS_BYTES), adds);
    }
    wgmma_commit_wait();
}

__device__ inline void compute_problem(const Problem &problem, u32 queries, u32 rotation, float scale,
                                       const Bias<KEPT_TILES> &kept_bias) {
    // A shuffle tells the compiler that all lanes have the same value, so that descriptors are in uniform registers.
    const u32 warp = __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0), lane = threadIdx.x % WARP;

    // Values, or the next problem, may be in flight.
    cp_async_wait_group<1>();
    fence_proxy_async();
    __syncthreads();

#pragma unroll(KEY_BLOCKS == 1 ? TILES : 1)
    for (u32 m = 0; m < TILES; ++m) {
        const u32 number = warp / 4 + m * GROUPS;
        if (m > 0 && TILES * GROUPS > ROW_TILES && number >= ROW_TILES) break;
        const u32 shift = SHIFTS && number + 1 == ROW_TILES ? rotation % (5 - LAST_WARPS) : 0;
        const u32 first_row = warp % 4 < shift ? FRAMES : number * 64 + (ROTATES ? warp + rotation : warp - shift) % 4 * 16;
        const Tile tile{queries + (number * 8 - shift * 2) * EIGHT_ROWS_BYTES, queries + QUERY_BYTES,
                        queries + QUERY_BYTES + KEY_BYTES, first_row, m == 0};
        // Warps past the last row still take part in the wgmma. Without zeros, the compiler needs many more registers.
        Rows rows = {};
        const u32 own = queries + first_row / 8 * EIGHT_ROWS_BYTES;
        if (!SHARED_QUERIES && first_row < FRAMES) {
#pragma unroll
            for (u32 i = 0; i + 1 < VECTORS; i += 2) ldmatrix_x4(rows.query[i / 2], own + swizzled_offset(lane % 16, i + lane / 16));
            if (VECTORS % 2) {
                u32(&query)[4] = rows.query[VECTORS / 2];
                ldmatrix_x2(query[0], query[1], own + swizzled_offset(lane % 16, VECTORS - 1));
            }
        }
        // A causal mask hides the blocks after the one of the tile's number.
        u32 block = 0;
        if constexpr (CAUSAL ? WHOLE_BLOCKS > 1 || WHOLE_BLOCKS == 1 && ROW_TILES > 1 : WHOLE_BLOCKS > 0) {
            const u32 blocks = CAUSAL ? min(WHOLE_BLOCKS, number) : WHOLE_BLOCKS;
#pragma unroll 1
            for (; block < blocks; ++block) {
                attend<2 * BLOCK_STEPS, false, false>(rows, problem, tile, block * BLOCK_STEPS, scale, kept_bias);
            }
        }
        if constexpr (CAUSAL && WHOLE_BLOCKS > 0) {
            if (block < WHOLE_BLOCKS) attend<2 * BLOCK_STEPS, true, false>(rows, problem, tile, block * BLOCK_STEPS, scale, kept_bias);
        }
        if constexpr (REST_TILES > 0) {
            if (!CAUSAL || block == WHOLE_BLOCKS) {
                attend<REST_TILES, CAUSAL, true>(rows, problem, tile, WHOLE_BLOCKS * BLOCK_STEPS, scale, kept_bias);
            }
        }

        if (first_row >= FRAMES) continue;
        // Stage out in the shared memory of the warp's own queries, which are no longer needed.
        const float norm[2] = {reciprocal_of_sum(group_sum<4>(rows.norm[0])), reciprocal_of_sum(group_sum<4>(rows.norm[1]))};
#pragma unroll
        for (u32 j = 0; j < VECTORS; j += 2) {
            u32 words[4] = {};
#pragma unroll
            for (u32 i = 0; i < 4 && j + i / 2 < VECTORS; ++i) {
                const float(&sums)[4] = rows.sums[j + i / 2];
                words[i] = cvt_rn_x2(sums[i % 2 * 2] * norm[i % 2], sums[i % 2 * 2 + 1] * norm[i % 2]);
            }
            stmatrix_x4(own + swizzled_offset(lane % 16, j + lane / 16), words);
        }
        __syncwarp();
        constexpr u32 OUT = 16 * VECTORS;
#pragma unroll
        for (u32 first = 0; first < OUT; first += WARP) {
            const u32 index = first + lane, row = index / VECTORS, vector = index % VECTORS;
            if ((first + WARP <= OUT || index < OUT) && first_row + row < FRAMES) {
                const uint4 x = ld_shared_v4(own + swizzled_offset(row, vector));
                __stcs(reinterpret_cast<uint4 *>(problem.out + (first_row + row) * problem.out_stride + vector * 8), x);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) warpgroup_attention(ATTENTION_PARAMETERS) {
    const Overlap overlap;
    extern __shared__ __align__(1024) uint4 shared[];
    const u32 base = u32(__cvta_generic_to_shared(shared));
    const u64 block = linear_block_index(), problems = items * heads;
    u64 number = block * ROUNDS;
    if (number >= problems) return;
    u32 rounds = u32(min(u64(ROUNDS), problems - number));
#if STRIDED
    bool along_heads = heads > 1;
#if BIAS
    // If all items share a bias for each head, as many blocks as there are heads have the problems of ROUNDS items, each of
    // one head, and load its bias once.
    if (KEEPS_BIAS && ROUNDS > 1 && strides.bias.item == 0 && strides.bias.head > 0) {
        const u64 group = item_of(block, heads);
        if ((group + 1) * ROUNDS <= items) {
            number = group * ROUNDS * heads + (block - group * heads), rounds = ROUNDS, along_heads = false;
        }
    }
#endif
    u32 head = along_heads ? u32(number - item_of(number, heads) * heads) : 0;
#endif

    // The compiler would compute these again in each round.
    u32 turn = u32(block);
    asm volatile("" : "+r"(rounds), "+r"(turn));
    Problem loaded = PROBLEM(number, FRAMES, KEYS, HEAD_DIM);
    load_problem(loaded, base);
    Bias<KEPT_TILES> kept_bias;
    const u32 first_row = threadIdx.x / WARP * 16;
    if (KEEPS_BIAS) kept_bias.load(loaded, first_row, 0);
    for (u32 stage = 0; stage < STAGES; ++stage) fill_padding(base + stage * STAGE_BYTES);
    for (u32 round = 0; round < rounds; ++round) {
        const Problem problem = loaded;
        const bool more = ROUNDS > 1 && round + 1 < rounds;
        if (ROUNDS > 1) {
#if STRIDED
            if (along_heads && ++head == heads) {
                head = 0;
                loaded = PROBLEM(number + round + 1, FRAMES, KEYS, HEAD_DIM);
            } else {
                loaded.advance(strides, along_heads);
            }
#else
            loaded.advance(FRAMES * HEAD_DIM, KEYS * HEAD_DIM);
#endif
        }
        if (STAGES == 2) load_problem(loaded, base + (round + 1) % 2 * STAGE_BYTES, more);
        compute_problem(problem, base + (STAGES == 2 ? round % 2 * STAGE_BYTES : 0), turn + round, scale, kept_bias);
        if (!more) return;
        // No thread reads this round's stage any more.
        __syncthreads();
#if BIAS
        if (KEEPS_BIAS && loaded.bias != problem.bias) kept_bias.load(loaded, first_row, 0);
#endif
        if (STAGES == 1) load_problem(loaded, base);
    }
}
