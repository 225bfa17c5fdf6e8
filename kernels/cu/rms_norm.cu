// Root mean square norm of rows: out = x / sqrt(mean(x^2) + epsilon) * weight.
//
// Contract
//   macros      ELEMENT. COLUMNS. ALIGNED (see row_parts.cu). THREADS, a multiple of 32. A block has ROWS rows, each
//               of THREADS / ROWS threads, whole warps.
//   layout      x and out are [rows, COLUMNS], weight is [COLUMNS].
//   grid        ROWS rows a block on y.
//   block       THREADS on x.
//   arguments   x, out (addresses of the chunk's first row), weight, rows of the chunk (u64), epsilon (f32).
//   alignment   16 bytes if ALIGNED, else one element.
//   arithmetic  f32.
//
// A thread keeps its parts of the row in registers between the sum and the scaling, so the row is read once.

constexpr u32 THREADS_PER_ROW = THREADS / ROWS;
constexpr u32 WARPS_PER_ROW = THREADS_PER_ROW / WARP;
constexpr u32 STEPS = divide_up(COLUMNS / STEP, THREADS_PER_ROW);
// Steps whose elements stay in registers. Later steps are read twice.
constexpr u32 KEPT_BYTES = 128;
constexpr u32 KEPT = STEPS < KEPT_BYTES / (STEP * sizeof(Element)) ? STEPS : KEPT_BYTES / (STEP * sizeof(Element));

__device__ inline float sum_of_squares(const Part &part) {
    float sum = 0.f;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) sum += widen(part.element[i]) * widen(part.element[i]);
    return sum;
}

__device__ inline void scale_part(Element *out, const Part &part, const Element *weight, float scale) {
    const Part weights = ALIGNED ? load_part(weight) : load_part_once(weight);
    Part scaled;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) {
        scaled.element[i] = narrow(widen(part.element[i]) * scale * widen(weights.element[i]));
    }
    store_part(out, scaled);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm(const Element *__restrict__ x, Element *__restrict__ out, const Element *__restrict__ weight, u64 rows, float epsilon) {
    const Overlap overlap;
    __shared__ float sums[THREADS / WARP];
    const u32 slot = threadIdx.x / THREADS_PER_ROW, thread = threadIdx.x % THREADS_PER_ROW;
    const u64 row = linear_block_index() * ROWS + slot;
    // No early return, because __syncthreads needs all threads.
    const bool inside = row < rows;
    x += row * COLUMNS, out += row * COLUMNS;

    Part kept[KEPT];
    float sum = 0.f;
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) kept[step] = load_part_once(x + column);
    }
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) sum += sum_of_squares(kept[step]);
    }
    for (u32 step = KEPT; step < STEPS; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) sum += sum_of_squares(load_part_once(x + column));
    }
    sum = warp_sum(sum);
    if (WARPS_PER_ROW > 1) {
        if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
        __syncthreads();
        sum = 0.f;
#pragma unroll
        for (u32 warp = 0; warp < WARPS_PER_ROW; ++warp) sum += sums[slot * WARPS_PER_ROW + warp];
    }
    if (!inside) return;
    const float scale = rsqrtf(sum / COLUMNS + epsilon);
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (column < COLUMNS) scale_part(out + column, kept[step], weight + column, scale);
    }
    for (u32 step = KEPT; step < STEPS; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (column < COLUMNS) scale_part(out + column, load_part_once(x + column), weight + column, scale);
    }
}
