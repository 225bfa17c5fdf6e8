// The first product of a gated feed-forward with its gate: out = (x Wv^T + bv) * gelu(x Wg^T + bg), on Hopper's
// warpgroup instructions, so that the wide result of the product never reaches memory.
//
// Contract
//   macros      ELEMENT (F16 or BF16); INNER, columns of x, a multiple of 64; COLUMNS, of out, a multiple of TILE;
//               TILE, columns of a block: 128 or 64; STAGES, parts of 64 rows and 64 columns of x that are loaded ahead
//   layout      x is [rows, INNER]; weight is [2, COLUMNS, INNER] and bias [2, COLUMNS], those of the values before
//               those of the gates; out is [rows, COLUMNS]; contiguous; out overlaps none
//   grid        COLUMNS / TILE blocks on x for each group of tiles of 64 rows, folded into x; the groups share the
//               tiles evenly
//   block       384 on x: a warpgroup that loads, and two that compute a tile of 64 rows each in turn: one multiplies
//               while the other computes gates and stores
//   shared      dynamic: the block's rows of weight, the stages, and their barriers
//   arguments   x (address of the chunk's first row), weight, bias, out, rows of the chunk (u64)
//   alignment   16 bytes
//   arithmetic  wgmma with f32 accumulation, gelu in f32, the relative error of erf's complement below 2^-13; one
//               rounding
//   needs       sm_90a
//
// A block's weights stay in shared memory for all its rows: only x is read again, by the blocks of other columns.

constexpr u32 GROUP = 128;
constexpr u32 THREADS = 3 * GROUP;
constexpr u32 TILES_N = COLUMNS / TILE;
constexpr u32 KEYS = 64;                       // elements of a part's rows: 128 bytes
constexpr u32 PARTS = INNER / KEYS;
constexpr u32 ROW_BYTES = 128;
constexpr u32 A_BYTES = 64 * ROW_BYTES;        // a stage
constexpr u32 B_BYTES = 2 * TILE * ROW_BYTES;  // a part of the weights
constexpr u32 B_AT = 0, A_AT = PARTS * B_BYTES, BARRIERS_AT = A_AT + STAGES * A_BYTES;
constexpr u32 N_TILES = 2 * TILE / 8;

__device__ inline u32 barrier(u32 base, u32 i) { return base + BARRIERS_AT + 8 * i; }
constexpr u32 FULL = 0, EMPTY = STAGES, WEIGHTS = 2 * STAGES;

__device__ inline void barrier_init(u32 at, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ inline void barrier_arrive(u32 at) {
    asm volatile("{\n.reg .b64 t;\nmbarrier.arrive.shared::cta.b64 t, [%0];\n}" ::"r"(at) : "memory");
}
__device__ inline void barrier_wait(u32 at, u32 parity) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again;\n}" ::"r"(at), "r"(parity) : "memory");
}

__device__ inline void copy_16(u32 to, const Element *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The warpgroups that compute take turns: `group` waits for its turn, and the other is given its own.
__device__ inline void wait_for_turn(u32 group) { asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(2 * GROUP) : "memory"); }
__device__ inline void give_turn(u32 group) { asm volatile("bar.arrive %0, %1;" ::"r"(1 + group), "n"(2 * GROUP) : "memory"); }

// The barrier counts this thread once its copies so far have arrived.
__device__ inline void arrive_after_copies(u32 at) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
// What was copied to shared memory, as this thread sees it, is seen by the matrix instructions.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Pieces of 16 bytes change places within eight rows, as the instructions expect it of rows of 128 bytes.
__device__ inline u32 place(u32 row, u32 piece) { return row * ROW_BYTES + ((piece ^ (row & 7)) << 4); }
__device__ inline u64 describe(u32 address) {
    return u64((address & 0x3ffff) >> 4) | u64(1) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

#define NUMBERS_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_128 NUMBERS_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define T1(t) "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3])
#define T8(t) T1(t), T1(t + 1), T1(t + 2), T1(t + 3), T1(t + 4), T1(t + 5), T1(t + 6), T1(t + 7)
#if ELEMENT == F16
#define TYPE "f16"
#else
#define TYPE "bf16"
#endif

__device__ inline void multiply(float (&c)[N_TILES][4], u64 a, u64 b, u32 accumulate) {
#if TILE == 128
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" NUMBERS_128 "}, %128, %129, p, 1, 1, 0, 0;\n}"
                 : T8(0), T8(8), T8(16), T8(24) : "l"(a), "l"(b), "r"(accumulate) : "memory");
