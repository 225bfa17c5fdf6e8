// Temporal attention on tensor cores through shared memory, forward: softmax(scale * q k^T + bias) v over
// the frames of each (item, head), compiled for the shape.
//
// Contract
//   macros      ELEMENT (F16 or BF16), FRAMES and KEYS (1 to 128), HEAD_DIM (a multiple of 8 up to 160),
//               CAUSAL, BIAS, STRIDED (see attention_prelude.cu)
//               WARPS: warps that share a problem; PROBLEMS: problems side by side in a block;
//               ROUNDS: problems one after another in the place of one; STAGES (1 or 2): 2 loads the
//               next round's problem while this one is computed
//   layout      q, out: [items, heads, FRAMES, HEAD_DIM], k, v: [items, heads, KEYS, HEAD_DIM], bias:
//               [FRAMES, KEYS]; where STRIDED any strides of the first three axes, also for a bias of
//               [items, heads, FRAMES, KEYS]; rows are contiguous; out overlaps none
//   grid        PROBLEMS * ROUNDS problems a block, numbered item * heads + head, along one axis; the
//               last block may have fewer
//   block       32 * WARPS * PROBLEMS threads on x
//   shared      dynamic, STAGES * PROBLEMS problems: q, k and v with rows of an odd number of 16 bytes
//   arguments   q, k, v, out (addresses of the chunk's first item), [bias], items of the chunk (u64),
//               heads (u32), [strides], scale (f32)
//   alignment   16 bytes, strides too
//   arithmetic  m16n8k16 (m16n8k8 on sm_75) with f32 accumulation, softmax in f32 in one pass; 64-bit
//               offsets. A row whose every score is -inf gives zeros
//   needs       sm_75 for f16, sm_80 for bf16
//
// q, k and v come to shared memory as they lie in global memory, piece by piece of 16 bytes, whatever
// the head dimension. Each warp takes tiles of 16 queries against all keys, in blocks of keys so that
// its scores fit into registers. out leaves through the place of the warp's own queries.

constexpr u32 ROW_TILES = (FRAMES + 15) / 16;
// Tiles of queries that a warp has at once: they share what is read of keys and values.
constexpr u32 TILES = (ROW_TILES + WARPS - 1) / WARPS;
// Keys of a block, in tiles of 8: as many as leave registers for the rest.
constexpr u32 KEY_TILES = (KEYS + 7) / 8;
constexpr u32 BLOCK_TILES = TILES * HEAD_DIM <= 64 ? 16 : 4;
constexpr u32 KEY_BLOCK = KEY_TILES < BLOCK_TILES ? (KEY_TILES + 1) / 2 * 2 : BLOCK_TILES;
constexpr u32 KEY_BLOCKS = (KEY_TILES + KEY_BLOCK - 1) / KEY_BLOCK;

// Pieces of 16 bytes.
constexpr u32 PIECES = HEAD_DIM / 8;
constexpr u32 PITCH = PIECES | 1;
constexpr u32 PIECE_BYTES = 16;
constexpr u32 QUERY_BYTES = FRAMES * PITCH * PIECE_BYTES;
constexpr u32 KEY_BYTES = KEYS * PITCH * PIECE_BYTES;
constexpr u32 STAGE_BYTES = QUERY_BYTES + 2 * KEY_BYTES;

__device__ inline void load_1(u32 &one, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(one) : "r"(address) : "memory");
}

// Where rows are padded, a line of global memory lies across two of shared memory, and asynchronous
// copies fetch some of its sectors twice: few rows go through registers instead.
constexpr bool THROUGH_REGISTERS = PITCH != PIECES && FRAMES <= 32 && KEYS <= 32;

// Copies the ROWS of a tensor of a problem; `thread` of the problem's.
template <u32 ROWS>
__device__ inline void copy_tensor(u32 to, const Element *__restrict__ from, u32 thread, u64 stride) {
    constexpr u32 COUNT = ROWS * PIECES;
#pragma unroll
    for (u32 first = 0; first < COUNT; first += THREADS) {
        const u32 piece = first + thread, row = piece / PIECES, column = piece % PIECES;
        if (first + THREADS <= COUNT || piece < COUNT) {
            const u32 place = to + (row * PITCH + column) * PIECE_BYTES;
            const Element *at = from + (STRIDED ? row * stride + column * 8 : piece * 8);
            if (THROUGH_REGISTERS) {
                store_piece(place, __ldcs(reinterpret_cast<const uint4 *>(at)));
            } else {
                copy_piece(place, at);
            }
        }
    }
}

// Requests keys and queries, then values, as two groups.
__device__ inline void request(const Problem &problem, u32 stage, u32 thread) {
    copy_tensor<FRAMES>(stage, problem.q, thread, problem.q_stride);
    copy_tensor<KEYS>(stage + QUERY_BYTES, problem.k, thread, problem.k_stride);
    commit();
    copy_tensor<KEYS>(stage + QUERY_BYTES + KEY_BYTES, problem.v, thread, problem.v_stride);
    commit();
}

