// Tiles of attention in shared memory, and their products on tensor cores. Rows come in tiles of 16, of queries and of
// keys; the last one is filled with zeros.
//
// Macros: those of attention.cu with FRAMES, KEYS, HEAD_DIM, WARPS and PROBLEMS. WARPGROUP is 1 if four warps multiply
// their tiles of queries together, with Hopper's warpgroup instructions. Functions take the head dimension of their tensor.

constexpr u32 ROW_TILES = divide_up(FRAMES, 16);
constexpr u32 KEY_STEPS = divide_up(KEYS, 16);
constexpr u32 KEY_TILES = divide_up(KEYS, 8);
// Of rows with DIM elements: tiles of 8 columns, vectors of 16 bytes, and vectors from one row to the next. Warpgroup
// instructions need an even number of them.
template <u32 DIM>
constexpr u32 COLUMN_TILES_OF = divide_up(DIM, 8);
template <u32 DIM>
constexpr u32 VECTORS_OF = DIM / WIDTH;
template <u32 DIM>
constexpr u32 PITCH_OF = WARPGROUP ? divide_up(VECTORS_OF<DIM>, 2) * 2 : VECTORS_OF<DIM>;
constexpr u32 VECTOR_BYTES = 16;
template <u32 DIM>
constexpr u32 TILE_BYTES_OF = 16 * PITCH_OF<DIM> * VECTOR_BYTES;

constexpr u32 COLUMN_TILES = COLUMN_TILES_OF<HEAD_DIM>;
// A warp multiplies as many tiles of 8 columns at once as fit into its registers, an even number of them if there are more.
constexpr u32 COLUMN_BLOCKS = WARPGROUP ? 1 : divide_up(COLUMN_TILES, 10);
constexpr u32 COLUMN_BLOCK = COLUMN_BLOCKS == 1 ? COLUMN_TILES : divide_up(COLUMN_TILES, 2 * COLUMN_BLOCKS) * 2;
// Vectors of a row of scores, and of a row of a block of columns.
constexpr u32 SQUARE_VECTORS = 16 / WIDTH;
template <u32 COLUMNS>
constexpr u32 BLOCK_VECTORS_OF = COLUMNS * 8 / WIDTH;

constexpr u32 TILE_BYTES = TILE_BYTES_OF<HEAD_DIM>;
constexpr u32 SQUARE_BYTES = 16 * SQUARE_VECTORS * VECTOR_BYTES;
constexpr u32 BLOCK_BYTES = 16 * BLOCK_VECTORS_OF<COLUMN_BLOCK> * VECTOR_BYTES;
constexpr u32 QUERY_BYTES = ROW_TILES * TILE_BYTES;
// k and v have a place for a block of columns of each tile of dv and dk.
constexpr u32 STAGE_BYTES = TILE_BYTES > BLOCK_BYTES ? TILE_BYTES : BLOCK_BYTES;
constexpr u32 KEY_BYTES = KEY_STEPS * STAGE_BYTES;

// Of rows of COUNT vectors, groups of PANEL vectors are permuted by the row's number, so that eight rows of a column use
// different banks. Warpgroup instructions have each eight rows of such a group side by side, other rows are contiguous, as
// in global memory, so that neighbouring vectors also use different banks.
template <u32 COUNT>
constexpr u32 PANEL = COUNT % 8 == 0 ? 8 : COUNT % 4 == 0 ? 4 : COUNT % 2 == 0 ? 2 : 1;
template <u32 COUNT>
__device__ inline u32 swizzled(u32 row, u32 vector) {
    constexpr u32 WIDE = PANEL<COUNT>;
    const u32 permuted = row % 8 / (8 / WIDE);
    const u32 group = WARPGROUP ? row / 8 * (8 * COUNT) + vector / WIDE * (8 * WIDE) + row % 8 * WIDE : row * COUNT + vector / WIDE * WIDE;
    return (group + (vector % WIDE ^ permuted)) * VECTOR_BYTES;
}

