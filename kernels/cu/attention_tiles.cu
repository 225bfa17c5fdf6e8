// Tiles of attention in shared memory, and their products on tensor cores. Rows come in tiles of 16, of queries and of
// keys; the last one is filled with zeros.
//
// Macros: those of attention.cu with FRAMES, KEYS, HEAD_DIM, WARPS and PROBLEMS. WARPGROUP is 1 if four warps multiply
// their tiles of queries together, with Hopper's warpgroup instructions.

constexpr u32 ROW_TILES = divide_up(FRAMES, 16);
constexpr u32 KEY_STEPS = divide_up(KEYS, 16);
constexpr u32 KEY_TILES = divide_up(KEYS, 8);
constexpr u32 COLUMN_TILES = divide_up(HEAD_DIM, 8);
// A warp multiplies as many tiles of 8 columns at once as fit into its registers, an even number of them if there are more.
constexpr u32 COLUMN_BLOCKS = WARPGROUP ? 1 : divide_up(COLUMN_TILES, 10);
constexpr u32 COLUMN_BLOCK = COLUMN_BLOCKS == 1 ? COLUMN_TILES : divide_up(COLUMN_TILES, 2 * COLUMN_BLOCKS) * 2;
// Vectors of 16 bytes of a row of a tensor, of a row of scores, and of a row of a block of columns. Warpgroup
// instructions need an even number of them.
constexpr u32 VECTORS = HEAD_DIM / WIDTH;
constexpr u32 PITCH = WARPGROUP ? divide_up(VECTORS, 2) * 2 : VECTORS;
constexpr u32 SQUARE_VECTORS = 16 / WIDTH;
constexpr u32 BLOCK_VECTORS = COLUMN_BLOCK * 8 / WIDTH;
constexpr u32 VECTOR_BYTES = 16;

constexpr u32 TILE_BYTES = 16 * PITCH * VECTOR_BYTES;
constexpr u32 SQUARE_BYTES = 16 * SQUARE_VECTORS * VECTOR_BYTES;
constexpr u32 BLOCK_BYTES = 16 * BLOCK_VECTORS * VECTOR_BYTES;
constexpr u32 QUERY_BYTES = ROW_TILES * TILE_BYTES;
// k and v have a place for a block of columns of each tile of dv and dk.
constexpr u32 STAGE_BYTES = TILE_BYTES > BLOCK_BYTES ? TILE_BYTES : BLOCK_BYTES;
constexpr u32 KEY_BYTES = KEY_STEPS * STAGE_BYTES;

// Rows of COUNT vectors are in panels of eight rows. The vectors of a row of a panel are permuted by the row's number,
// so that eight rows of a column use different banks, as the swizzles of warpgroup instructions do.
template <u32 COUNT>
constexpr u32 PANEL = COUNT % 8 == 0 ? 8 : COUNT % 4 == 0 ? 4 : COUNT % 2 == 0 ? 2 : 1;
template <u32 COUNT>
__device__ inline u32 swizzled(u32 row, u32 vector) {
    constexpr u32 WIDE = PANEL<COUNT>;
    return (row / 8 * (8 * COUNT) + vector / WIDE * (8 * WIDE) + row % 8 * WIDE +
            (vector % WIDE ^ row % 8 / (8 / WIDE))) * VECTOR_BYTES;
}

// Starts copies of the ROWS rows of a tensor, and fills the last tile with zeros.
template <u32 ROWS>
__device__ inline void load_rows(u32 to, const Element *__restrict__ from, u64 stride, u32 thread) {
    constexpr u32 COUNT = divide_up(ROWS, 16) * 16 * PITCH;
#pragma unroll
    for (u32 first = 0; first < COUNT; first += THREADS) {
        const u32 index = first + thread, row = index / PITCH, vector = index % PITCH;
        if (first + THREADS <= COUNT || index < COUNT) {
            const u32 at = to + swizzled<PITCH>(row, vector);
            if ((ROWS % 16 == 0 || row < ROWS) && (PITCH == VECTORS || vector < VECTORS)) {
                cp_async_16(at, from + row * stride + vector * WIDTH);
            } else {
                st_shared_v4(at, uint4{0, 0, 0, 0});
            }
        }
    }
}

#if ELEMENT != F32
// Stores 16 rows and 16 columns, as products have them, from a vector of the rows at `rows` on.
template <u32 COUNT>
__device__ inline void store_square(u32 rows, u32 vector, const u32 (&words)[4], u32 lane) {
#if __CUDA_ARCH__ >= 900
    stmatrix_x4(rows + swizzled<COUNT>(lane % 16, vector + lane / 16), words);
#else
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        st_shared_u32(rows + swizzled<COUNT>(i % 2 * 8 + lane / 4, vector + i / 2) + lane % 4 * 4, words[i]);
    }
#endif
}
#endif