#else
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" NUMBERS_64 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : T8(0), T8(8) : "l"(a), "l"(b), "r"(accumulate) : "memory");
#endif
}
__device__ inline void fence_registers() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 N> __device__ inline void wait_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// x * (1 + erf(x / sqrt(2))) / 2: as geglu has it, with a polynomial that is short enough to hide behind the products.
__device__ inline float gelu(float x) {
    const float z = fabsf(x);
    float t, power;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(0.29f, z, 1.f)));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z * z * -0.72134752f));
    float tail = fmaf(0.25936508f, t, -0.030211105f);
    tail = fmaf(tail, t, 0.16056472f);
    tail = fmaf(tail, t, 0.11032433f);
    tail *= t * power;
    return x * fabsf((x > 0.f ? 1.f : 0.f) - tail);
}

// Two elements, the first in the lower half.
__device__ inline u32 pack(float low, float high) {
    u32 word;
#if ELEMENT == F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#endif
    return word;
}

// The column of the block's tile that row `n` of its weights in shared memory is. The instructions give a thread two
// columns of every eight; so placed, those of four eights are eight columns side by side.
__device__ inline u32 column_of(u32 n) { return n / 32 * 32 + n % 8 / 2 * 8 + n / 8 % 4 * 2 + n % 2; }

__device__ inline void load(u32 base, const Element *__restrict__ x, const Element *__restrict__ weight, u32 first_column,
                            u64 first_row, u32 tiles, u64 rows) {
    const u32 thread = threadIdx.x % GROUP, piece = thread % 8;
    for (u32 tile = 0; tile < tiles; ++tile) {
        for (u32 k = 0; k < PARTS; ++k) {
            const u32 part = tile * PARTS + k, stage = part % STAGES;
            if (part >= STAGES) barrier_wait(barrier(base, EMPTY + stage), (part / STAGES - 1) & 1);
            if (tile == 0) {
#pragma unroll 4
                for (u32 n = thread / 8; n < 2 * TILE; n += GROUP / 8) {
                    const u32 row = n < TILE ? first_column + column_of(n) : COLUMNS + first_column + column_of(n - TILE);
                    copy_16(base + B_AT + k * B_BYTES + place(n, piece), weight + u64(row) * INNER + k * KEYS + piece * 8);
                }
                arrive_after_copies(barrier(base, WEIGHTS + k));
            }
            const u32 at = base + A_AT + stage * A_BYTES;
#pragma unroll
            for (u32 row = thread / 8; row < 64; row += GROUP / 8) {
                const u64 from = first_row + tile * 64 + row;
                // Rows past the last are not stored.
                copy_16(at + place(row, piece), x + (from < rows ? from : rows - 1) * INNER + k * KEYS + piece * 8);
            }
            arrive_after_copies(barrier(base, FULL + stage));
        }
    }
}

__device__ inline void compute(u32 base, u32 group, const Element *__restrict__ bias, Element *__restrict__ out,
                               u32 first_column, u64 first_row, u32 tiles, u64 rows) {
    const u32 warp = threadIdx.x % GROUP / WARP, lane = threadIdx.x % WARP, quad = lane % 4;
    for (u32 tile = group; tile < tiles; tile += 2) {
        float c[N_TILES][4];
        // Without it a part could be mistaken for the one that its stage had before.
        if (tile > 0) wait_for_turn(group);
#pragma unroll
        for (u32 k = 0; k < PARTS; ++k) {
            const u32 part = tile * PARTS + k, stage = part % STAGES;
            if (tile == group) barrier_wait(barrier(base, WEIGHTS + k), 0);
            barrier_wait(barrier(base, FULL + stage), (part / STAGES) & 1);
            publish();
            const u64 a = describe(base + A_AT + stage * A_BYTES), b = describe(base + B_AT + k * B_BYTES);
            fence_registers();
#pragma unroll
            for (u32 i = 0; i < 4; ++i) multiply(c, a + 2 * i, b + 2 * i, k > 0 || i > 0);
            commit_products();
            if (k > 0) {
                wait_products<1>();
                if (lane == 0) barrier_arrive(barrier(base, EMPTY + (part - 1) % STAGES));
            }
        }
        if (tile + 1 < tiles) give_turn(1 - group);
        wait_products<0>();
        if (lane == 0) barrier_arrive(barrier(base, EMPTY + (tile * PARTS + PARTS - 1) % STAGES));

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
                    words[i] = pack(y[0], y[1]);
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
    const u64 block = block_number(), group = block / TILES_N, groups = u64(gridDim.x) * gridDim.y * gridDim.z / TILES_N;
    // The first groups have a tile more where they cannot have as many.
    const u64 all = (rows + 63) / 64, each = all / groups, more = all % groups;
    const u32 tiles = u32(each + (group < more));
    if (tiles == 0) return;
    const u64 first_row = (group * each + (group < more ? group : more)) * 64;
    const u32 first_column = u32(block % TILES_N) * TILE;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; ++i) {
            barrier_init(barrier(base, FULL + i), GROUP);
            barrier_init(barrier(base, EMPTY + i), GROUP / WARP);
        }
        for (u32 i = 0; i < PARTS; ++i) barrier_init(barrier(base, WEIGHTS + i), GROUP);
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