// The address of a piece of k or v; rows past the last key are the last one.
__device__ inline u32 piece_at(u32 tensor, u32 first_row, u32 rows, u32 row, u32 column) {
    u32 key = first_row + row;
    if (first_row + rows > KEYS) key = key < KEYS ? key : KEYS - 1;
    return tensor + (key * PITCH + column) * PIECE_BYTES;
}

template <bool LAST>
__device__ inline void attend(const Problem &problem, u32 stage, u32 thread, float scale) {
    const u32 warp = thread / WARP, lane = thread % WARP, group = lane / 4, quad = lane % 4;
    const u32 queries = stage, keys = stage + QUERY_BYTES, values = keys + KEY_BYTES;

    // Whatever comes later stays on its way.
    if (LAST) {
        wait<1>();
    } else {
        wait<3>();
    }
    meet();

    // The warp's tiles are `warp`, `warp + WARPS` ...; the last ones may lie past the end.
    u32 query[TILES][PIECES / 2 + 1][4];
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
        const u32 first = (warp + m * WARPS) * 16;
        const u32 at = min(first + lane % 16, FRAMES - 1) * PITCH * PIECE_BYTES + queries;
#pragma unroll
        for (u32 i = 0; i + 1 < PIECES; i += 2) load_4(query[m][i / 2], at + (i + lane / 16) * PIECE_BYTES);
        if (PIECES % 2) load_2(query[m][PIECES / 2][0], query[m][PIECES / 2][1], at + (PIECES - 1) * PIECE_BYTES);
    }

    float most[TILES][2], total[TILES][2], sums[TILES][PIECES][4];
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) most[m][half] = LOWEST, total[m][half] = 0.f;
#pragma unroll
        for (u32 j = 0; j < PIECES; ++j) sums[m][j][0] = sums[m][j][1] = sums[m][j][2] = sums[m][j][3] = 0.f;
    }

#pragma unroll
    for (u32 block = 0; block < KEY_BLOCKS; ++block) {
        float scores[TILES][KEY_BLOCK][4];
#pragma unroll
        for (u32 n = 0; n < KEY_BLOCK; ++n) {
#pragma unroll
            for (u32 m = 0; m < TILES; ++m) scores[m][n][0] = scores[m][n][1] = scores[m][n][2] = scores[m][n][3] = 0.f;
            const u32 first = (block * KEY_BLOCK + n) * 8;
            if (first >= KEYS) continue;
#pragma unroll
            for (u32 i = 0; i < PIECES; i += 4) {
                u32 key[4];
                if (i + 4 <= PIECES) {
                    load_4(key, piece_at(keys, first, 8, lane % 8, i + lane / 8));
                } else if (i + 2 <= PIECES) {
                    load_2(key[0], key[1], piece_at(keys, first, 8, lane % 8, i + lane / 8 % 2));
                    if (i + 3 <= PIECES) load_1(key[2], piece_at(keys, first, 8, lane % 8, i + 2));
                } else {
                    load_1(key[0], piece_at(keys, first, 8, lane % 8, i));
                }
#pragma unroll
                for (u32 m = 0; m < TILES; ++m) {
#pragma unroll
                    for (u32 s = 0; s < 4; s += 2) {
                        const u32(&a)[4] = query[m][(i + s) / 2];
                        if (i + s + 2 <= PIECES) {
                            multiply_16(scores[m][n], a[0], a[1], a[2], a[3], key[s], key[s + 1]);
                        } else if (i + s + 1 <= PIECES) {
                            multiply_8(scores[m][n], a[0], a[1], key[s]);
                        }
                    }
                }
            }
        }

        // Scores to weights.
#pragma unroll
        for (u32 m = 0; m < TILES; ++m) {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                const u32 row = (warp + m * WARPS) * 16 + half * 8 + group;
                float highest = most[m][half];
#pragma unroll
                for (u32 n = 0; n < KEY_BLOCK; ++n) {
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        float &score = scores[m][n][2 * half + i];
                        const u32 key = (block * KEY_BLOCK + n) * 8 + 2 * quad + i;
                        score = score_of(score, row, key, FRAMES, KEYS, scale, problem);
                        highest = fmaxf(highest, score);
                    }
                }
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 1));
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 2));
                const float shift = shift_of(highest, scale);
                float sum = 0.f;
#pragma unroll
                for (u32 n = 0; n < KEY_BLOCK; ++n) {
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        float &score = scores[m][n][2 * half + i];
                        score = exp2_fast(score * factor_of(scale) - shift);
                        sum += score;
                    }
                }
                if (KEY_BLOCKS > 1) {
                    const float shrink = exp2_fast(shift_of(most[m][half], scale) - shift);
                    total[m][half] *= shrink;
#pragma unroll
                    for (u32 j = 0; j < PIECES; ++j) sums[m][j][2 * half] *= shrink, sums[m][j][2 * half + 1] *= shrink;
                }
                most[m][half] = highest;
                total[m][half] += sum;
            }
        }

        if (block == 0) {
            if (LAST) {
                wait<0>();
            } else {
                wait<2>();
            }
            meet();
        }
