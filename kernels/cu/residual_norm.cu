// Norm of a sum: out = norm(x + added) * weight, and cast = out in another type.
//
// Contract
//   macros      ELEMENT, F16 or BF16. COLUMNS, a multiple of 8. THREADS, a multiple of 32. LANES, the threads of a row: 8
//               or 32. CENTERED is 1 for the layer norm, 0 for the root mean square norm.
//   layout      x and out are f32, added and cast have elements: [rows, COLUMNS]. weight is f32, [COLUMNS].
//   grid        THREADS / LANES rows a block on y.
//   block       THREADS on x.
//   arguments   x, added, out, cast (addresses of the chunk's first row), weight, rows of the chunk (u64), epsilon (f32).
//               out may be x.
//   alignment   16 bytes.
//   arithmetic  f32. The variance is computed from differences.
//
// Threads keep the sum in registers, so that x is read once.

constexpr u32 STEPS = divide_up(COLUMNS / WIDTH, LANES);

struct alignas(16) Numbers {
    float number[4];
};
__device__ inline Numbers ldcs_numbers(const float *from) {
    const float4 bits = __ldcs(reinterpret_cast<const float4 *>(from));
    return *reinterpret_cast<const Numbers *>(&bits);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    residual_norm(const float *x, const Element *__restrict__ added, float *out, Element *__restrict__ cast, const float *__restrict__ weight, u64 rows, float epsilon) {
    const Overlap overlap;
    const u32 lane = threadIdx.x % LANES;
    const u64 row = linear_block_index() * (THREADS / LANES) + threadIdx.x / LANES;
    // No early return, because warp_sum needs all threads.
    const bool inside = row < rows;
    x += row * COLUMNS, added += row * COLUMNS, out += row * COLUMNS, cast += row * COLUMNS;

    float kept[STEPS][WIDTH];
    float sum = 0.f;
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const u32 column = (step * LANES + lane) * WIDTH;
        if (inside && column < COLUMNS) {
            const Vector more = ldcs_vector(added + column);
            const Numbers parts[2] = {ldcs_numbers(x + column), ldcs_numbers(x + column + 4)};
#pragma unroll
            for (u32 i = 0; i < WIDTH; ++i) {
                kept[step][i] = parts[i / 4].number[i % 4] + widen(more.element[i]);
                sum += kept[step][i];
            }
        }
    }
    const float mean = CENTERED ? warp_sum<LANES>(sum) / COLUMNS : 0.f;
    float squares = 0.f;
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        if (!inside || (step * LANES + lane) * WIDTH >= COLUMNS) continue;
#pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) {
            kept[step][i] -= mean;
            squares = fmaf(kept[step][i], kept[step][i], squares);
        }
    }
    const float scale = rsqrtf(warp_sum<LANES>(squares) / COLUMNS + epsilon);
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const u32 column = (step * LANES + lane) * WIDTH;
        if (!inside || column >= COLUMNS) continue;
        Numbers parts[2];
        Vector narrowed;
#pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) {
            const float y = kept[step][i] * scale * __ldg(weight + column + i);
            parts[i / 4].number[i % 4] = y;
            narrowed.element[i] = narrow(y);
        }
#pragma unroll
        for (u32 i = 0; i < 2; ++i) *reinterpret_cast<float4 *>(out + column + 4 * i) = *reinterpret_cast<const float4 *>(&parts[i]);
        *reinterpret_cast<uint4 *>(cast + column) = *reinterpret_cast<const uint4 *>(&narrowed);
    }
}
