// Nearest-neighbour resizing of planes: out[y][x] = in[source(y)][source(x)].
//
// Contract
//   macros      ELEMENT. IN_HEIGHT, IN_WIDTH, OUT_HEIGHT and OUT_WIDTH, each up to 2^24. THREADS. A thread stores
//               STEPS vectors. TILES blocks share PLANES planes. TILES * THREADS * STEPS vectors cover these planes,
//               and a partial vector at the start. ALIGNED is 1 if OUT_WIDTH is a multiple of a vector. FACTOR is
//               OUT_WIDTH / IN_WIDTH if that is a power of two and divides the vectors of an ALIGNED row into whole
//               elements, else 0.
//   layout      in is [planes, IN_HEIGHT, IN_WIDTH], out is [planes, OUT_HEIGHT, OUT_WIDTH].
//   grid        TILES blocks on x for each group of PLANES planes on z.
//   block       THREADS on x.
//   arguments   in, out (addresses of the chunk's first plane), planes of the chunk (u64).
//   alignment   out 16 bytes if ALIGNED; in 16 / FACTOR bytes if FACTOR is not 0; else one element.
//   arithmetic  none on elements. source(y) = min(floor(f32(y) * scale), IN_HEIGHT - 1), where scale = f32(IN_HEIGHT)
//               / f32(OUT_HEIGHT). Both are rounded to f32, and likewise for x, as in PyTorch's "nearest". Offsets
//               have 64 bits unless 32 bits hold the offsets of a group.
//
// The planes of a group are one span of out, split into vectors at multiples of 16 bytes. With a FACTOR, one load gives
// the elements of a vector, and a thread issues the loads of all its vectors before its first store. Otherwise elements
// are loaded one by one, mostly from the L1 cache.

constexpr u64 IN_PLANE = u64(IN_HEIGHT) * IN_WIDTH;
constexpr u64 OUT_PLANE = u64(OUT_HEIGHT) * OUT_WIDTH;
constexpr float ROW_SCALE = float(IN_HEIGHT) / float(OUT_HEIGHT);
constexpr float COLUMN_SCALE = float(IN_WIDTH) / float(OUT_WIDTH);

// An offset of elements within a group, or up to one tile past its end.
#if PLANES * IN_HEIGHT * IN_WIDTH < 0x80000000 && PLANES * OUT_HEIGHT * OUT_WIDTH < 0x80000000
typedef u32 Offset;
#else
typedef u64 Offset;
#endif

__device__ inline u32 source(u32 position, float scale, u32 size) {
    // The conversion truncates, which is the floor of a number that is not negative.
    const u32 nearest = u32(__fmul_rn(float(position), scale));
    return nearest < size - 1 ? nearest : size - 1;
}

__device__ inline u32 source_column(u32 column) { return source(column, COLUMN_SCALE, IN_WIDTH); }

// The offset of the input row for an output row of the group.
__device__ inline Offset source_row(Offset row) {
    const Offset plane = PLANES > 1 ? row / OUT_HEIGHT : 0;
    return (plane * IN_HEIGHT + source(u32(row % OUT_HEIGHT), ROW_SCALE, IN_HEIGHT)) * IN_WIDTH;
}

__device__ inline Element load_element(const Element *__restrict__ in, Offset at) {
    return __ldg(in + (source_row(at / OUT_WIDTH) + source_column(u32(at % OUT_WIDTH))));
}

#if FACTOR
// WIDTH / FACTOR elements.
#if FACTOR == 1
typedef uint4 Part;
#elif FACTOR == 2
typedef uint2 Part;
#elif FACTOR == 4
typedef u32 Part;
#else
typedef u16 Part;
#endif

// The part of an input row for the output vector at `first`.
__device__ inline Part load_vector(const Element *__restrict__ in, Offset first) {
    const Offset from = source_row(first / OUT_WIDTH) + u32(first % OUT_WIDTH) / FACTOR;
    return __ldg(reinterpret_cast<const Part *>(in + from));
}

// Repeats each element FACTOR times.
__device__ inline Vector expand(const Part &part) {
    const Element *elements = reinterpret_cast<const Element *>(&part);
    Vector vector;
#pragma unroll
    for (u32 i = 0; i < WIDTH; ++i) vector.element[i] = elements[i / FACTOR];
    return vector;
}
#else
// The output vector at `first`, element by element.
__device__ inline Vector load_vector(const Element *__restrict__ in, Offset first) {
    Vector vector;
    if (OUT_WIDTH >= WIDTH) {
        // At most two rows.
        const u32 column = u32(first % OUT_WIDTH);
        const bool crosses = !ALIGNED && column + WIDTH > OUT_WIDTH;
        const Offset row = source_row(first / OUT_WIDTH);
        const Offset next = crosses ? source_row(first / OUT_WIDTH + 1) : row;
#pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) {
            const bool in_next_row = !ALIGNED && column + i >= OUT_WIDTH;
            const u32 from = source_column(in_next_row ? column + i - OUT_WIDTH : column + i);
            vector.element[i] = __ldg(in + ((in_next_row ? next : row) + from));
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) vector.element[i] = load_element(in, first + i);
    }
    return vector;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    upsample_nearest2d(const Element *__restrict__ in, Element *__restrict__ out, u64 planes) {
    const Overlap overlap;
    const u64 block = linear_block_index();
    const u64 first_plane = block / TILES * PLANES;
    in += first_plane * IN_PLANE, out += first_plane * OUT_PLANE;
    const Offset span = Offset((planes - first_plane < PLANES ? planes - first_plane : PLANES) * OUT_PLANE);
    // Elements of the first vector before the span.
    const u32 skew = ALIGNED ? 0 : u32(reinterpret_cast<u64>(out) % 16 / sizeof(Element));
    // The start of the thread's first vector. A negative value wraps, and is then past the end of the span.
    const Offset start = (Offset(block % TILES) * (STEPS * THREADS) + threadIdx.x) * WIDTH - skew;

#if FACTOR
    Part parts[STEPS];
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const Offset first = start + step * THREADS * WIDTH;
        if (first < span) parts[step] = load_vector(in, first);
    }
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const Offset first = start + step * THREADS * WIDTH;
        if (first < span) stcs_vector(out + first, expand(parts[step]));
    }
#else
#pragma unroll 1
    for (u32 step = 0; step < STEPS; ++step) {
        const Offset first = start + step * THREADS * WIDTH;
        if (first < span && span - first >= WIDTH) {
            stcs_vector(out + first, load_vector(in, first));
        } else if (!ALIGNED) {
            // A vector that is partly or wholly outside the span.
#pragma unroll 1
            for (u32 i = 0; i < WIDTH; ++i) {
                const Offset at = first + i;
                if (at < span) out[at] = load_element(in, at);
            }
        }
    }
#endif
}