// An operand of 16 rows and 16 columns: from sums of products, or from the transposed scores of 16 keys.
#if ELEMENT == F32
struct Operand {
    float x[2][4];
};
__device__ inline Operand operand_of(const float (&even)[4], const float (&odd)[4]) {
    // The columns 2t and 2t + 1 of a tile of 8 are in lane t, where the instruction expects t and t + 4.
    return Operand{{{even[0], even[2], even[1], even[3]}, {odd[0], odd[2], odd[1], odd[3]}}};
}
__device__ inline void store_operand(u32 square, const Operand &operand, u32 lane) {
    const u32 group = lane / 4, quad = lane % 4;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const float(&x)[4] = operand.x[i / 2];
        const u32 at = square + swizzled<SQUARE_VECTORS>(i % 2 * 8 + group, i / 2 * 2 + quad / 2);
        st_shared_v2_f32(at + quad % 2 * 8, x[i % 2], x[i % 2 + 2]);
    }
}
__device__ inline Operand transposed(u32 square, u32 lane) {
    const u32 group = lane / 4, quad = lane % 4;
    Operand operand;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            // Queries in the order of `multiply_step`: 2t, then 2t + 1.
            const u32 row = 8 * half + 2 * quad + i / 2, column = i % 2 * 8 + group;
            operand.x[half][i] = ld_shared_f32(square + swizzled<SQUARE_VECTORS>(row, column / 4) + column % 4 * 4);
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
                const u32 at = tile + swizzled<PITCH>(8 * half + 2 * quad + i, column / 4) + column % 4 * 4;
                if (HEAD_DIM % 8 == 0 || column < HEAD_DIM) b[i] = ld_shared_f32(at);
            }
            mma_3xtf32(c[j], split, Tf32x2<2>(b));
        }
    }
}

// c = a b^T for the 16 rows of q or grad at `rows` and the first steps of the rows of k or v at `others`.
template <u32 N>
__device__ inline void multiply_rows(float (&c)[N][4], u32 rows, u32 others, u32 steps, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < VECTORS; i += 2) {
        const bool is_whole = i + 2 <= VECTORS;
        u32 a[4] = {};
        if (is_whole) {
            ldmatrix_x4(a, rows + swizzled<PITCH>(lane % 16, i + lane / 16));
        } else {
            ldmatrix_x2(a[0], a[1], rows + swizzled<PITCH>(lane % 16, i));
        }
        const Tf32x2<4> split(a);
#pragma unroll
        for (u32 s = 0; s < divide_up(N, 2); ++s) {
            if (s >= steps) break;
            u32 b[4] = {};
            const u32 tile = others + s * TILE_BYTES;
            if (is_whole) {
                ldmatrix_x4(b, tile + swizzled<PITCH>(lane / 16 * 8 + lane % 8, i + lane / 8 % 2));
            } else {
                ldmatrix_x2(b[0], b[2], tile + swizzled<PITCH>(lane % 16, i));
            }
            const u32 even[2] = {b[0], b[1]}, odd[2] = {b[2], b[3]};
            mma_3xtf32(c[2 * s], split, Tf32x2<2>(even));
            if (2 * s + 1 < N) mma_3xtf32(c[2 * s + 1], split, Tf32x2<2>(odd));
        }
    }
}

// Stores 16 rows of a block of columns at `stage`.
__device__ inline void stage_block(u32 stage, const float (&c)[COLUMN_BLOCK][4], float factor, u32 lane) {
#pragma unroll
    for (u32 j = 0; j < COLUMN_BLOCK; ++j) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 row = 8 * half + lane / 4, column = 8 * j + lane % 4 * 2;
            const u32 at = stage + swizzled<BLOCK_VECTORS>(row, column / 4) + column % 4 * 4;
            st_shared_v2_f32(at, c[j][2 * half] * factor, c[j][2 * half + 1] * factor);
        }
    }
}
#else
struct Operand {
    u32 x[4];
};
__device__ inline Operand operand_of(const float (&even)[4], const float (&odd)[4]) {
    return Operand{{cvt_rn_x2(even[0], even[1]), cvt_rn_x2(even[2], even[3]), cvt_rn_x2(odd[0], odd[1]),
                    cvt_rn_x2(odd[2], odd[3])}};
}
__device__ inline void store_operand(u32 square, const Operand &operand, u32 lane) {
    store_square<SQUARE_VECTORS>(square, 0, operand.x, lane);
}
__device__ inline Operand transposed(u32 square, u32 lane) {
    Operand operand;
    ldmatrix_x4_trans(operand.x, square + swizzled<SQUARE_VECTORS>(lane / 16 * 8 + lane % 8, lane / 8 % 2));
    return operand;
}