#pragma unroll
        for (u32 s = 0; s < KEY_BLOCK / 2; ++s) {
            const u32 first = (block * KEY_BLOCK + 2 * s) * 8;
            if (first >= KEYS) continue;
            u32 weight[TILES][4];
#pragma unroll
            for (u32 m = 0; m < TILES; ++m) {
                const float(&even)[4] = scores[m][2 * s], (&odd)[4] = scores[m][2 * s + 1];
                weight[m][0] = pack(even[0], even[1]), weight[m][1] = pack(even[2], even[3]);
                weight[m][2] = pack(odd[0], odd[1]), weight[m][3] = pack(odd[2], odd[3]);
            }
#pragma unroll
            for (u32 j = 0; j < PIECES; j += 2) {
                u32 value[4];
                if (j + 2 <= PIECES) {
                    load_4_transposed(value, piece_at(values, first, 16, lane % 16, j + lane / 16));
                } else {
                    load_2_transposed(value[0], value[1], piece_at(values, first, 16, lane % 16, j));
                }
#pragma unroll
                for (u32 m = 0; m < TILES; ++m) {
                    const u32(&a)[4] = weight[m];
                    multiply_16(sums[m][j], a[0], a[1], a[2], a[3], value[0], value[1]);
                    if (j + 2 <= PIECES) multiply_16(sums[m][j + 1], a[0], a[1], a[2], a[3], value[2], value[3]);
                }
            }
        }
    }

    // Out through the place of the warp's own queries, which it has in registers.
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
        const u32 first = (warp + m * WARPS) * 16;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            float sum = total[m][half];
            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            const float norm = norm_of(sum);
            const u32 row = first + half * 8 + group;
            if (row < FRAMES) {
                const u32 at = queries + row * PITCH * PIECE_BYTES + quad * 4;
#pragma unroll
                for (u32 j = 0; j < PIECES; ++j) {
                    const u32 word = pack(sums[m][j][2 * half] * norm, sums[m][j][2 * half + 1] * norm);
                    store_word(at + j * PIECE_BYTES, word);
                }
            }
        }
    }
    __syncwarp();
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
        const u32 first_row = (warp + m * WARPS) * 16;
        constexpr u32 COUNT = 16 * PIECES;
#pragma unroll
        for (u32 first = 0; first < COUNT; first += WARP) {
            const u32 piece = first + lane, row = first_row + piece / PIECES, column = piece % PIECES;
            if ((first + WARP <= COUNT || piece < COUNT) && row < FRAMES) {
                const uint4 x = load_piece(queries + (row * PITCH + column) * PIECE_BYTES);
                __stcs(reinterpret_cast<uint4 *>(problem.out + row * problem.out_stride + column * 8), x);
            }
        }
    }
}

// Wide heads need what registers there are: by itself the compiler would rather spill a few.
extern "C" __global__ void __launch_bounds__(THREADS *PROBLEMS, HEAD_DIM > (__CUDA_ARCH__ >= 1000 ? 64 : 80) ? 1 : 0)
    tiled_attention(ATTENTION_PARAMETERS) {
    const Overlap overlap;
    extern __shared__ uint4 shared[];
    const u32 place = threadIdx.x / THREADS, thread = threadIdx.x % THREADS;
    const u32 base = u32(__cvta_generic_to_shared(shared)) + place * STAGES * STAGE_BYTES;
    const u64 first = (block_number() * PROBLEMS + place) * ROUNDS, problems = items * heads;
    scale *= LOG2_E;

    if (first >= problems) return;
    Problem problem = PROBLEM(first, FRAMES, KEYS, HEAD_DIM);
    request(problem, base, thread);
    if constexpr (ROUNDS == 1) {
        attend<true>(problem, base, thread, scale);
    } else {
        for (u32 round = 0; round < ROUNDS; ++round) {
            const u64 next = first + round + 1;
            const bool more = round + 1 < ROUNDS && next < problems;
            const Problem coming = PROBLEM(more ? next : first, FRAMES, KEYS, HEAD_DIM);
            const u32 stage = base + (STAGES == 2 ? round % 2 * STAGE_BYTES : 0);
            if (STAGES == 2 && more) {
                request(coming, base + (round + 1) % 2 * STAGE_BYTES, thread);
                attend<false>(problem, stage, thread, scale);
            } else {
                attend<true>(problem, stage, thread, scale);
            }
            if (!more) return;
            // The place of this round's tensors is free for others.
            meet();
            problem = coming;
            if (STAGES == 1) request(problem, base, thread);
        }
    }
}
