// Temporal attention on Hopper's warpgroup instructions, forward: softmax(scale * q k^T + bias) v over the
// frames of each (item, head), compiled for the shape.
//
// Contract
//   macros      ELEMENT (F16 or BF16), FRAMES and KEYS (1 to 128), HEAD_DIM (a multiple of 8 up to 128),
//               CAUSAL, BIAS, STRIDED (see attention_prelude.cu)
//               WARPS (4 or 8): warps that share a problem; ROUNDS: problems of a block, one after
//               another; STAGES (1 or 2): 2 loads the next problem while this one is computed
//   layout      q, out: [items, heads, FRAMES, HEAD_DIM], k, v: [items, heads, KEYS, HEAD_DIM], bias:
//               [FRAMES, KEYS]; where STRIDED any strides of the first three axes, also for a bias of
//               [items, heads, FRAMES, KEYS]; rows are contiguous; out overlaps none
//   grid        ROUNDS problems a block, numbered item * heads + head, along one axis; the last block
//               may have fewer
//   block       32 * WARPS threads on x
//   shared      dynamic, STAGES problems: q, k and v, rows rounded up to 16, pieces to whole panels
//   arguments   q, k, v, out (addresses of the chunk's first item), [bias], items of the chunk (u64),
//               heads (u32), [strides], scale (f32)
//   alignment   16 bytes, strides too
//   arithmetic  wgmma with f32 accumulation, softmax in f32 in one pass; 64-bit offsets. A row whose
//               every score is -inf gives zeros
//   needs       sm_90a
//
// A warpgroup takes tiles of 64 queries against all keys at once. Queries and weights come from
// registers, keys and values from shared memory as they lie in global memory; out leaves through the
// place of the warp's own queries.

constexpr u32 THREADS = WARP * WARPS;
constexpr u32 GROUPS = WARPS / 4;
// Tiles of 64 queries: each warp has 16 of them.
constexpr u32 ROW_TILES = (FRAMES + 63) / 64;
constexpr u32 TILES = (ROW_TILES + GROUPS - 1) / GROUPS;
constexpr u32 KEY_TILES = (KEYS + 7) / 8;
constexpr u32 KEY_STEPS = (KEYS + 15) / 16;

// Pieces of 16 bytes. Rows lie in panels of as many pieces as the widest swizzle takes of them, eight
// rows of a panel together; within them the pieces of a row change places by its number, so that
// eight rows of a column meet different banks.
constexpr u32 PIECES = HEAD_DIM / 8;
constexpr u32 PIECE_BYTES = 16;
constexpr u32 PANEL = PIECES % 8 == 0 ? 8 : PIECES % 4 == 0 ? 4 : 2;
constexpr u32 SWIZZLE = PANEL == 8 ? 1 : PANEL == 4 ? 2 : 3;
constexpr u32 PANELS = (PIECES + PANEL - 1) / PANEL;
constexpr u32 PANEL_BYTES = 8 * PANEL * PIECE_BYTES;
// Eight rows.
constexpr u32 ROWS_BYTES = PANELS * PANEL_BYTES;
constexpr u32 QUERY_BYTES = 2 * ((FRAMES + 15) / 16) * ROWS_BYTES;
constexpr u32 KEY_BYTES = 2 * KEY_STEPS * ROWS_BYTES;
constexpr u32 STAGE_BYTES = QUERY_BYTES + 2 * KEY_BYTES;

// What this thread wrote to shared memory is seen by the matrix instructions.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void matrices_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void matrices_end() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// A matrix in shared memory: panels are `leading` bytes apart, eight rows and the next eight `stride`.
__device__ inline u64 describe(u32 address, u32 leading, u32 stride) {
    return u64((address & 0x3ffff) >> 4) | u64(leading >> 4) << 16 | u64(stride >> 4) << 32 | u64(SWIZZLE) << 62;
}

