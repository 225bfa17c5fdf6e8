// The gate of a feed-forward: out = x * gelu(gate), where gelu(g) = g * (1 + erf(g / sqrt(2))) / 2.
//
// Contract
//   macros      ELEMENT. COLUMNS, of out. ALIGNED (see row_parts.cu). THREADS. A thread computes STEPS parts. TILES
//               blocks share ITEMS rows. TILES * THREADS * STEPS parts cover these rows.
//   layout      in is [rows, 2, COLUMNS], x before gate. out is [rows, COLUMNS].
//   grid        TILES blocks on x for each group of ITEMS rows on z.
//   block       THREADS on x.
//   arguments   in, out (addresses of the chunk's first row), rows of the chunk (u64).
//   alignment   16 bytes if ALIGNED, else one element.
//   arithmetic  f32. Offsets between groups have 64 bits. For f16 and bf16 the relative error of erfc is below 2^-16.
//               NaN stays NaN. A gate of -inf gives NaN, as the formula does.
//
// A thread issues the loads of all its parts before its first store.

constexpr u32 PARTS = COLUMNS / STEP;

#if ELEMENT == F32
__device__ inline float gelu(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678f)); }
#else
// Without the two branches of erff, which take longer than the memory accesses. The upper tail of the normal
// distribution is exp(-z^2 / 2) times a minimax polynomial in t = 1 / (1 + 0.305 z). Its relative error is 4.5e-6 for
// z from 0 to 13.2, where f32 ends, and 1e-5 with the rounding of the exponent.
__device__ inline float gelu(float x) {
    const float z = fabsf(x);
    const float t = rcp_approx(fmaf(0.305f, z, 1.f)), power = ex2_approx(z * z * -0.72134752f);
    float tail = fmaf(-0.07661898f, t, 0.20079674f);
    tail = fmaf(tail, t, -0.0029932808f);
    tail = fmaf(tail, t, 0.14002211f);
    tail = fmaf(tail, t, 0.11680108f);
    tail = fmaf(tail, t, 0.12199411f);
    tail *= t * power;
    return x * (x < 0.f ? tail : 1.f - tail);
}
#endif

__device__ inline Part gate_part(const Part &value, const Part &gate) {
    Part part;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) part.element[i] = narrow(widen(value.element[i]) * gelu(widen(gate.element[i])));
    return part;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    geglu(const Element *__restrict__ in, Element *__restrict__ out, u64 rows) {
    const Overlap overlap;
    const u64 block = linear_block_index();
    const u64 first_row = block / TILES * ITEMS;
    in += first_row * 2 * COLUMNS, out += first_row * COLUMNS;
    const u32 end = u32(rows - first_row < ITEMS ? rows - first_row : ITEMS) * PARTS;
    const u32 first_part = u32(block % TILES) * (STEPS * THREADS) + threadIdx.x;

    Part values[STEPS], gates[STEPS];
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const u32 part = first_part + step * THREADS;
        // A row of in is twice as long as a row of out.
        const Element *from = in + (part + part / PARTS * PARTS) * STEP;
        if (part < end) values[step] = load_part_once(from), gates[step] = load_part_once(from + COLUMNS);
    }
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const u32 part = first_part + step * THREADS;
        if (part < end) store_part(out + part * STEP, gate_part(values[step], gates[step]));
    }
}
