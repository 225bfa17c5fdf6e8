// What the attention kernels share, behind the prelude.
//
//   macros   CAUSAL (1: a frame attends to no later one), BIAS (1: there is a bias),
//            STRIDED (0: tensors are contiguous, and all problems share one bias)
//   q, out   [items, heads, frames, head_dim]
//   k, v     [items, heads, keys, head_dim]
//   bias     [items, heads, frames, keys], or of all problems [frames, keys]

constexpr float LOG2_E = 1.4426950408889634f;

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

// The parameters of every attention kernel, in their order.
#if BIAS
#define BIAS_PARAMETER const Element *__restrict__ bias,
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

// One (item, head): where its tensors begin, and the elements from one frame to the next.
struct Problem {
    const Element *q, *k, *v;
    Element *out;
    u64 q_stride, k_stride, v_stride, out_stride;
#if BIAS
    const Element *bias;
    u64 bias_stride;
#endif
};

// The problem `number`, item * heads + head.
#if STRIDED
#define PROBLEM(number, frames, keys, head_dim)                                                        \
    problem_at(q, k, v, out, BIAS_ARGUMENT (number) / heads, (number) % heads, strides)
__device__ inline Problem problem_at(const Element *q, const Element *k, const Element *v, Element *out,
                                     BIAS_PARAMETER u64 item, u64 head, const Strides &strides) {
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
                                     BIAS_PARAMETER u64 at, u64 key_at, u64 keys, u64 stride) {
    return Problem{q + at, k + key_at, v + key_at, out + at, stride, stride, stride, stride,
#if BIAS
                   bias, keys
#endif
    };
}
#endif

// A raw score as softmax takes it. Without a bias the factor is left to the exponent.
__device__ inline float score_of(float score, u32 row, u32 column, u32 frames, u32 keys, float scale,
                                 const Problem problem) {
#if BIAS
    if (row < frames && column < keys) {
        score = score * scale + widen(problem.bias[row * problem.bias_stride + column]) * LOG2_E;
    }
#endif
    const bool hidden = column >= keys || (CAUSAL && column > row);
    return hidden ? __int_as_float(0xff800000) : score;
}
// What the exponent multiplies scores with, and subtracts for the highest of them: finite, also where
// no key is seen.
__device__ inline float factor_of(float scale) { return BIAS ? 1.f : scale; }
__device__ inline float shift_of(float highest, float scale) { return fmaxf(highest * factor_of(scale), LOWEST); }

// One over the sum of weights; a row that sees no key gives zeros, a sum that is no number stays so.
__device__ inline float norm_of(float sum) { return sum > 0.f ? 1.f / sum : sum == 0.f ? 0.f : sum; }

__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#if defined(WARPS) && defined(PROBLEMS)
// WARPS share a problem, PROBLEMS lie side by side in a block: threads of a problem.
constexpr u32 THREADS = WARP * WARPS;

// All threads of the problem.
__device__ inline void meet() {
    if (WARPS == 1) {
        __syncwarp();
    } else if (PROBLEMS == 1) {
        __syncthreads();
    } else {
        asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / THREADS + 1), "n"(THREADS) : "memory");
    }
}
#endif

// 16 bytes to shared memory.
__device__ inline void store_piece(u32 to, const uint4 &x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
// 16 bytes from global to shared memory, waited for later where the device can.
__device__ inline void copy_piece(u32 to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
    store_piece(to, __ldcs(reinterpret_cast<const uint4 *>(from)));
#endif
}
// Ends a group of copies.
__device__ inline void commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all of this thread's groups but the last `LEFT`.
template <u32 LEFT>
__device__ inline void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

#if ELEMENT != F32
#if ELEMENT == BF16
#define TYPE "bf16"
#else
#define TYPE "f16"
#endif

// Two values as one word, the first in its low half.
__device__ inline u32 pack(float low, float high) {
    u32 word;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
    word = narrow(low) | u32(narrow(high)) << 16;
#endif
    return word;
}

// c += a b on tensor cores: 16 rows, 8 columns.
__device__ inline void multiply_8(float (&c)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32." TYPE "." TYPE
        ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}
__device__ inline void multiply_16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    multiply_8(c, a0, a1, b0);
    multiply_8(c, a2, a3, b1);
#endif
}

// Matrices of 8 rows of 16 bytes from shared memory, as they are or transposed; lane l names row l % 8
// of matrix l / 8.
__device__ inline void load_4(u32 (&words)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}
__device__ inline void load_2(u32 &one, u32 &other, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(one), "=r"(other)
                 : "r"(address)
                 : "memory");
}

__device__ inline void load_4_transposed(u32 (&words)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}
__device__ inline void load_2_transposed(u32 &one, u32 &other, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(one), "=r"(other)
                 : "r"(address)
                 : "memory");
}

__device__ inline void store_word(u32 to, u32 word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ inline uint4 load_piece(u32 from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}
#endif
