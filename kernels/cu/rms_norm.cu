// Root mean square norm of rows: out = x / sqrt(mean(x^2) + epsilon) * weight.
//
// Contract
//   macros      ELEMENT; COLUMNS; THREADS, a multiple of 32; ROWS, of a block, each served by
//               THREADS / ROWS threads, whole warps; ALIGNED (1 where rows begin at multiples of 16
//               bytes)
//   layout      x and out are [rows, COLUMNS], weight is [COLUMNS], contiguous; out overlaps none
//   grid        ROWS rows a block along y, folded into x or not; the last block may have fewer
//   block       THREADS on x
//   arguments   x, out (addresses of the chunk's first row), weight, rows of the chunk (u64),
//               epsilon (f32)
//   alignment   16 bytes where ALIGNED, that of the element otherwise
//   arithmetic  f32; 64-bit offsets
//
// A thread keeps its part of the row in registers between the sum and the scaling, so that the row
// is read once.

// What a thread takes at once, and how often it does.
#if ALIGNED
constexpr u32 STEP = WIDTH;
#else
constexpr u32 STEP = 1;
#endif
constexpr u32 THREADS_PER_ROW = THREADS / ROWS;
constexpr u32 WARPS_PER_ROW = THREADS_PER_ROW / WARP;
constexpr u32 STEPS = (COLUMNS / STEP + THREADS_PER_ROW - 1) / THREADS_PER_ROW;
// Steps whose elements stay in registers; those after are read twice.
constexpr u32 KEPT_BYTES = 128;
constexpr u32 KEPT = STEPS < KEPT_BYTES / (STEP * sizeof(Element)) ? STEPS : KEPT_BYTES / (STEP * sizeof(Element));

struct Part {
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

__device__ inline void write_part(Element *to, const Part &part) {
#if ALIGNED
    write_once(to, *reinterpret_cast<const Vector *>(&part));
#else
    *to = part.element[0];
#endif
}

__device__ inline float sum_of_squares(const Part &part) {
    float sum = 0.f;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) sum += widen(part.element[i]) * widen(part.element[i]);
    return sum;
}

// As `read_part`, of what all rows read.
__device__ inline Part read_shared_part(const Element *__restrict__ from) {
#if ALIGNED
    const uint4 bits = __ldg(reinterpret_cast<const uint4 *>(from));
    return *reinterpret_cast<const Part *>(&bits);
#else
    return Part{{*from}};
#endif
}

__device__ inline void scale_part(Element *out, const Part &part, const Element *weight, float scale) {
    const Part weights = read_shared_part(weight);
    Part scaled;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) {
        scaled.element[i] = narrow(widen(part.element[i]) * scale * widen(weights.element[i]));
    }
    write_part(out, scaled);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm(const Element *__restrict__ x, Element *__restrict__ out, const Element *__restrict__ weight, u64 rows, float epsilon) {
    const Overlap overlap;
    __shared__ float sums[THREADS / WARP];
    const u32 place = threadIdx.x / THREADS_PER_ROW, thread = threadIdx.x % THREADS_PER_ROW;
    const u64 row = block_number() * ROWS + place;
    // No early return: every thread meets the others below.
    const bool inside = row < rows;
    x += row * COLUMNS, out += row * COLUMNS;

    Part kept[KEPT];
    float sum = 0.f;
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) kept[step] = read_part(x + column);
    }
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) sum += sum_of_squares(kept[step]);
    }
    for (u32 step = KEPT; step < STEPS; ++step) {
        const u32 column = (step * THREADS_PER_ROW + thread) * STEP;
        if (inside && column < COLUMNS) sum += sum_of_squares(read_part(x + column));
    }
    sum = warp_sum(sum);
    if (WARPS_PER_ROW > 1) {
        if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
        __syncthreads();
        sum = 0.f;
#pragma unroll
        for (u32 warp = 0; warp < WARPS_PER_ROW; ++warp) sum += sums[place * WARPS_PER_ROW + warp];
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
        if (column < COLUMNS) scale_part(out + column, read_part(x + column), weight + column, scale);
    }
}
