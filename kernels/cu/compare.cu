// How far an output is from one that is known to be right.
//
// Contract
//   macros      ELEMENT; INTEGER (1 where the elements are u32, which ELEMENT F32 stands for); THREADS, a
//               multiple of 32; STEPS, elements of a thread
//   layout      output and golden are [elements], contiguous
//   grid        THREADS * STEPS elements a block along x; the last block may have fewer
//   block       THREADS on x
//   arguments   output and golden (addresses of the chunk's first element), sums (squared error and
//               squared norm of golden, f64; elements that are not finite and differ, elements that
//               differ in any bit, u64), elements of the chunk (u64)
//   alignment   that of the elements, 8 bytes for sums
//   arithmetic  f64, in any order; 64-bit offsets
//
// Everything is added to sums, which the caller has set to zero. Elements that are not finite on either
// side are counted and not summed, so that no NaN hides what the others say.

#if INTEGER
typedef u32 Compared;
__device__ inline double value_of(Compared x) { return x; }
__device__ inline u32 bits_of(Compared x) { return x; }
__device__ inline bool is_finite(Compared) { return true; }
#else
typedef Element Compared;
__device__ inline double value_of(Compared x) { return widen(x); }
#if ELEMENT == F32
__device__ inline u32 bits_of(Compared x) { return __float_as_uint(x); }
#else
__device__ inline u32 bits_of(Compared x) { return x; }
#endif
__device__ inline bool is_finite(Compared x) {
    constexpr u32 INFINITE = 0x7f800000u;
    return (__float_as_uint(widen(x)) & INFINITE) != INFINITE;
}
#endif

struct Sums {
    double squared_error, squared_norm;
    u64 not_finite, differing;
};

__device__ inline void add(Sums &sums, Compared output, Compared golden) {
    const bool differs = bits_of(output) != bits_of(golden);
    sums.differing += differs;
    if (is_finite(output) && is_finite(golden)) {
        const double expected = value_of(golden), error = value_of(output) - expected;
        sums.squared_error += error * error, sums.squared_norm += expected * expected;
    } else {
        sums.not_finite += differs;
    }
}

template <typename Number>
__device__ inline Number warp_total(Number x) {
#pragma unroll
    for (u32 lane = WARP / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(ALL_LANES, x, lane);
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    compare(const Compared *__restrict__ output, const Compared *__restrict__ golden, Sums *sums, u64 elements) {
    const Overlap overlap;
    __shared__ Sums parts[THREADS / WARP];
    const u64 first = block_number() * (u64(THREADS) * STEPS) + threadIdx.x;
    Sums own = {0., 0., 0, 0};
#pragma unroll 8
    for (u32 step = 0; step < STEPS; ++step) {
        const u64 at = first + u64(step) * THREADS;
        if (at < elements) add(own, output[at], golden[at]);
    }
    own = {warp_total(own.squared_error), warp_total(own.squared_norm), warp_total(own.not_finite),
           warp_total(own.differing)};
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = own;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 warp = 1; warp < THREADS / WARP; ++warp) {
        own.squared_error += parts[warp].squared_error, own.squared_norm += parts[warp].squared_norm;
        own.not_finite += parts[warp].not_finite, own.differing += parts[warp].differing;
    }
    atomicAdd(&sums->squared_error, own.squared_error);
    atomicAdd(&sums->squared_norm, own.squared_norm);
    if (own.not_finite > 0) atomicAdd(&sums->not_finite, own.not_finite);
    if (own.differing > 0) atomicAdd(&sums->differing, own.differing);
}
