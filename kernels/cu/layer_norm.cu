// Layer norm of rows: out = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, and the embedding of the
// row's position where there is one.
//
// Contract
//   macros      ELEMENT; COLUMNS; THREADS, a multiple of 32; THREADS_PER_ROW, a divisor of THREADS: a
//               power of two up to 32 or a multiple of 32; ALIGNED (1 where rows begin at multiples of
//               16 bytes); POSITIONS, rows whose positions follow each other, or 0 for no embedding
//   layout      x and out are [rows, COLUMNS], weight and bias are [COLUMNS], positions is [POSITIONS, COLUMNS],
//               contiguous; out overlaps none
//   grid        THREADS / THREADS_PER_ROW rows a block along y, folded into x or not; the last block may
//               have fewer
//   block       THREADS on x
//   arguments   x, out (addresses of the chunk's first row, which has the first position), weight, bias, positions
//               (where there are some), rows of the chunk (u64), epsilon (f32)
//   alignment   16 bytes where ALIGNED, that of the element otherwise
//   arithmetic  f32; 64-bit offsets. A row with a NaN or an infinity is NaN throughout
//
// A row is read once: its threads keep it in registers, and what has no room there is read again, out of
// the second-level cache as a rule. The variance is of differences from the mean, which do not cancel; the
// mean's own rounding error is their mean, and is taken from both. Which thread sums what follows from
// the column alone, so that the result is the same whichever launch a row is in.

// What a thread takes at once.
#if ALIGNED
constexpr u32 STEP = WIDTH;
#else
constexpr u32 STEP = 1;
#endif
constexpr u32 LANES = THREADS_PER_ROW < WARP ? THREADS_PER_ROW : WARP;
constexpr u32 WARPS_PER_ROW = THREADS_PER_ROW / LANES;
constexpr u32 STEPS = (COLUMNS / STEP + THREADS_PER_ROW - 1) / THREADS_PER_ROW;
// Steps whose elements stay in registers.
constexpr u32 KEPT_LIMIT = !ALIGNED ? 32 : THREADS > 512 ? 6 : 8;
constexpr u32 KEPT = STEPS < KEPT_LIMIT ? STEPS : KEPT_LIMIT;
// Steps whose elements may stay in registers widened.
constexpr u32 LIGHT = 5;

struct alignas(STEP * sizeof(Element)) Part {
    Element element[STEP];
};

__device__ inline Part read_part(const Element *from) {
#if ALIGNED
    const Vector vector = read_once(from);
    return *reinterpret_cast<const Part *>(&vector);
#else
    return Part{{*from}};
#endif
}

// As `read_part`, of what is read again or by all rows.
__device__ inline Part read_kept_part(const Element *__restrict__ from) {
#if ALIGNED
    const uint4 bits = __ldg(reinterpret_cast<const uint4 *>(from));
    return *reinterpret_cast<const Part *>(&bits);
#else
    return Part{{__ldg(from)}};
#endif
}

__device__ inline void write_part(Element *to, const Part &part) {
#if ALIGNED
    write_once(to, *reinterpret_cast<const Vector *>(&part));
#else
    *to = part.element[0];
#endif
}

// Makes the compiler widen kept elements again: they have half the registers as they lie in memory.
__device__ inline void forget(Part (&kept)[KEPT]) {
#if ALIGNED && ELEMENT != F32
    if (KEPT <= LIGHT) return;
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        uint4 words = *reinterpret_cast<const uint4 *>(&kept[step]);
        asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
        kept[step] = *reinterpret_cast<const Part *>(&words);
    }
#endif
}

// Sums over a row: of elements, or of differences and their squares.
struct Sums {
    float plain, squares;
};

__device__ inline void add_elements(float &sum, const Part &part) {
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) sum += widen(part.element[i]);
}

__device__ inline void add_differences(Sums &sums, const Part &part, float mean) {
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) {
        const float difference = widen(part.element[i]) - mean;
        sums.plain += difference;
        sums.squares = fmaf(difference, difference, sums.squares);
    }
}

#if POSITIONS
#define WITH_POSITION(...) , __VA_ARGS__
#else
#define WITH_POSITION(...)
#endif

// `mean` is rounded, and `rest` what it lacks.
__device__ inline void write_normed(Element *out, const Part &part, const Element *weight, const Element *bias, float mean, float rest, float scale
                                    WITH_POSITION(const Element *position)) {
    const Part weights = read_kept_part(weight), biases = read_kept_part(bias);
#if POSITIONS
    const Part positions = read_kept_part(position);
#endif
    Part normed;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) {
        const float difference = widen(part.element[i]) - mean - rest;
        float y = fmaf(difference * scale, widen(weights.element[i]), widen(biases.element[i]));
#if POSITIONS
        y += widen(positions.element[i]);
#endif
        normed.element[i] = narrow(y);
    }
    write_part(out, normed);
}

// The sum over the threads of a row, the same in each of them. Each call has `shared` of its own.
__device__ inline float row_sum(float x, float *shared) {
#pragma unroll
    for (u32 lane = LANES / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(ALL_LANES, x, lane);
    if (WARPS_PER_ROW == 1) return x;
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    const float *sums = shared + threadIdx.x / THREADS_PER_ROW * WARPS_PER_ROW;
    float sum = 0.f;
#pragma unroll
    for (u32 warp = 0; warp < WARPS_PER_ROW; ++warp) sum += sums[warp];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm(const Element *__restrict__ x, Element *__restrict__ out, const Element *__restrict__ weight, const Element *__restrict__ bias
               WITH_POSITION(const Element *__restrict__ positions), u64 rows, float epsilon) {
    const Overlap overlap;
    __shared__ float shared[3][THREADS / WARP];
    const u32 thread = threadIdx.x % THREADS_PER_ROW;
    const u64 row = block_number() * (THREADS / THREADS_PER_ROW) + threadIdx.x / THREADS_PER_ROW;
    // No early return: every thread meets the others in `row_sum`.
    const bool inside = row < rows;
    x += row * COLUMNS, out += row * COLUMNS;

    Part kept[KEPT];
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) kept[step] = read_part(x + column);
    }
    float sum = 0.f;
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) add_elements(sum, kept[step]);
    }
    for (u32 step = KEPT; step < STEPS; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) add_elements(sum, read_kept_part(x + column));
    }
    const float mean = row_sum(sum, shared[0]) / COLUMNS;
    forget(kept);
    Sums sums = {0.f, 0.f};
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) add_differences(sums, kept[step], mean);
    }
    for (u32 step = KEPT; step < STEPS; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) add_differences(sums, read_kept_part(x + column), mean);
    }
    const float rest = row_sum(sums.plain, shared[1]) / COLUMNS;
    const float squares = row_sum(sums.squares, shared[2]) / COLUMNS;
    if (!inside) return;
    forget(kept);
    // Rounding may make the variance of equal elements negative.
    const float scale = rsqrtf(fmaxf(squares - rest * rest, 0.f) + epsilon);
#if POSITIONS
    positions += row % POSITIONS * COLUMNS;
#endif
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (column < COLUMNS) write_normed(out + column, kept[step], weight + column, bias + column, mean, rest, scale WITH_POSITION(positions + column));
    }
    for (u32 step = KEPT; step < STEPS; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (column < COLUMNS) write_normed(out + column, read_kept_part(x + column), weight + column, bias + column, mean, rest, scale WITH_POSITION(positions + column));
    }
}
