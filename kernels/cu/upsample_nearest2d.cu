// Nearest-neighbour resizing of planes: out[y][x] = in[source(y)][source(x)].
//
// Contract
//   macros      ELEMENT; IN_HEIGHT, IN_WIDTH, OUT_HEIGHT, OUT_WIDTH, each up to 2^24; THREADS;
//               STEPS, vectors of a thread; PLANES and TILES: every TILES blocks serve PLANES planes,
//               TILES * THREADS * STEPS vectors being at least those of these planes, one that is cut
//               at the start included; ALIGNED (1 where OUT_WIDTH is a multiple of a vector); FACTOR
//               (OUT_WIDTH / IN_WIDTH where that is a power of two and divides an ALIGNED row's
//               vector into whole elements, 0 otherwise)
//   layout      in is [planes, IN_HEIGHT, IN_WIDTH], out is [planes, OUT_HEIGHT, OUT_WIDTH],
//               contiguous; out overlaps none
//   grid        TILES blocks on x for each group of PLANES planes on z, folded into x or not; the
//               last group may have fewer
//   block       THREADS on x
//   arguments   in, out (addresses of the chunk's first plane), planes of the chunk (u64)
//   alignment   out 16 bytes where ALIGNED; in 16 / FACTOR bytes where FACTOR; that of the element
//               otherwise
//   arithmetic  none on elements. source(y) = min(floor(f32(y) * scale), IN_HEIGHT - 1) with
//               scale = f32(IN_HEIGHT) / f32(OUT_HEIGHT), each rounded to f32, and likewise for x: as
//               PyTorch's "nearest". 64-bit offsets where 32 bits do not hold those of a group
//
// The planes of a group are one span of out, cut into vectors at multiples of 16 bytes. Where a vector
// shows one load of a FACTOR-th of its bytes, a thread has the loads of all its vectors on their way
// before it stores the first; else it takes them element by element, mostly from the first-level cache.

constexpr u64 IN_PLANE = u64(IN_HEIGHT) * IN_WIDTH;
constexpr u64 OUT_PLANE = u64(OUT_HEIGHT) * OUT_WIDTH;
constexpr float ROW_SCALE = float(IN_HEIGHT) / float(OUT_HEIGHT);
constexpr float COLUMN_SCALE = float(IN_WIDTH) / float(OUT_WIDTH);

// Counts elements within a group, and a tile past its end.
#if PLANES * IN_HEIGHT * IN_WIDTH < 0x80000000 && PLANES * OUT_HEIGHT * OUT_WIDTH < 0x80000000
typedef u32 Offset;
#else
typedef u64 Offset;
#endif

__device__ inline u32 source(u32 place, float scale, u32 size) {
    // Both are at least zero, so that the conversion is the floor.
    const u32 nearest = u32(__fmul_rn(float(place), scale));
    return nearest < size - 1 ? nearest : size - 1;
}

__device__ inline u32 source_column(u32 column) { return source(column, COLUMN_SCALE, IN_WIDTH); }

// Where the input row begins that `row` of the group's output rows shows.
__device__ inline Offset source_row(Offset row) {
    const Offset plane = PLANES > 1 ? row / OUT_HEIGHT : 0;
    return (plane * IN_HEIGHT + source(u32(row % OUT_HEIGHT), ROW_SCALE, IN_HEIGHT)) * IN_WIDTH;
}

__device__ inline Element fetch_element(const Element *__restrict__ in, Offset place) {
    return __ldg(in + (source_row(place / OUT_WIDTH) + source_column(u32(place % OUT_WIDTH))));
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

// The part of an input row that the vector from `first` on shows.
__device__ inline Part fetch(const Element *__restrict__ in, Offset first) {
    const Offset from = source_row(first / OUT_WIDTH) + u32(first % OUT_WIDTH) / FACTOR;
    return __ldg(reinterpret_cast<const Part *>(in + from));
}

// Each element FACTOR times.
__device__ inline Vector expand(const Part &part) {
    const Element *elements = reinterpret_cast<const Element *>(&part);
    Vector vector;
#pragma unroll
    for (u32 i = 0; i < WIDTH; ++i) vector.element[i] = elements[i / FACTOR];
    return vector;
}
#else
// The elements that the vector from `first` on shows, each by itself.
__device__ inline Vector fetch(const Element *__restrict__ in, Offset first) {
    Vector vector;
    if (OUT_WIDTH >= WIDTH) {
        // Of two rows at most.
        const u32 column = u32(first % OUT_WIDTH);
        const bool crosses = !ALIGNED && column + WIDTH > OUT_WIDTH;
        const Offset row = source_row(first / OUT_WIDTH);
        const Offset next = crosses ? source_row(first / OUT_WIDTH + 1) : row;
#pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) {
            const bool behind = !ALIGNED && column + i >= OUT_WIDTH;
            const u32 from = source_column(behind ? column + i - OUT_WIDTH : column + i);
            vector.element[i] = __ldg(in + ((behind ? next : row) + from));
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) vector.element[i] = fetch_element(in, first + i);
    }
    return vector;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    upsample_nearest2d(const Element *__restrict__ in, Element *__restrict__ out, u64 planes) {
    const Overlap overlap;
    const u64 block = block_number();
    const u64 before = block / TILES * PLANES;
    in += before * IN_PLANE, out += before * OUT_PLANE;
    const Offset span = Offset((planes - before < PLANES ? planes - before : PLANES) * OUT_PLANE);
    // Elements of the first vector that lie before the span.
    const u32 skew = ALIGNED ? 0 : u32(reinterpret_cast<u64>(out) % 16 / sizeof(Element));
    // Of the thread's first vector: below zero it wraps, and is as far from the span.
    const Offset start = (Offset(block % TILES) * (STEPS * THREADS) + threadIdx.x) * WIDTH - skew;

#if FACTOR
    Part parts[STEPS];
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const Offset first = start + step * THREADS * WIDTH;
        if (first < span) parts[step] = fetch(in, first);
    }
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const Offset first = start + step * THREADS * WIDTH;
        if (first < span) write_once(out + first, expand(parts[step]));
    }
#else
    // The elements of one vector are enough loads at once.
#pragma unroll 1
    for (u32 step = 0; step < STEPS; ++step) {
        const Offset first = start + step * THREADS * WIDTH;
        if (first < span && span - first >= WIDTH) {
            write_once(out + first, fetch(in, first));
        } else if (!ALIGNED) {
            // A vector cut by an end of the span, or none of it.
#pragma unroll 1
            for (u32 i = 0; i < WIDTH; ++i) {
                const Offset place = first + i;
                if (place < span) out[place] = fetch_element(in, place);
            }
        }
    }
#endif
}
