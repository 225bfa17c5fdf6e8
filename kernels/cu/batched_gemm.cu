// Batched matrix product of small matrices: c[p] = a[p] b[p].
//
// Contract
//   macros      ELEMENT. SIZE_M, SIZE_N and SIZE_K are 1 to 64. THREADS, a multiple of 32. A block has PROBLEMS
//               problems.
//   layout      a is [problems, M, K], b is [problems, K, N], c is [problems, M, N].
//   grid        PROBLEMS problems a block on z.
//   block       THREADS on x.
//   arguments   a, b, c (addresses of the chunk's first problem), problems of the chunk (u64).
//   alignment   16 bytes for tensors whose matrices are whole multiples of that, else one element.
//   arithmetic  f32, over k in order.
//
// The matrices of a block are contiguous in a, b and c, so each tensor is copied as one span, in vectors if the span is
// aligned. Threads compute tiles from shared memory, and use each element of a and b four or eight times.

constexpr u32 M = SIZE_M, N = SIZE_N, K = SIZE_K;
constexpr u32 A_ELEMENTS = PROBLEMS * M * K, B_ELEMENTS = PROBLEMS * K * N, C_ELEMENTS = PROBLEMS * M * N;

// The widest access, up to 16 bytes, that divides a row of n elements.
__device__ constexpr u32 widest(u32 n) {
    u32 width = WIDTH;
    while (n % width != 0) width /= 2;
    return width;
}
// Elements of an access to a row of a, and of b and c.
constexpr u32 K_WIDTH = widest(K), N_WIDTH = widest(N);

// A tile has up to 4 rows and 8 columns, in groups of N_WIDTH. Tiles interleave rows and groups, so that the accesses
// of a warp are contiguous.
constexpr u32 MAX_ROWS = 4, MAX_COLUMNS = 8;
constexpr u32 TILES_DOWN = divide_up(M, MAX_ROWS);
constexpr u32 ROWS = divide_up(M, TILES_DOWN);
constexpr u32 ROW_GROUPS = N / N_WIDTH;
constexpr u32 TILES_ACROSS = divide_up(ROW_GROUPS, MAX_COLUMNS / N_WIDTH);
constexpr u32 GROUPS = divide_up(ROW_GROUPS, TILES_ACROSS);
constexpr u32 TILES = TILES_DOWN * TILES_ACROSS;

// Whether tiles are stored in c directly, without shared memory.
constexpr bool DIRECT = N_WIDTH == WIDTH;
constexpr u32 A_PADDED = divide_up(A_ELEMENTS, WIDTH) * WIDTH, B_PADDED = divide_up(B_ELEMENTS, WIDTH) * WIDTH;
constexpr u32 C_STAGED = DIRECT ? 0 : C_ELEMENTS;

template <u32 COUNT>
struct alignas(COUNT * sizeof(Element)) Piece {
    Element element[COUNT];
};

template <u32 COUNT>
__device__ inline Piece<COUNT> load(const Element *from) {
    return *reinterpret_cast<const Piece<COUNT> *>(from);
}

// The number of elements that can be accessed as vectors: 0 if the address is not aligned. It is always aligned if
// matrices of `size` elements are whole vectors.
__device__ inline u32 whole_vectors(const Element *address, u32 elements, u32 size) {
    const bool aligned = size % WIDTH == 0 || reinterpret_cast<u64>(address) % sizeof(Vector) == 0;
    return aligned ? elements - elements % WIDTH : 0;
}

// A thread's share of the copy of a block's matrices to shared memory.
template <u32 SIZE>
struct Load {
    static constexpr u32 STEPS = divide_up(PROBLEMS * SIZE / WIDTH, THREADS);
    Vector vectors[STEPS > 0 ? STEPS : 1];

    __device__ inline void begin(const Element *from, u32 elements) {
        const u32 whole = whole_vectors(from, elements, SIZE);
#pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            const u32 element = (step * THREADS + threadIdx.x) * WIDTH;
            if (element < whole) vectors[step] = ldcs_vector(from + element);
        }
    }

    __device__ inline void end(Element *to, const Element *from, u32 elements) const {
        const u32 whole = whole_vectors(from, elements, SIZE);
#pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            const u32 element = (step * THREADS + threadIdx.x) * WIDTH;
            if (element < whole) *reinterpret_cast<Vector *>(to + element) = vectors[step];
        }
        if constexpr (SIZE % WIDTH != 0) {
#pragma unroll 8
            for (u32 element = whole + threadIdx.x; element < elements; element += THREADS) to[element] = __ldcs(from + element);
        }
    }
};