#if WARPGROUP
// Starts c = a b, or c += a b if `accumulate`.
__device__ inline void multiply_step(float (&c)[COLUMN_BLOCK][4], const Operand &a, u32 tile, u32 accumulate) {
    constexpr u32 WIDE = PANEL<PITCH>;
    const u64 b = matrix_descriptor(tile, 8 * WIDE * VECTOR_BYTES, 8 * PITCH * VECTOR_BYTES, WIDE == 8 ? 1 : WIDE == 4 ? 2 : 3);
    wgmma<1>(c, a.x, b, accumulate);
}
// Starts c = a b^T.
template <u32 N>
__device__ inline void multiply_rows(float (&c)[N][4], u32 rows, u32 others, bool exist, u32 lane) {
    constexpr u32 WIDE = PANEL<PITCH>;
    u32 a[PITCH / 2][4] = {};
    if (exist) {
#pragma unroll
        for (u32 i = 0; i < PITCH; i += 2) ldmatrix_x4(a[i / 2], rows + swizzled<PITCH>(lane % 16, i + lane / 16));
    }
    wgmma_fence();
#pragma unroll
    for (u32 i = 0; i < PITCH; i += 2) {
        const u32 at = others + i / WIDE * (8 * WIDE * VECTOR_BYTES) + i % WIDE * VECTOR_BYTES;
        const u64 b = matrix_descriptor(at, VECTOR_BYTES, 8 * PITCH * VECTOR_BYTES, WIDE == 8 ? 1 : WIDE == 4 ? 2 : 3);
        wgmma<0>(c, a[i / 2], b, i > 0);
    }
    wgmma_commit_group();
}
#else
__device__ inline void multiply_step(float (&c)[COLUMN_BLOCK][4], const Operand &a, u32 tile, u32 first, u32 lane) {
    const u32(&x)[4] = a.x;
#pragma unroll
    for (u32 j = 0; j < COLUMN_BLOCK; j += 2) {
        u32 b[4];
        if (first + j + 2 <= COLUMN_TILES && j + 2 <= COLUMN_BLOCK) {
            ldmatrix_x4_trans(b, tile + swizzled<PITCH>(lane % 16, first + j + lane / 16));
            mma_m16n8k16(c[j + 1], x[0], x[1], x[2], x[3], b[2], b[3]);
        } else if (first + j < COLUMN_TILES) {
            ldmatrix_x2_trans(b[0], b[1], tile + swizzled<PITCH>(lane % 16, first + j));
        } else {
            continue;
        }
        mma_m16n8k16(c[j], x[0], x[1], x[2], x[3], b[0], b[1]);
    }
}

template <u32 N>
__device__ inline void multiply_rows(float (&c)[N][4], u32 rows, u32 others, u32 steps, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < VECTORS; i += 2) {
        u32 a[4];
        if (i + 2 <= VECTORS) {
            ldmatrix_x4(a, rows + swizzled<PITCH>(lane % 16, i + lane / 16));
        } else {
            ldmatrix_x2(a[0], a[1], rows + swizzled<PITCH>(lane % 16, i));
        }
#pragma unroll
        for (u32 s = 0; s < divide_up(N, 2); ++s) {
            if (s >= steps) break;
            u32 b[4];
            const u32 tile = others + s * TILE_BYTES;
            if (i + 2 <= VECTORS) {
                ldmatrix_x4(b, tile + swizzled<PITCH>(lane / 16 * 8 + lane % 8, i + lane / 8 % 2));
                mma_m16n8k16(c[2 * s], a[0], a[1], a[2], a[3], b[0], b[1]);
                if (2 * s + 1 < N) mma_m16n8k16(c[2 * s + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            } else {
                ldmatrix_x2(b[0], b[1], tile + swizzled<PITCH>(lane % 16, i));
                mma_m16n8k8(c[2 * s], a[0], a[1], b[0]);
                if (2 * s + 1 < N) mma_m16n8k8(c[2 * s + 1], a[0], a[1], b[1]);
            }
        }
    }
}
#endif

__device__ inline void stage_block(u32 stage, const float (&c)[COLUMN_BLOCK][4], float factor, u32 lane) {
    const auto word = [&](u32 j, u32 half) { return cvt_rn_x2(c[j][2 * half] * factor, c[j][2 * half + 1] * factor); };
#pragma unroll
    for (u32 j = 0; j < COLUMN_BLOCK; j += 2) {
        if (j + 2 <= COLUMN_BLOCK) {
            const u32 words[4] = {word(j, 0), word(j, 1), word(j + 1, 0), word(j + 1, 1)};
            store_square<BLOCK_VECTORS>(stage, j, words, lane);
        } else {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                st_shared_u32(stage + swizzled<BLOCK_VECTORS>(half * 8 + lane / 4, j) + lane % 4 * 4, word(j, half));
            }
        }
    }
}
#endif

// Stores a block of columns of 16 rows of a gradient, of which `rows` exist, through the shared memory at `stage`.
__device__ inline void store_block(Element *__restrict__ to, u64 stride, u32 rows, const float (&c)[COLUMN_BLOCK][4],
                                   u32 first, float factor, u32 stage, u32 lane) {
    __syncwarp();
    stage_block(stage, c, factor, lane);
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
