// The difference between an output and a golden output.
//
// Contract
//   macros      ELEMENT. INTEGER is 1 if the elements are u32; then ELEMENT is F32. THREADS, a multiple of 32. A
//               thread compares STEPS elements.
//   layout      output and golden are [elements].
//   grid        THREADS * STEPS elements a block on x.
//   block       THREADS on x.
//   arguments   output and golden (addresses of the chunk's first element), sums, elements of the chunk (u64). sums
//               has the squared error and the squared norm of golden in f64. Then, in u64, the number of differing
//               pairs with an element that is not finite, and the number of pairs that differ in any bit.
//   alignment   one element, 8 bytes for sums.
//   arithmetic  f64, in any order.
//
// The caller sets sums to zero, and the kernel adds to them. Elements that are not finite on either side are counted
// but not summed, so that NaN does not hide other differences.

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

extern "C" __global__ void __launch_bounds__(THREADS)
    compare(const Compared *__restrict__ output, const Compared *__restrict__ golden, Sums *sums, u64 elements) {
    const Overlap overlap;
    __shared__ Sums parts[THREADS / WARP];
    const u64 first = linear_block_index() * (u64(THREADS) * STEPS) + threadIdx.x;
    Sums own = {0., 0., 0, 0};
#pragma unroll 8
    for (u32 step = 0; step < STEPS; ++step) {
        const u64 at = first + u64(step) * THREADS;
        if (at < elements) add(own, output[at], golden[at]);
    }
    own = {warp_sum(own.squared_error), warp_sum(own.squared_norm), warp_sum(own.not_finite),
           warp_sum(own.differing)};
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
