// The gate of a feed-forward in its first product: out = (x Wv^T + bv) * gelu(x Wg^T + bg). The product, twice as
// wide as out, stays in registers.
//
// Contract
//   macros      ELEMENT is F16 or BF16. INNER, the columns of x, is a multiple of 64. COLUMNS, of out, is a multiple
//               of TILE, the columns of a block: 128 or 64. STAGES tiles of 64 rows and 64 columns of x are in
//               flight.
//   layout      x is [rows, INNER]. weight is [2, COLUMNS, INNER] and bias [2, COLUMNS], values before gates. out is
//               [rows, COLUMNS].
//   grid        COLUMNS / TILE blocks on x for each group of tiles of 64 rows. The groups share the tiles evenly.
//   block       384 threads on x: a producer warpgroup that loads, and two consumer warpgroups that take turns. One
//               multiplies a tile of 64 rows while the other computes gates and stores.
//   shared      dynamic: the weights of the block, the stages, and their mbarriers.
//   arguments   x (address of the chunk's first row), weight, bias, out, rows of the chunk (u64).
//   alignment   16 bytes.
//   arithmetic  wgmma with f32 accumulation, gelu in f32, one rounding. The relative error of erfc is below 2^-13.
//   needs       sm_90a.
//
// The weights of a block stay in shared memory for all its rows. Only x is loaded again, by the blocks of other
// columns.

constexpr u32 GROUP = 128;
constexpr u32 THREADS = 3 * GROUP;
constexpr u32 TILES_N = COLUMNS / TILE;
constexpr u32 KEYS = 64;                       // columns of a stage: 128 bytes
constexpr u32 PARTS = INNER / KEYS;
constexpr u32 ROW_BYTES = 128;
constexpr u32 A_BYTES = 64 * ROW_BYTES;        // of a stage
constexpr u32 B_BYTES = 2 * TILE * ROW_BYTES;  // the weights of as many columns
constexpr u32 WEIGHTS_OFFSET = 0, STAGES_OFFSET = PARTS * B_BYTES, BARRIERS_OFFSET = STAGES_OFFSET + STAGES * A_BYTES;
constexpr u32 N_TILES = 2 * TILE / 8;

__device__ inline u32 mbarrier(u32 base, u32 i) { return base + BARRIERS_OFFSET + 8 * i; }
constexpr u32 FULL = 0, EMPTY = STAGES, WEIGHTS = 2 * STAGES;

__device__ inline void mbarrier_init(u32 at, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ inline void mbarrier_arrive(u32 at) {
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.shared::cta.b64 t, [%0];\n}" ::"r"(at) : "memory");
}
__device__ inline void mbarrier_wait(u32 at, u32 parity) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again;\n}" ::"r"(at), "r"(parity) : "memory");
}

// Makes an mbarrier count this thread once its earlier cp.async copies have arrived.
__device__ inline void cp_async_mbarrier_arrive(u32 address) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address) : "memory");
}

// The consumer warpgroups take turns on named barriers: `group` waits, and the other consumer arrives.
__device__ inline void wait_for_turn(u32 group) { bar_sync<2 * GROUP>(1 + group); }
__device__ inline void give_turn(u32 group) { bar_arrive<2 * GROUP>(1 + group); }

// The 128-byte swizzle of wgmma permutes the 16-byte vectors of a row by the row's number.
__device__ inline u32 swizzled_offset(u32 row, u32 vector) { return row * ROW_BYTES + ((vector ^ (row & 7)) << 4); }
__device__ inline u64 tile_descriptor(u32 address) { return matrix_descriptor(address, 16, 1024, 1); }

// c = a b, or c += a b if `accumulate`, for 16 columns of a; both matrices in shared memory.
__device__ inline void wgmma(float (&c)[N_TILES][4], u64 a, u64 b, u32 accumulate) {
#if TILE == 128
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" OPERANDS_32 "}, %128, %129, p, 1, 1, 0, 0;\n}"
                 : OUTPUTS_32(0) : "l"(a), "l"(b), "r"(accumulate) : "memory");
#else
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" OPERANDS_16 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : OUTPUTS_16(0) : "l"(a), "l"(b), "r"(accumulate) : "memory");
#endif
}
// x * (1 + erf(x / sqrt(2))) / 2. The polynomial is shorter than the one in geglu.cu, so that the other warpgroup's
// products hide its time.
__device__ inline float gelu(float x) {
    const float z = fabsf(x);
    const float t = rcp_approx(fmaf(0.29f, z, 1.f)), power = ex2_approx(z * z * -0.72134752f);
    float tail = fmaf(0.25936508f, t, -0.030211105f);
    tail = fmaf(tail, t, 0.16056472f);
    tail = fmaf(tail, t, 0.11032433f);
    tail *= t * power;
    return x * fabsf((x > 0.f ? 1.f : 0.f) - tail);
}

// The column of the tile whose weights are row `n` in shared memory. wgmma gives a thread two columns of every
// eight. In this order, the columns of four such groups are eight contiguous columns of out.
__device__ inline u32 column_of(u32 n) { return n / 32 * 32 + n % 8 / 2 * 8 + n / 8 % 4 * 2 + n % 2; }