// The accumulators of the first so many tiles of 8 columns, by number and as operands.
#define NUMBERS_1 "%0, %1, %2, %3"
#define NUMBERS_2 NUMBERS_1 ", %4, %5, %6, %7"
#define NUMBERS_3 NUMBERS_2 ", %8, %9, %10, %11"
#define NUMBERS_4 NUMBERS_3 ", %12, %13, %14, %15"
#define NUMBERS_5 NUMBERS_4 ", %16, %17, %18, %19"
#define NUMBERS_6 NUMBERS_5 ", %20, %21, %22, %23"
#define NUMBERS_7 NUMBERS_6 ", %24, %25, %26, %27"
#define NUMBERS_8 NUMBERS_7 ", %28, %29, %30, %31"
#define NUMBERS_9 NUMBERS_8 ", %32, %33, %34, %35"
#define NUMBERS_10 NUMBERS_9 ", %36, %37, %38, %39"
#define NUMBERS_11 NUMBERS_10 ", %40, %41, %42, %43"
#define NUMBERS_12 NUMBERS_11 ", %44, %45, %46, %47"
#define NUMBERS_13 NUMBERS_12 ", %48, %49, %50, %51"
#define NUMBERS_14 NUMBERS_13 ", %52, %53, %54, %55"
#define NUMBERS_15 NUMBERS_14 ", %56, %57, %58, %59"
#define NUMBERS_16 NUMBERS_15 ", %60, %61, %62, %63"
#define TILE(t) "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3])
#define TILES_1 TILE(0)
#define TILES_2 TILES_1, TILE(1)
#define TILES_3 TILES_2, TILE(2)
#define TILES_4 TILES_3, TILE(3)
#define TILES_5 TILES_4, TILE(4)
#define TILES_6 TILES_5, TILE(5)
#define TILES_7 TILES_6, TILE(6)
#define TILES_8 TILES_7, TILE(7)
#define TILES_9 TILES_8, TILE(8)
#define TILES_10 TILES_9, TILE(9)
#define TILES_11 TILES_10, TILE(10)
#define TILES_12 TILES_11, TILE(11)
#define TILES_13 TILES_12, TILE(12)
#define TILES_14 TILES_13, TILE(13)
#define TILES_15 TILES_14, TILE(14)
#define TILES_16 TILES_15, TILE(15)

// c += a b for one step of 16: a is 64 rows in registers, b in shared memory. TRANSPOSED: b lies with its
// columns, not its rows, side by side. What c holds counts for nothing unless `accumulate`.
#define MULTIPLY(TILES, COLUMNS, A0, A1, A2, A3, B, P, T)                                              \
    if constexpr (N == TILES) {                                                                        \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                   \
                     "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE              \
                     " {" NUMBERS_##TILES "}, {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B               \
                     ", p, 1, 1, %" T ";\n}"                                                           \
                     : TILES_##TILES                                                                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TRANSPOSED) \
                     : "memory");                                                                      \
    }

template <u32 TRANSPOSED, u32 N>
__device__ inline void multiply(float (&c)[N][4], const u32 (&a)[4], u64 b, u32 accumulate) {
    MULTIPLY(1, "8", "4", "5", "6", "7", "8", "9", "10")
    MULTIPLY(2, "16", "8", "9", "10", "11", "12", "13", "14")
    MULTIPLY(3, "24", "12", "13", "14", "15", "16", "17", "18")
    MULTIPLY(4, "32", "16", "17", "18", "19", "20", "21", "22")
    MULTIPLY(5, "40", "20", "21", "22", "23", "24", "25", "26")
    MULTIPLY(6, "48", "24", "25", "26", "27", "28", "29", "30")
    MULTIPLY(7, "56", "28", "29", "30", "31", "32", "33", "34")
    MULTIPLY(8, "64", "32", "33", "34", "35", "36", "37", "38")
    MULTIPLY(9, "72", "36", "37", "38", "39", "40", "41", "42")
    MULTIPLY(10, "80", "40", "41", "42", "43", "44", "45", "46")
    MULTIPLY(11, "88", "44", "45", "46", "47", "48", "49", "50")
    MULTIPLY(12, "96", "48", "49", "50", "51", "52", "53", "54")
    MULTIPLY(13, "104", "52", "53", "54", "55", "56", "57", "58")
    MULTIPLY(14, "112", "56", "57", "58", "59", "60", "61", "62")
    MULTIPLY(15, "120", "60", "61", "62", "63", "64", "65", "66")
    MULTIPLY(16, "128", "64", "65", "66", "67", "68", "69", "70")
}

