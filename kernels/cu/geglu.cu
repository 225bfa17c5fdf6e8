// The gate of a feed-forward: out = x * gelu(gate), where gelu(g) = g * (1 + erf(g / sqrt(2))) / 2.
//
// Contract
//   macros      ELEMENT; COLUMNS, of out; THREADS; STEPS, parts of a thread: 16 bytes of a row where
//               ALIGNED, else one element; ITEMS and TILES: every TILES blocks serve ITEMS rows,
//               TILES * THREADS * STEPS parts being at least those of these rows; ALIGNED (1 where rows
//               of out are whole multiples of 16 bytes)
//   layout      in is [rows, 2, COLUMNS], x before gate; out is [rows, COLUMNS]; contiguous; out
//               overlaps none
//   grid        TILES blocks on x for each group of ITEMS rows on z, folded into x or not; the last
//               group may have fewer
//   block       THREADS on x
//   arguments   in, out (addresses of the chunk's first row), rows of the chunk (u64)
//   alignment   16 bytes where ALIGNED, that of the element otherwise
//   arithmetic  f32; 64-bit offsets between groups. For f16 and bf16 the relative error of erf's
//               complement is below 2^-16. NaN stays NaN; a gate of -inf gives NaN, as the formula does
//
// A thread has the loads of all its parts on their way before it stores the first.

#if ALIGNED
constexpr u32 STEP = WIDTH;
#else
constexpr u32 STEP = 1;
#endif
constexpr u32 PARTS = COLUMNS / STEP;

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

#if ELEMENT == F32
__device__ inline float gelu(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678f)); }
#else
// Without branches: erff has two, and both cost more than memory allows. The normal distribution beyond
// z >= 0 is exp(-z^2 / 2) times a polynomial in t = 1 / (1 + 0.305 z), fitted for the smallest greatest
// relative error from 0 to 13.2, where f32 ends: 4.5e-6, and 1e-5 with the rounding of the exponent.
__device__ inline float gelu(float x) {
    const float z = fabsf(x);
    float t, power;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(0.305f, z, 1.f)));
    // 2^(-z^2 log2(e) / 2)
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(z * z * -0.72134752f));
    float tail = fmaf(-0.07661898f, t, 0.20079674f);
    tail = fmaf(tail, t, -0.0029932808f);
    tail = fmaf(tail, t, 0.14002211f);
    tail = fmaf(tail, t, 0.11680108f);
    tail = fmaf(tail, t, 0.12199411f);
    tail *= t * power;
    return x * (x < 0.f ? tail : 1.f - tail);
}
#endif

__device__ inline Part gated(const Part &value, const Part &gate) {
    Part part;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) part.element[i] = narrow(widen(value.element[i]) * gelu(widen(gate.element[i])));
    return part;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    geglu(const Element *__restrict__ in, Element *__restrict__ out, u64 rows) {
    const Overlap overlap;
    const u64 block = block_number();
    const u64 before = block / TILES * ITEMS;
    in += before * 2 * COLUMNS, out += before * COLUMNS;
    const u32 end = u32(rows - before < ITEMS ? rows - before : ITEMS) * PARTS;
    const u32 start = u32(block % TILES) * (STEPS * THREADS) + threadIdx.x;

    Part values[STEPS], gates[STEPS];
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const u32 part = start + step * THREADS;
        // Rows of in are twice as long.
        const Element *from = in + (part + part / PARTS * PARTS) * STEP;
        if (part < end) values[step] = read_part(from), gates[step] = read_part(from + COLUMNS);
    }
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const u32 part = start + step * THREADS;
        if (part < end) write_part(out + part * STEP, gated(values[step], gates[step]));
    }
}