__device__ inline void load(u32 base, const Element *__restrict__ x, const Element *__restrict__ weight, u32 first_column,
                            u64 first_row, u32 tiles, u64 rows) {
    const u32 thread = threadIdx.x % GROUP, vector = thread % 8;
    for (u32 tile = 0; tile < tiles; ++tile) {
        for (u32 k = 0; k < PARTS; ++k) {
            const u32 part = tile * PARTS + k, stage = part % STAGES;
            if (part >= STAGES) mbarrier_wait(mbarrier(base, EMPTY + stage), (part / STAGES - 1) & 1);
            if (tile == 0) {
#pragma unroll 4
                for (u32 n = thread / 8; n < 2 * TILE; n += GROUP / 8) {
                    const u32 row = n < TILE ? first_column + column_of(n) : COLUMNS + first_column + column_of(n - TILE);
                    cp_async_16(base + WEIGHTS_OFFSET + k * B_BYTES + swizzled_offset(n, vector), weight + u64(row) * INNER + k * KEYS + vector * 8);
                }
                cp_async_mbarrier_arrive(mbarrier(base, WEIGHTS + k));
            }
            const u32 at = base + STAGES_OFFSET + stage * A_BYTES;
#pragma unroll
            for (u32 row = thread / 8; row < 64; row += GROUP / 8) {
                const u64 from = first_row + tile * 64 + row;
                // Rows past the last are clamped, and not stored.
                cp_async_16(at + swizzled_offset(row, vector), x + (from < rows ? from : rows - 1) * INNER + k * KEYS + vector * 8);
            }
            cp_async_mbarrier_arrive(mbarrier(base, FULL + stage));
        }
    }
}

__device__ inline void compute(u32 base, u32 group, const Element *__restrict__ bias, Element *__restrict__ out,
                               u32 first_column, u64 first_row, u32 tiles, u64 rows) {
    const u32 warp = threadIdx.x % GROUP / WARP, lane = threadIdx.x % WARP, quad = lane % 4;
    for (u32 tile = group; tile < tiles; tile += 2) {
        float c[N_TILES][4];
        // Taking turns also keeps a barrier's phase from being mistaken for the one before.
        if (tile > 0) wait_for_turn(group);
#pragma unroll
        for (u32 k = 0; k < PARTS; ++k) {
            const u32 part = tile * PARTS + k, stage = part % STAGES;
            if (tile == group) mbarrier_wait(mbarrier(base, WEIGHTS + k), 0);
            mbarrier_wait(mbarrier(base, FULL + stage), (part / STAGES) & 1);
            fence_proxy_async();
            const u64 a = tile_descriptor(base + STAGES_OFFSET + stage * A_BYTES), b = tile_descriptor(base + WEIGHTS_OFFSET + k * B_BYTES);
            wgmma_fence();
#pragma unroll
            for (u32 i = 0; i < 4; ++i) wgmma(c, a + 2 * i, b + 2 * i, k > 0 || i > 0);
            wgmma_commit_group();
            if (k > 0) {
                wgmma_wait_group<1>();
                if (lane == 0) mbarrier_arrive(mbarrier(base, EMPTY + (part - 1) % STAGES));
            }
        }
        if (tile + 1 < tiles) give_turn(1 - group);
        wgmma_wait_group<0>();
        if (lane == 0) mbarrier_arrive(mbarrier(base, EMPTY + (tile * PARTS + PARTS - 1) % STAGES));

        const u64 row = first_row + tile * 64 + warp * 16 + lane / 4;
        Element *to = out + row * COLUMNS + first_column + 8 * quad;
#pragma unroll
        for (u32 j = 0; j < TILE / 32; ++j) {
            const u32 column = first_column + 32 * j + 8 * quad;
            const uint4 values = __ldg(reinterpret_cast<const uint4 *>(bias + column));
            const uint4 gates = __ldg(reinterpret_cast<const uint4 *>(bias + COLUMNS + column));
            const Vector &of_values = *reinterpret_cast<const Vector *>(&values);
            const Vector &of_gates = *reinterpret_cast<const Vector *>(&gates);
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                u32 words[4];
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    float y[2];
#pragma unroll
                    for (u32 e = 0; e < 2; ++e) {
                        const float value = c[4 * j + i][2 * half + e] + widen(of_values.element[2 * i + e]);
                        const float gate = c[TILE / 8 + 4 * j + i][2 * half + e] + widen(of_gates.element[2 * i + e]);
                        y[e] = value * gelu(gate);
                    }
                    words[i] = cvt_rn_x2(y[0], y[1]);
                }
                if (row + 8 * half < rows) {
                    *reinterpret_cast<uint4 *>(to + 8 * half * COLUMNS + 32 * j) = uint4{words[0], words[1], words[2], words[3]};
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gated_product(const Element *__restrict__ x, const Element *__restrict__ weight, const Element *__restrict__ bias,
                  Element *__restrict__ out, u64 rows) {
    const Overlap overlap;
    extern __shared__ __align__(1024) uint4 shared[];
    const u32 base = u32(__cvta_generic_to_shared(shared));
    const u64 block = linear_block_index(), group = block / TILES_N, groups = u64(gridDim.x) * gridDim.y * gridDim.z / TILES_N;
    // The first `more` groups have one tile more.
    const u64 all = (rows + 63) / 64, each = all / groups, more = all % groups;
    const u32 tiles = u32(each + (group < more));
    if (tiles == 0) return;
    const u64 first_row = (group * each + (group < more ? group : more)) * 64;
    const u32 first_column = u32(block % TILES_N) * TILE;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            mbarrier_init(mbarrier(base, FULL + i), GROUP);
            mbarrier_init(mbarrier(base, EMPTY + i), GROUP / WARP);
        }
        for (u32 i = 0; i < PARTS; ++i) mbarrier_init(mbarrier(base, WEIGHTS + i), GROUP);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x < GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        load(base, x, weight, first_column, first_row, tiles, rows);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
        compute(base, threadIdx.x / GROUP - 1, bias, out, first_column, first_row, tiles, rows);
    }
}