// Copies the matrices of a block from shared memory.
__device__ inline void store_staged(Element *to, const Element *from, u32 elements) {
    const u32 whole = whole_vectors(to, elements, M * N);
#pragma unroll 4
    for (u32 element = threadIdx.x * WIDTH; element < whole; element += THREADS * WIDTH) {
        stcs_vector(to + element, *reinterpret_cast<const Vector *>(from + element));
    }
#pragma unroll 4
    for (u32 element = whole + threadIdx.x; element < elements; element += THREADS) __stcs(to + element, from[element]);
}

// Computes one tile of one problem.
__device__ inline void compute_tile(const Element *a, const Element *b, Element *c, u32 down, u32 across) {
    // Rows and groups past the last are clamped, and not stored.
    u32 row[ROWS], column[GROUPS];
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) row[i] = min(down + i * TILES_DOWN, M - 1);
#pragma unroll
    for (u32 g = 0; g < GROUPS; ++g) column[g] = min(across + g * TILES_ACROSS, ROW_GROUPS - 1) * N_WIDTH;

    float sums[ROWS][GROUPS][N_WIDTH] = {};
#pragma unroll(K_WIDTH < 4 ? 4 : 1)
    for (u32 k = 0; k < K; k += K_WIDTH) {
        Piece<K_WIDTH> left[ROWS];
#pragma unroll
        for (u32 i = 0; i < ROWS; ++i) left[i] = load<K_WIDTH>(a + row[i] * K + k);
#pragma unroll
        for (u32 e = 0; e < K_WIDTH; ++e) {
#pragma unroll
            for (u32 g = 0; g < GROUPS; ++g) {
                const Piece<N_WIDTH> right = load<N_WIDTH>(b + (k + e) * N + column[g]);
#pragma unroll
                for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
                    for (u32 n = 0; n < N_WIDTH; ++n) {
                        sums[i][g][n] += widen(left[i].element[e]) * widen(right.element[n]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < ROWS; ++i) {
#pragma unroll
        for (u32 g = 0; g < GROUPS; ++g) {
            if (down + i * TILES_DOWN >= M || across + g * TILES_ACROSS >= ROW_GROUPS) continue;
            Piece<N_WIDTH> result;
#pragma unroll
            for (u32 n = 0; n < N_WIDTH; ++n) result.element[n] = narrow(sums[i][g][n]);
            Element *to = c + row[i] * N + column[g];
            if constexpr (DIRECT) {
                stcs_vector(to, *reinterpret_cast<const Vector *>(&result));
            } else {
                *reinterpret_cast<Piece<N_WIDTH> *>(to) = result;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    batched_gemm(const Element *__restrict__ a, const Element *__restrict__ b, Element *__restrict__ c, u64 problems) {
    const Overlap overlap;
    alignas(sizeof(Vector)) __shared__ Element staged[A_PADDED + B_PADDED + C_STAGED];
    Element *const staged_a = staged, *const staged_b = staged + A_PADDED, *const staged_c = staged_b + B_PADDED;
    const u64 first = linear_block_index() * PROBLEMS;
    const u32 count = PROBLEMS > 1 && problems - first < PROBLEMS ? u32(problems - first) : PROBLEMS;
    a += first * (M * K), b += first * (K * N), c += first * (M * N);

    Load<M * K> load_a;
    Load<K * N> load_b;
    load_a.begin(a, count * (M * K));
    load_b.begin(b, count * (K * N));
    load_a.end(staged_a, a, count * (M * K));
    load_b.end(staged_b, b, count * (K * N));
    __syncthreads();

#pragma unroll 1
    for (u32 task = threadIdx.x; task < count * TILES; task += THREADS) {
        const u32 problem = task / TILES, tile = task % TILES;
        Element *to = (DIRECT ? c : staged_c) + problem * (M * N);
        compute_tile(staged_a + problem * (M * K), staged_b + problem * (K * N), to, tile / TILES_ACROSS, tile % TILES_ACROSS);
    }
    if (DIRECT) return;
    __syncthreads();
    store_staged(c, staged_c, count * (M * N));
}
