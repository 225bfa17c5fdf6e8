// Types, memory accesses, warp reductions and PTX instructions that the kernels share. The source of a kernel
// follows in the same text, so NVRTC needs no header.
//
// Contract of every kernel, except where its own contract says otherwise: tensors are contiguous, and elements of an
// output do not overlap. Grid axis y or z may be folded into x. The last block may have fewer items than the others.
// Offsets have 64 bits.
//
// Macros: ELEMENT is F16, BF16 or F32, the type of the tensors' elements. OVERLAP is 1 if chunks of a split
// launch may overlap.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define F16 0
#define BF16 1
#define F32 2

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;
// Finite: the difference of two of these values is 0, not NaN.
constexpr float LOWEST = -3.402823466e+38f;
constexpr float LOG2_E = 1.4426950408889634f;

__device__ constexpr u32 divide_up(u32 x, u32 by) { return (x + by - 1) / by; }

// An element in memory. `widen` is exact; `narrow` rounds to nearest even.
#if ELEMENT == F32
typedef float Element;
__device__ inline float widen(Element x) { return x; }
__device__ inline Element narrow(float x) { return x; }
#elif ELEMENT == F16
#define TYPE "f16"
typedef u16 Element;
__device__ inline float widen(Element x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ inline Element narrow(float x) {
    Element y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
#else
#define TYPE "bf16"
typedef u16 Element;
__device__ inline float widen(Element x) { return __uint_as_float(u32(x) << 16); }
__device__ inline Element narrow(float x) {
#if __CUDA_ARCH__ >= 800
    Element y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#else
    const u32 bits = __float_as_uint(x);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return Element(nan ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}
#endif

// 16 bytes, loaded and stored at once.
constexpr u32 WIDTH = 16 / sizeof(Element);
struct alignas(16) Vector {
    Element element[WIDTH];
};

// Streaming accesses (ld.global.cs, st.global.cs) for data that is used once. Aligned to 16 bytes.
__device__ inline Vector ldcs_vector(const Element *from) {
    const uint4 bits = __ldcs(reinterpret_cast<const uint4 *>(from));
    return *reinterpret_cast<const Vector *>(&bits);
}
__device__ inline void stcs_vector(Element *to, const Vector &value) {
    __stcs(reinterpret_cast<uint4 *>(to), *reinterpret_cast<const uint4 *>(&value));
}

// The linear index of the block, x fastest. Folding y or z into x does not change it.
__device__ inline u64 linear_block_index() {
    return blockIdx.x + gridDim.x * (blockIdx.y + u64(gridDim.y) * blockIdx.z);
}

// Programmatic dependent launch between the chunks of a split launch; construct it first in every kernel. The
// last blocks let the next chunk start. The very last block waits until the previous chunk has ended, so the
// end of the last chunk is the end of all chunks. Other blocks skip both instructions, which cost small blocks
// up to a quarter of their time.
struct Overlap {
    __device__ inline Overlap() {
#if OVERLAP && __CUDA_ARCH__ >= 900
        if (linear_block_index() + LAST_BLOCKS >= blocks()) asm volatile("griddepcontrol.launch_dependents;");
#endif
    }
    __device__ inline ~Overlap() {
#if OVERLAP && __CUDA_ARCH__ >= 900
        if (linear_block_index() + 1 == blocks()) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    }
    // More blocks than any device keeps resident.
    static constexpr u64 LAST_BLOCKS = 8192;
    static __device__ inline u64 blocks() { return u64(gridDim.x) * gridDim.y * gridDim.z; }
};

// Reductions over each group of COUNT neighbouring lanes; every lane gets the result.
template <u32 COUNT = WARP>
__device__ inline float warp_max(float x) {
#pragma unroll
    for (u32 lane = COUNT / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, lane));
    return x;
}
template <u32 COUNT = WARP, typename Number>
__device__ inline Number warp_sum(Number x) {
#pragma unroll
    for (u32 lane = COUNT / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(ALL_LANES, x, lane);
    return x;
}

__device__ inline float ex2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float rcp_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 16 bytes in shared memory.
__device__ inline void st_shared_v4(u32 to, const uint4 &x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
__device__ inline uint4 ld_shared_v4(u32 from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}
__device__ inline void st_shared_u32(u32 to, u32 word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

// Copies 16 bytes from global to shared memory: asynchronously from sm_80 on, else through registers.
__device__ inline void cp_async_16(u32 to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
    st_shared_v4(to, __ldcs(reinterpret_cast<const uint4 *>(from)));
#endif
}
__device__ inline void cp_async_commit_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <u32 PENDING>
__device__ inline void cp_async_wait_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Named barriers of COUNT threads. __syncthreads uses barrier 0.
template <u32 COUNT>
__device__ inline void bar_sync(u32 barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}
template <u32 COUNT>
__device__ inline void bar_arrive(u32 barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
}

#if ELEMENT != F32
// Two f32 values, rounded to one word. `low` is the first element in memory.
__device__ inline u32 cvt_rn_x2(float low, float high) {
    u32 word;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
    word = narrow(low) | u32(narrow(high)) << 16;
#endif
    return word;
}

// c += a b on tensor cores, with f32 accumulation.
__device__ inline void mma_m16n8k8(float (&c)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32." TYPE "." TYPE
        ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}
__device__ inline void mma_m16n8k16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    mma_m16n8k8(c, a0, a1, b0);
    mma_m16n8k8(c, a2, a3, b1);
#endif
}

// 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void ldmatrix_x1(u32 &one, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(one) : "r"(address) : "memory");
}
__device__ inline void ldmatrix_x2(u32 &one, u32 &other, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(one), "=r"(other)
                 : "r"(address)
                 : "memory");
}
__device__ inline void ldmatrix_x4(u32 (&words)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}
__device__ inline void ldmatrix_x2_trans(u32 &one, u32 &other, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(one), "=r"(other)
                 : "r"(address)
                 : "memory");
}
__device__ inline void ldmatrix_x4_trans(u32 (&words)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}
#endif