// Starts copies of the first `rows` of ROWS rows of a tensor, and fills tiles with zeros.
template <u32 ROWS, u32 DIM = HEAD_DIM>
__device__ inline void load_rows(u32 to, const Element *__restrict__ from, u64 stride, u32 thread, u32 rows = ROWS) {
    constexpr u32 VECTORS = VECTORS_OF<DIM>, PITCH = PITCH_OF<DIM>, COUNT = divide_up(ROWS, 16) * 16 * PITCH;
    // If the threads take whole panels at once, all places of a thread have the same swizzle.
    constexpr bool IS_EVEN = THREADS % (8 * PITCH) == 0;
    const u32 place = to + swizzled<PITCH>(thread / PITCH, thread % PITCH);
    const Element *const source = from + thread / PITCH * stride + thread % PITCH * WIDTH;
#pragma unroll
    for (u32 first = 0; first < COUNT; first += THREADS) {
        const u32 index = first + thread, row = index / PITCH, vector = index % PITCH;
        if (first + THREADS <= COUNT || index < COUNT) {
            // Shared memory has a contiguous tensor as global memory, but for the order of neighbouring vectors.
            const bool is_plain = !WARPGROUP && !STRIDED;
            const u32 plain_at = (index ^ row % 8 / (8 / PANEL<PITCH>)) * VECTOR_BYTES;
            const u32 at = IS_EVEN ? place + first * VECTOR_BYTES : to + (is_plain ? plain_at : swizzled<PITCH>(row, vector));
            const bool exists = (rows == ROWS && first + THREADS <= ROWS * PITCH) || (is_plain ? index < rows * PITCH : row < rows);
            if (exists && (PITCH == VECTORS || vector < VECTORS)) {
                const Element *const one = is_plain ? from + index * WIDTH : from + row * stride + vector * WIDTH;
                cp_async_16(at, THREADS % PITCH == 0 ? source + first / PITCH * stride : one);
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

#if ELEMENT == F32
// Of COUNT tiles of columns, how many from tile j on share their columns.
__device__ constexpr u32 dealt_tiles(u32 count, u32 j) { return count - j >= 4 ? 4 : count - j >= 2 ? 2 : 1; }
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

// c += a b for 16 columns of each a and 16 rows of b, of which COUNT tiles of columns from `first` on. The columns of
// groups of four tiles, or two, are dealt out among them, so that a lane loads them at once. `small` has the sum of the small
// products; it may be c if IS_SAFE. The second half of the rows may be missing.
template <u32 DIM, bool IS_SAFE = false, u32 TILES, u32 COUNT>
__device__ inline void multiply_step(float (&c)[TILES][COUNT][4], float (&small)[TILES][COUNT][4], const Operand (&a)[TILES],
                                     u32 tile, u32 first, u32 lane, u32 halves) {
    const u32 group = lane / 4, quad = lane % 4;
    // An address has no bits there. The compiler does not know, so it does not copy numbers into pairs to save the mask.
    const u32 mask = TF32_MASK | tile >> 20;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        if (half >= halves) break;
        Tf32x2<4, IS_SAFE> split[TILES];
#pragma unroll
        for (u32 m = 0; m < TILES; ++m) split[m] = Tf32x2<4, IS_SAFE>(a[m].x[half]);
#pragma unroll
        for (u32 j = 0; j < COUNT; j += dealt_tiles(COUNT, j)) {
            const u32 wide = dealt_tiles(COUNT, j), column = (first + j) * 8 + group * wide;
            float x[2][4] = {};
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                const u32 at = tile + swizzled<PITCH_OF<DIM>>(8 * half + 2 * quad + i, column / 4) + column % 4 * 4;
                if ((first + j + wide) * 8 <= DIM || column < DIM) ld_shared_f32(x[i], wide, at);
            }
#pragma unroll
            for (u32 n = 0; n < wide; n += 2) {
                Tf32x2<2, IS_SAFE> b[2];
#pragma unroll
                for (u32 i = 0; i < 2; ++i) {
                    const float rows[2] = {x[0][n + i], x[1][n + i]};
                    b[i] = Tf32x2<2, IS_SAFE>(rows, mask);
                }
                mma_3xtf32(c, small, j + n, split, b, wide);
            }
        }
    }
}

template <u32 DIM = HEAD_DIM, u32 TILES, u32 COUNT>
__device__ inline void multiply_step(float (&c)[TILES][COUNT][4], const Operand (&a)[TILES], u32 tile, u32 first, u32 lane) {
    multiply_step<DIM, true>(c, c, a, tile, first, lane, 2);
}

// c += a b^T for the 16 rows of q or grad at each of `rows` and the first steps of the rows of k or v at `others`. `small` is
// as above.
template <u32 DIM, bool IS_SAFE, u32 TILES, u32 COUNT>
__device__ inline void add_rows(float (&c)[TILES][COUNT][4], float (&small)[TILES][COUNT][4], const u32 (&rows)[TILES],
                                u32 others, u32 steps, u32 lane) {
    constexpr u32 VECTORS = VECTORS_OF<DIM>, PITCH = PITCH_OF<DIM>;
    // With loads of more columns in flight, registers would spill.
#pragma unroll(TILES == 2 || VECTORS > 24 ? 4 : VECTORS)
    for (u32 i = 0; i < VECTORS; i += 2) {
        const bool is_whole = i + 2 <= VECTORS;
        Tf32x2<4, IS_SAFE> split[TILES];
#pragma unroll
        for (u32 m = 0; m < TILES; ++m) {
            u32 a[4] = {};
            if (is_whole) {
                ldmatrix_x4(a, rows[m] + swizzled<PITCH>(lane % 16, i + lane / 16));
            } else {
                ldmatrix_x2(a[0], a[1], rows[m] + swizzled<PITCH>(lane % 16, i));
            }
            split[m] = Tf32x2<4, IS_SAFE>(a);
        }
#pragma unroll
        for (u32 s = 0; s < divide_up(COUNT, 2); ++s) {
            if (s >= steps) break;
            u32 x[4] = {};
            const u32 tile = others + s * TILE_BYTES_OF<DIM>;
            if (is_whole) {
                ldmatrix_x4(x, tile + swizzled<PITCH>(lane / 16 * 8 + lane % 8, i + lane / 8 % 2));
            } else {
                ldmatrix_x2(x[0], x[2], tile + swizzled<PITCH>(lane % 16, i));
            }
            const u32 even[2] = {x[0], x[1]}, odd[2] = {x[2], x[3]};
            const Tf32x2<2, IS_SAFE> b[2] = {Tf32x2<2, IS_SAFE>(even), Tf32x2<2, IS_SAFE>(odd)};
            mma_3xtf32(c, small, 2 * s, split, b, COUNT - 2 * s);
        }
    }
}
template <u32 DIM = HEAD_DIM, u32 TILES, u32 COUNT>
__device__ inline void multiply_rows(float (&c)[TILES][COUNT][4], const u32 (&rows)[TILES], u32 others, u32 steps, u32 lane) {
    float small[TILES][COUNT][4] = {};
    add_rows<DIM, false>(c, small, rows, others, steps, lane);
    add_small(c, small);
}

// Stores COUNT tiles of columns, from `first` on, of 16 rows, of which `rows` exist. A lane has neighbouring columns.
template <u32 DIM = HEAD_DIM, u32 COUNT>
__device__ inline void store_block(Element *__restrict__ to, u64 stride, u32 rows, const float (&c)[COUNT][4], u32 first,
                                   const float (&factors)[2], u32, u32 lane) {
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const u32 row = 8 * half + lane / 4;
        if (row >= rows) continue;
#pragma unroll
        for (u32 j = 0; j < COUNT; j += dealt_tiles(COUNT, j)) {
            const u32 wide = dealt_tiles(COUNT, j);
            const auto value = [&](u32 n) { return c[j + n % wide][2 * half + n / wide] * factors[half]; };
            const u32 column = (first + j) * 8 + lane % 4 * 2 * wide;
            float *const at = to + row * stride + column;
            const bool is_whole = (first + j + wide) * 8 <= DIM;
            if (wide == 1) {
                if (is_whole || column < DIM) __stcs(reinterpret_cast<float2 *>(at), float2{value(0), value(1)});
            } else {
#pragma unroll
                for (u32 n = 0; n < 2 * wide; n += 4) {
                    if (is_whole || column + n < DIM) {
                        __stcs(reinterpret_cast<float4 *>(at + n), float4{value(n), value(n + 1), value(n + 2), value(n + 3)});
                    }
                }
            }
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
// The descriptor of tiles whose products have the columns of their rows (leading: VECTOR_BYTES), or the rows, in common.
template <u32 DIM>
__device__ inline u64 row_descriptor(u32 tile, u32 leading = VECTOR_BYTES) {
    constexpr u32 PITCH = PITCH_OF<DIM>, WIDE = PANEL<PITCH>;
    return matrix_descriptor(tile, leading, 8 * PITCH * VECTOR_BYTES, WIDE == 8 ? 1 : WIDE == 4 ? 2 : 3);
}
// Starts c = a b, or c += a b if `accumulate`, for the tile that is `offset` bytes behind the first one.
template <u32 DIM = HEAD_DIM, u32 COUNT>
__device__ inline void multiply_step(float (&c)[COUNT][4], const Operand &a, u32 first, u32 offset, u32 accumulate) {
    const u64 b = row_descriptor<DIM>(first, 8 * PANEL<PITCH_OF<DIM>> * VECTOR_BYTES);
    wgmma<1>(c, a.x, descriptor_at(b, offset), accumulate);
}
// Starts c = a b^T.
template <u32 DIM = HEAD_DIM, u32 COUNT>
__device__ inline void multiply_rows(float (&c)[COUNT][4], u32 rows, u32 others, bool exist, u32 lane) {
    constexpr u32 PITCH = PITCH_OF<DIM>, WIDE = PANEL<PITCH>;
    u32 a[PITCH / 2][4] = {};
    if (exist) {
#pragma unroll
        for (u32 i = 0; i < PITCH; i += 2) ldmatrix_x4(a[i / 2], rows + swizzled<PITCH>(lane % 16, i + lane / 16));
    }
    const u64 b = row_descriptor<DIM>(others);
    wgmma_fence();
#pragma unroll
    for (u32 i = 0; i < PITCH; i += 2) {
        const u32 offset = i / WIDE * (8 * WIDE * VECTOR_BYTES) + i % WIDE * VECTOR_BYTES;
        wgmma<0>(c, a[i / 2], descriptor_at(b, offset), i > 0);
    }
    wgmma_commit_group();
}
#else
template <u32 DIM = HEAD_DIM, u32 TILES, u32 COUNT>
__device__ inline void multiply_step(float (&c)[TILES][COUNT][4], const Operand (&a)[TILES], u32 tile, u32 first, u32 lane) {
    constexpr u32 PITCH = PITCH_OF<DIM>;
#pragma unroll
    for (u32 j = 0; j < COUNT; j += 2) {
        u32 b[4];
        const bool are_two = first + j + 2 <= COLUMN_TILES_OF<DIM> && j + 2 <= COUNT;
        if (are_two) {
            ldmatrix_x4_trans(b, tile + swizzled<PITCH>(lane % 16, first + j + lane / 16));
        } else if (first + j < COLUMN_TILES_OF<DIM>) {
            ldmatrix_x2_trans(b[0], b[1], tile + swizzled<PITCH>(lane % 16, first + j));
        } else {
            continue;
        }
#pragma unroll
        for (u32 m = 0; m < TILES; ++m) {
            const u32(&x)[4] = a[m].x;
            mma_m16n8k16(c[m][j], x[0], x[1], x[2], x[3], b[0], b[1]);
            if (are_two) mma_m16n8k16(c[m][j + 1], x[0], x[1], x[2], x[3], b[2], b[3]);
        }
    }
}

template <u32 DIM = HEAD_DIM, u32 TILES, u32 COUNT>
__device__ inline void multiply_rows(float (&c)[TILES][COUNT][4], const u32 (&rows)[TILES], u32 others, u32 steps, u32 lane) {
    constexpr u32 VECTORS = VECTORS_OF<DIM>, PITCH = PITCH_OF<DIM>;
#pragma unroll
    for (u32 i = 0; i < VECTORS; i += 2) {
        const bool is_whole = i + 2 <= VECTORS;
        u32 a[TILES][4];
#pragma unroll
        for (u32 m = 0; m < TILES; ++m) {
            if (is_whole) {
                ldmatrix_x4(a[m], rows[m] + swizzled<PITCH>(lane % 16, i + lane / 16));
            } else {
                ldmatrix_x2(a[m][0], a[m][1], rows[m] + swizzled<PITCH>(lane % 16, i));
            }
        }
#pragma unroll
        for (u32 s = 0; s < divide_up(COUNT, 2); ++s) {
            if (s >= steps) break;
            u32 b[4];
            const u32 tile = others + s * TILE_BYTES_OF<DIM>;
            if (is_whole) {
                ldmatrix_x4(b, tile + swizzled<PITCH>(lane / 16 * 8 + lane % 8, i + lane / 8 % 2));
            } else {
                ldmatrix_x2(b[0], b[2], tile + swizzled<PITCH>(lane % 16, i));
            }
#pragma unroll
            for (u32 m = 0; m < TILES; ++m) {
#pragma unroll
                for (u32 n = 0; n < 2; ++n) {
                    if (2 * s + n >= COUNT) break;
                    if (is_whole) {
                        mma_m16n8k16(c[m][2 * s + n], a[m][0], a[m][1], a[m][2], a[m][3], b[2 * n], b[2 * n + 1]);
                    } else {
                        mma_m16n8k8(c[m][2 * s + n], a[m][0], a[m][1], b[2 * n]);
                    }
                }
            }
        }
    }
}
#endif

// Stores COUNT tiles of columns, from `first` on, of 16 rows, of which `rows` exist, through the shared memory at `stage`.
template <u32 DIM = HEAD_DIM, u32 COUNT>
__device__ inline void store_block(Element *__restrict__ to, u64 stride, u32 rows, const float (&c)[COUNT][4], u32 first,
                                   const float (&factors)[2], u32 stage, u32 lane) {
    constexpr u32 BLOCK_VECTORS = BLOCK_VECTORS_OF<COUNT>;
    const auto word = [&](u32 j, u32 half) { return cvt_rn_x2(c[j][2 * half] * factors[half], c[j][2 * half + 1] * factors[half]); };
    __syncwarp();
#pragma unroll
    for (u32 j = 0; j < COUNT; j += 2) {
        if (j + 2 <= COUNT) {
            const u32 words[4] = {word(j, 0), word(j, 1), word(j + 1, 0), word(j + 1, 1)};
            store_square<BLOCK_VECTORS>(stage, j, words, lane);
        } else {
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                st_shared_u32(stage + swizzled<BLOCK_VECTORS>(half * 8 + lane / 4, j) + lane % 4 * 4, word(j, half));
            }
        }
    }
    __syncwarp();
    constexpr u32 TOTAL = 16 * BLOCK_VECTORS;
    const u32 column = first * 8 / WIDTH;
#pragma unroll
    for (u32 from = 0; from < TOTAL; from += WARP) {
        const u32 index = from + lane, row = index / BLOCK_VECTORS, vector = index % BLOCK_VECTORS;
        if ((from + WARP <= TOTAL || index < TOTAL) && row < rows && column + vector < VECTORS_OF<DIM>) {
            const uint4 x = ld_shared_v4(stage + swizzled<BLOCK_VECTORS>(row, vector));
            __stcs(reinterpret_cast<uint4 *>(to + row * stride + (column + vector) * WIDTH), x);
        }
    }
    __syncwarp();
}
#endif

// The same for one tile of rows.
template <u32 DIM = HEAD_DIM, u32 COUNT>
__device__ inline void store_block(Element *__restrict__ to, u64 stride, u32 rows, const float (&c)[COUNT][4], u32 first,
                                   float factor, u32 stage, u32 lane) {
    const float factors[2] = {factor, factor};
    store_block<DIM>(to, stride, rows, c, first, factors, stage, lane);
}
#if !WARPGROUP
template <u32 DIM = HEAD_DIM, u32 COUNT>
__device__ inline void multiply_step(float (&c)[COUNT][4], const Operand &a, u32 tile, u32 first, u32 lane) {
    const Operand one[1] = {a};
    multiply_step<DIM>(reinterpret_cast<float(&)[1][COUNT][4]>(c), one, tile, first, lane);
}
template <u32 DIM = HEAD_DIM, u32 COUNT>
__device__ inline void multiply_rows(float (&c)[COUNT][4], u32 rows, u32 others, u32 steps, u32 lane) {
    const u32 one[1] = {rows};
    float(&tile)[1][COUNT][4] = reinterpret_cast<float(&)[1][COUNT][4]>(c);
#if ELEMENT == F32
    // The gradients have no registers for sums of small products.
    add_rows<DIM, true>(tile, tile, one, others, steps, lane);
#else
    multiply_rows<DIM>(tile, one, others, steps, lane);
#endif
}
#endif
