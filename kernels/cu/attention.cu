// What the attention kernels share: softmax(scale * q k^T + bias) v over the frames of each (item, head). A
// problem is one (item, head), and its number is item * heads + head.
//
// Contract of every attention kernel
//   macros      ELEMENT. CAUSAL is 1 if a frame attends to no later frame. BIAS is 1 if there is a bias,
//               2 if it is a mask of bytes. STRIDED is 0 if tensors are contiguous and all problems share one bias. In
//               kernels for a shape, FRAMES, KEYS and HEAD_DIM.
//   layout      q and out are [items, heads, frames, head_dim], k and v [items, heads, keys, head_dim]. The bias
//               is [frames, keys]. If STRIDED, it is [items, heads, frames, keys], and the first three axes of
//               all tensors may have any strides. Rows are contiguous. Elements of out do not overlap.
//   grid        problems in the order of their numbers, along one axis. The last block may have fewer.
//   arguments   q, k, v, out (addresses of the chunk's first item), [bias], items of the chunk (u64), heads (u32),
//               [strides], scale (f32).
//   alignment   16 bytes, also of strides.
//   arithmetic  softmax in f32, in one pass. Offsets have 64 bits. A row of scores that are all -inf gives zeros.

// Elements from one item, head or frame to the next.
struct Stride {
    u64 item, head, frame;
};
struct Strides {
    Stride q, k, v, out;
#if BIAS
    Stride bias;
#endif
};

// An element of the bias. A mask hides a key by 0.
#if BIAS == 2
typedef u8 BiasElement;
__device__ inline Element bias_element(BiasElement x) { return narrow(x ? 0.f : __int_as_float(0xff800000)); }
#else
typedef Element BiasElement;
__device__ inline Element bias_element(BiasElement x) { return x; }
#endif
#if BIAS
#define BIAS_PARAMETER const BiasElement *__restrict__ bias,
#define BIAS_ARGUMENT bias,
#else
#define BIAS_PARAMETER
#define BIAS_ARGUMENT
#endif
#if STRIDED
#define STRIDES_PARAMETER const Strides strides,
#else
#define STRIDES_PARAMETER
#endif
#define ATTENTION_PARAMETERS                                                                           \
    const Element *__restrict__ q, const Element *__restrict__ k, const Element *__restrict__ v,       \
        Element *__restrict__ out, BIAS_PARAMETER u64 items, u32 heads, STRIDES_PARAMETER float scale

// The addresses of a problem's tensors, and the elements from one frame to the next.
struct Problem {
    const Element *q, *k, *v;
    Element *out;
    u64 q_stride, k_stride, v_stride, out_stride;
#if BIAS
    const BiasElement *bias;
    u64 bias_stride;
#endif

    // The problem of the next head, or of the same head of the next item, without products of 64 bits.
#if STRIDED
    __device__ inline void advance(const Strides &strides, bool along_heads) {
        const auto step = [&](const Stride &stride) { return along_heads ? stride.head : stride.item; };
        q += step(strides.q), k += step(strides.k), v += step(strides.v), out += step(strides.out);
#if BIAS
        bias += step(strides.bias);
#endif
    }
#else
    __device__ inline void advance(u32 queries, u32 keys) { q += queries, out += queries, k += keys, v += keys; }
#endif
};

// Division of 64 bits takes as long as a small problem.
__device__ inline u64 item_of(u64 number, u32 heads) { return number >> 32 ? number / heads : u32(number) / heads; }

#if STRIDED
#define PROBLEM(number, frames, keys, head_dim)                                                        \
    problem_at(q, k, v, out, BIAS_ARGUMENT number, heads, strides)
__device__ inline Problem problem_at(const Element *q, const Element *k, const Element *v, Element *out,
                                     BIAS_PARAMETER u64 number, u32 heads, const Strides &strides) {
    const u64 item = item_of(number, heads), head = number - item * heads;
    return Problem{q + item * strides.q.item + head * strides.q.head,
                   k + item * strides.k.item + head * strides.k.head,
                   v + item * strides.v.item + head * strides.v.head,
                   out + item * strides.out.item + head * strides.out.head,
                   strides.q.frame,
                   strides.k.frame,
                   strides.v.frame,
                   strides.out.frame,
#if BIAS
                   bias + item * strides.bias.item + head * strides.bias.head,
                   strides.bias.frame
#endif
    };
}
#else
#define PROBLEM(number, frames, keys, head_dim)                                                        \
    problem_at(q, k, v, out, BIAS_ARGUMENT (number) * (u64(frames) * (head_dim)),                       \
               (number) * (u64(keys) * (head_dim)), keys, head_dim)
__device__ inline Problem problem_at(const Element *q, const Element *k, const Element *v, Element *out,
                                     BIAS_PARAMETER u64 offset, u64 key_offset, u64 keys, u64 stride) {
    return Problem{q + offset, k + key_offset, v + key_offset, out + offset, stride, stride, stride, stride,
#if BIAS
                   bias, keys
#endif
    };
}
#endif

// The score before the exponential; -inf if the mask hides it. Without a bias, the exponential applies the scale.
__device__ inline float masked_score(float score, u32 row, u32 column, u32 frames, u32 keys, float scale,
                                     const Problem problem) {
#if BIAS
    if (row < frames && column < keys) {
        score = score * scale + widen(bias_element(problem.bias[row * problem.bias_stride + column])) * LOG2_E;
    }
#endif
    const bool hidden = column >= keys || (CAUSAL && column > row);
    return hidden ? __int_as_float(0xff800000) : score;
}
// The weight of a score is exp2(score * score_factor - score_shift). The shift is finite, so a row without any
// visible key has weights of 0, not NaN.
__device__ inline float score_factor(float scale) { return BIAS ? 1.f : scale; }
__device__ inline float score_shift(float row_max, float scale) {
    return fmaxf(row_max * score_factor(scale), LOWEST);
}

// 1 / sum. A row without any visible key gives zeros; NaN stays NaN.
__device__ inline float reciprocal_of_sum(float sum) { return sum == 0.f ? 0.f : rcp_approx(sum); }

// Reductions over LANES neighbouring lanes, nearest lanes first.
template <u32 LANES>
__device__ inline float group_max(float x) {
#pragma unroll
    for (u32 lane = 1; lane < LANES; lane *= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, lane));
    return x;
}
template <u32 LANES>
__device__ inline float group_sum(float x) {
#pragma unroll
    for (u32 lane = 1; lane < LANES; lane *= 2) x += __shfl_xor_sync(ALL_LANES, x, lane);
    return x;
}

#if defined(WARPS) && defined(PROBLEMS)
// WARPS warps share a problem, and a block has PROBLEMS problems side by side.
constexpr u32 THREADS = WARP * WARPS;

// Synchronises the threads of a problem.
__device__ inline void sync_problem() {
    if (WARPS == 1) {
        __syncwarp();
    } else if (PROBLEMS == 1) {
        __syncthreads();
    } else {
        bar_sync<THREADS>(threadIdx.x / THREADS + 1);
    }
}
#endif
