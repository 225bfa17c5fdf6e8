// The tensors of a problem of `attention_backward`, in global and in shared memory.

constexpr u32 VALUES = 2 * QUERY_BYTES + KEY_BYTES;
constexpr u32 TENSORS_BYTES = VALUES + KEY_BYTES;

struct BackwardStrides {
    Stride q, k, v, grad, dq, dk, dv;
#if BIAS
    Stride bias;
#endif
};
#if STRIDED
#define BACKWARD_STRIDES_PARAMETER const BackwardStrides strides,
#else
#define BACKWARD_STRIDES_PARAMETER
#endif

// The addresses of a problem's tensors.
struct Tensors {
    const Element *q, *k, *v, *grad;
    Element *dq, *dk, *dv;
#if BIAS_GRAD
    Element *dbias;
#endif
#if BIAS
    const Element *bias;
#endif
};

#if STRIDED
#define ROW(tensor) strides.tensor.frame
#define BIAS_ROW strides.bias.frame
#define STRIDES_OF_PROBLEM , const BackwardStrides &strides
#define STRIDES_ARGUMENT , strides
#else
#define ROW(tensor) u64(HEAD_DIM)
#define BIAS_ROW u64(KEYS)
#define STRIDES_OF_PROBLEM
#define STRIDES_ARGUMENT
#endif

// A problem's number, and its item and head if they are needed.
struct Position {
    u64 number;
#if STRIDED
    u64 item;
    u32 head;
#endif
};
__device__ inline Position position_of(u64 number, u32 heads) {
#if STRIDED
    // Division of 64 bits takes as long as a small problem.
    const u64 item = number >> 32 ? number / heads : u32(number) / heads;
    return {number, item, u32(number - item * heads)};
#else
    return {number};
#endif
}
__device__ inline Position next_position(const Position &at, u32 heads) {
#if STRIDED
    const bool is_last = at.head + 1 == heads;
    return {at.number + 1, at.item + is_last, is_last ? 0 : at.head + 1};
#else
    return {at.number + 1};
#endif
}

__device__ inline Tensors tensors_of(const Tensors &all, const Position &at STRIDES_OF_PROBLEM) {
    Tensors one = all;
#if STRIDED
    const auto offset = [&](const Stride &stride) { return at.item * stride.item + at.head * stride.head; };
    one.q += offset(strides.q), one.k += offset(strides.k), one.v += offset(strides.v), one.grad += offset(strides.grad);
    one.dq += offset(strides.dq), one.dk += offset(strides.dk), one.dv += offset(strides.dv);
#if BIAS
    one.bias += offset(strides.bias);
#endif
#else
    const u64 first_query = at.number * (FRAMES * HEAD_DIM), first_key = at.number * (KEYS * HEAD_DIM);
    one.q += first_query, one.grad += first_query, one.dq += first_query;
    one.k += first_key, one.v += first_key, one.dk += first_key, one.dv += first_key;
#endif
#if BIAS_GRAD
    one.dbias += at.number * (FRAMES * KEYS);
#endif
    return one;
}

#if BIAS_GRAD
#define BIAS_GRAD_PARAMETER Element *__restrict__ dbias,
#define BIAS_GRAD_ARGUMENT dbias,
#else
#define BIAS_GRAD_PARAMETER
#define BIAS_GRAD_ARGUMENT
#endif

// Starts the copies of a problem.
__device__ inline void load_problem(const Tensors &of, u32 to, u32 thread STRIDES_OF_PROBLEM) {
    load_rows<FRAMES>(to, of.q, ROW(q), thread);
    load_rows<KEYS>(to + 2 * QUERY_BYTES, of.k, ROW(k), thread);
    load_rows<FRAMES>(to + QUERY_BYTES, of.grad, ROW(grad), thread);
    load_rows<KEYS>(to + VALUES, of.v, ROW(v), thread);
    cp_async_commit_group();
}

// Asks for the rows of a tensor in the L2 cache.
template <u32 ROWS>
__device__ inline void prefetch_rows(const Element *from, u64 stride, u32 thread) {
    constexpr u32 ROW_BYTES = HEAD_DIM * sizeof(Element), LINE = 128;
#if !STRIDED && __CUDA_ARCH__ >= 900
    if (thread == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(ROWS * ROW_BYTES) : "memory");
#else
#pragma unroll
    for (u32 first = 0; first < ROWS; first += THREADS) {
        const u32 row = first + thread;
#pragma unroll
        for (u32 byte = 0; byte < ROW_BYTES; byte += LINE) {
            if (row < ROWS) asm volatile("prefetch.global.L2 [%0];" ::"l"(from + row * stride + byte / sizeof(Element)) : "memory");
        }
    }
#endif
}
__device__ inline void prefetch_problem(const Tensors &of, u32 thread STRIDES_OF_PROBLEM) {
    prefetch_rows<FRAMES>(of.q, ROW(q), thread);
    prefetch_rows<KEYS>(of.k, ROW(k), thread);
    prefetch_rows<FRAMES>(of.grad, ROW(grad), thread);
    prefetch_rows<KEYS>(of.v, ROW(v), thread);
}

// Stores gradients of scores of a tile of queries and of the keys from a step on as gradients of the bias.
template <u32 N>
__device__ inline void store_bias_grads(const Tensors &of, const float (&grads)[N][4], u32 tile, u32 first_step, u32 lane) {
#if BIAS_GRAD
#pragma unroll
    for (u32 n = 0; n < N; ++n) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 query = 16 * tile + i / 2 * 8 + lane / 4, key = 16 * first_step + 8 * n + lane % 4 * 2 + i % 2;
            if (query < FRAMES && key < KEYS) of.dbias[query * KEYS + key] = narrow(grads[n][i]);
        }
    }
#endif
}

// The warp's tile of a turn. A causal tile has more work than the one before, so every second turn is reversed.
__device__ inline u32 tile_of_turn(u32 turn, u32 warp) {
    return turn + (CAUSAL && !WARPGROUP && turn / WARPS % 2 ? WARPS - 1 - warp : warp);
}