// Where a piece lies.
__device__ inline u32 place_of(u32 row, u32 piece) {
    const u32 exchange = row % 8 / (8 / PANEL);
    return row / 8 * ROWS_BYTES + piece / PANEL * PANEL_BYTES + row % 8 * (PANEL * PIECE_BYTES) +
           (piece % PANEL ^ exchange) * PIECE_BYTES;
}

// Copies the ROWS of a tensor of a problem.
template <u32 ROWS>
__device__ inline void copy_tensor(u32 to, const Element *__restrict__ from, u64 stride) {
    constexpr u32 COUNT = ROWS * PIECES;
#pragma unroll
    for (u32 first = 0; first < COUNT; first += THREADS) {
        const u32 place = first + threadIdx.x, row = place / PIECES, piece = place % PIECES;
        if (first + THREADS <= COUNT || place < COUNT) {
            copy_piece(to + place_of(row, piece), STRIDED ? from + row * stride + piece * 8 : from + place * 8);
        }
    }
}

// What the matrix instructions read past the last row of values and past the last piece of keys is
// multiplied by zero, and so must be a number.
__device__ inline void fill(u32 stage) {
    const uint4 zeros{0, 0, 0, 0};
    if constexpr (KEYS % 16 > 0) {
        for (u32 i = threadIdx.x; i < (KEY_STEPS * 16 - KEYS) * PIECES; i += THREADS) {
            store_piece(stage + QUERY_BYTES + KEY_BYTES + place_of(KEYS + i / PIECES, i % PIECES), zeros);
        }
    }
    if constexpr (PIECES % 2 > 0) {
        for (u32 row = threadIdx.x; row < KEY_TILES * 8; row += THREADS) {
            store_piece(stage + QUERY_BYTES + place_of(row, PIECES), zeros);
        }
    }
}

// Requests keys and queries, then values, as two groups.
__device__ inline void request(const Problem &problem, u32 stage) {
    copy_tensor<FRAMES>(stage, problem.q, problem.q_stride);
    copy_tensor<KEYS>(stage + QUERY_BYTES, problem.k, problem.k_stride);
    commit();
    copy_tensor<KEYS>(stage + QUERY_BYTES + KEY_BYTES, problem.v, problem.v_stride);
    commit();
}

template <bool LAST>
__device__ inline void attend(const Problem &problem, u32 stage, float scale) {
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / 4, quad = lane % 4;
    const u32 queries = stage, keys = stage + QUERY_BYTES, values = keys + KEY_BYTES;

    if (LAST) {
        wait<1>();
    } else {
        wait<3>();
    }
    publish();
    __syncthreads();

#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
        const u32 first_row = (warp / 4 + m * GROUPS) * 64 + warp % 4 * 16;
        // A warp past the last frame has nothing to ask, but takes part.
        u32 query[(PIECES + 1) / 2][4] = {};
        if (first_row < FRAMES) {
            const u32 row = min(first_row + lane % 16, FRAMES - 1);
#pragma unroll
            for (u32 i = 0; i + 1 < PIECES; i += 2) load_4(query[i / 2], queries + place_of(row, i + lane / 16));
            if (PIECES % 2) load_2(query[PIECES / 2][0], query[PIECES / 2][1], queries + place_of(row, PIECES - 1));
        }

        float scores[KEY_TILES][4];
        matrices_begin();
#pragma unroll
        for (u32 i = 0; i < PIECES; i += 2) {
            const u64 key = describe(keys + i / PANEL * PANEL_BYTES + i % PANEL * PIECE_BYTES, PIECE_BYTES, ROWS_BYTES);
            multiply<0>(scores, query[i / 2], key, i > 0);
        }
        matrices_end();

        float norm[2] = {0.f, 0.f};
        u32 weights[KEY_STEPS][4];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = first_row + half * 8 + group;
            float highest = LOWEST, sum = 0.f;
            // Past the last frame there is nothing to weigh.
            if (first_row < FRAMES) {
#pragma unroll
                for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        float &score = scores[n][2 * half + i];
                        score = score_of(score, row, n * 8 + 2 * quad + i, FRAMES, KEYS, scale, problem);
                        highest = fmaxf(highest, score);
                    }
                }
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 1));
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 2));
                const float shift = shift_of(highest, scale);
