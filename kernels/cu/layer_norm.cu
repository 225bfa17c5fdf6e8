// Layer norm of rows: out = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, plus the embedding of the
// row's position if POSITIONS is not 0.
//
// Contract
//   macros      ELEMENT. COLUMNS. ALIGNED (see row_parts.cu). THREADS, a multiple of 32. THREADS_PER_ROW, a divisor
//               of THREADS: a power of two up to 32 or a multiple of 32. POSITIONS, the number of positions that
//               consecutive rows cycle through, or 0 for no embedding.
//   layout      x and out are [rows, COLUMNS], weight and bias [COLUMNS], positions [POSITIONS, COLUMNS].
//   grid        THREADS / THREADS_PER_ROW rows a block on y.
//   block       THREADS on x.
//   arguments   x, out (addresses of the chunk's first row, which has position 0), weight, bias, [positions], rows of
//               the chunk (u64), epsilon (f32).
//   alignment   16 bytes if ALIGNED, else one element.
//   arithmetic  f32. A row with a NaN or an infinity is NaN throughout.
//
// Threads keep the row in registers. Elements that do not fit are read again, usually from the L2 cache. The variance
// is computed from differences, which avoids cancellation. The mean of the differences is the rounding error of the
// mean, and corrects both. A column is always summed by the same thread, so results do not depend on the launch.

constexpr u32 LANES = THREADS_PER_ROW < WARP ? THREADS_PER_ROW : WARP;
constexpr u32 WARPS_PER_ROW = THREADS_PER_ROW / LANES;
constexpr u32 STEPS = divide_up(COLUMNS / STEP, THREADS_PER_ROW);
// Steps whose elements stay in registers.
constexpr u32 KEPT_LIMIT = !ALIGNED ? 32 : THREADS > 512 ? 6 : 8;
constexpr u32 KEPT = STEPS < KEPT_LIMIT ? STEPS : KEPT_LIMIT;
// Up to this number of steps, the widened elements fit into registers too.
constexpr u32 WIDENED_LIMIT = 5;

// Makes the compiler widen the elements again later: 16-bit elements need half the registers.
__device__ inline void keep_narrow(Part (&kept)[KEPT]) {
#if ALIGNED && ELEMENT != F32
    if (KEPT <= WIDENED_LIMIT) return;
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        uint4 words = *reinterpret_cast<const uint4 *>(&kept[step]);
        asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
        kept[step] = *reinterpret_cast<const Part *>(&words);
    }
#endif
}

// Sums over a row of differences from the mean, and of their squares.
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

// The exact mean is `mean + mean_error`.
__device__ inline void store_normed(Element *out, const Part &part, const Element *weight, const Element *bias, float mean, float mean_error, float scale
                                    WITH_POSITION(const Element *position)) {
    const Part weights = load_part(weight), biases = load_part(bias);
#if POSITIONS
    const Part positions = load_part(position);
#endif
    Part normed;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) {
        const float difference = widen(part.element[i]) - mean - mean_error;
        float y = fmaf(difference * scale, widen(weights.element[i]), widen(biases.element[i]));
#if POSITIONS
        y += widen(positions.element[i]);
#endif
        normed.element[i] = narrow(y);
    }
    store_part(out, normed);
}

// The sum over the threads of a row, in every thread. Each call needs its own `shared`.
__device__ inline float row_sum(float x, float *shared) {
    x = warp_sum<LANES>(x);
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
    const u64 row = linear_block_index() * (THREADS / THREADS_PER_ROW) + threadIdx.x / THREADS_PER_ROW;
    // No early return, because row_sum needs all threads.
    const bool inside = row < rows;
    x += row * COLUMNS, out += row * COLUMNS;

    Part kept[KEPT];
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) kept[step] = load_part_once(x + column);
    }
    float sum = 0.f;
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) add_elements(sum, kept[step]);
    }
    for (u32 step = KEPT; step < STEPS; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) add_elements(sum, load_part(x + column));
    }
    const float mean = row_sum(sum, shared[0]) / COLUMNS;
    keep_narrow(kept);
    Sums sums = {0.f, 0.f};
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) add_differences(sums, kept[step], mean);
    }
    for (u32 step = KEPT; step < STEPS; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) add_differences(sums, load_part(x + column), mean);
    }
    const float mean_error = row_sum(sums.plain, shared[1]) / COLUMNS;
    const float squares = row_sum(sums.squares, shared[2]) / COLUMNS;
    if (!inside) return;
    keep_narrow(kept);
    // Rounding can make the variance of equal elements negative.
    const float scale = rsqrtf(fmaxf(squares - mean_error * mean_error, 0.f) + epsilon);
#if POSITIONS
    positions += row % POSITIONS * COLUMNS;
#endif
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (column < COLUMNS) store_normed(out + column, kept[step], weight + column, bias + column, mean, mean_error, scale WITH_POSITION(positions + column));
    }
    for (u32 step = KEPT; step < STEPS; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (column < COLUMNS) store_normed(out + column, load_part(x + column), weight + column, bias + column, mean, mean_error, scale WITH_POSITION(positions + column));
    }
}