#pragma unroll
                for (u32 n = 0; n < KEY_TILES; ++n) {
#pragma unroll
                    for (u32 i = 0; i < 2; ++i) {
                        float &score = scores[n][2 * half + i];
                        score = exp2_fast(score * factor_of(scale) - shift);
                        sum += score;
                    }
                }
                sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            }
            norm[half] = norm_of(sum);
        }
#pragma unroll
        for (u32 s = 0; s < KEY_STEPS; ++s) {
            weights[s][0] = pack(scores[2 * s][0], scores[2 * s][1]);
            weights[s][1] = pack(scores[2 * s][2], scores[2 * s][3]);
            const bool whole = 2 * s + 1 < KEY_TILES;
            const float(&odd)[4] = scores[whole ? 2 * s + 1 : 0];
            weights[s][2] = whole ? pack(odd[0], odd[1]) : 0, weights[s][3] = whole ? pack(odd[2], odd[3]) : 0;
        }

        if (m == 0) {
            if (LAST) {
                wait<0>();
            } else {
                wait<2>();
            }
            publish();
            __syncthreads();
        }
        float sums[PIECES][4];
        matrices_begin();
#pragma unroll
        for (u32 s = 0; s < KEY_STEPS; ++s) {
            const u64 value = describe(values + 2 * s * ROWS_BYTES, PANEL_BYTES, ROWS_BYTES);
            multiply<1>(sums, weights[s], value, s > 0);
        }
        matrices_end();

        // Out through the place of the warp's own queries, which it has used.
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = first_row + half * 8 + group;
            if (row < FRAMES) {
#pragma unroll
                for (u32 j = 0; j < PIECES; ++j) {
                    const u32 word = pack(sums[j][2 * half] * norm[half], sums[j][2 * half + 1] * norm[half]);
                    store_word(queries + place_of(row, j) + quad * 4, word);
                }
            }
        }
        __syncwarp();
        constexpr u32 OUT = 16 * PIECES;
#pragma unroll
        for (u32 first = 0; first < OUT; first += WARP) {
            const u32 place = first + lane, row = first_row + place / PIECES, piece = place % PIECES;
            if ((first + WARP <= OUT || place < OUT) && row < FRAMES) {
                const uint4 x = load_piece(queries + place_of(row, piece));
                __stcs(reinterpret_cast<uint4 *>(problem.out + row * problem.out_stride + piece * 8), x);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) warpgroup_attention(ATTENTION_PARAMETERS) {
    const Overlap overlap;
    extern __shared__ __align__(1024) uint4 shared[];
    const u32 base = u32(__cvta_generic_to_shared(shared));
    const u64 first = block_number() * ROUNDS, problems = items * heads;
    scale *= LOG2_E;

    if (first >= problems) return;
    Problem problem = PROBLEM(first, FRAMES, KEYS, HEAD_DIM);
    request(problem, base);
    for (u32 stage = 0; stage < STAGES; ++stage) fill(base + stage * STAGE_BYTES);
    if constexpr (ROUNDS == 1) {
        attend<true>(problem, base, scale);
    } else {
        for (u32 round = 0; round < ROUNDS; ++round) {
            const u64 next = first + round + 1;
            const bool more = round + 1 < ROUNDS && next < problems;
            const Problem coming = PROBLEM(more ? next : first, FRAMES, KEYS, HEAD_DIM);
            const u32 stage = base + (STAGES == 2 ? round % 2 * STAGE_BYTES : 0);
            if (STAGES == 2 && more) {
                request(coming, base + (round + 1) % 2 * STAGE_BYTES);
                attend<false>(problem, stage, scale);
            } else {
                attend<true>(problem, stage, scale);
            }
            if (!more) return;
            // The place of this round's tensors is free for others.
            __syncthreads();
            problem = coming;
            if (STAGES == 1) request(problem, base);
        }
    }
}
