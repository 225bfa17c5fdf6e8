// What every kernel stands on. The sources are joined before they are compiled, so that NVRTC needs
// no header.
//
//   macros   ELEMENT: F16, BF16 or F32, the type of the tensors' elements
//            OVERLAP: 1 where chunks of a split launch may overlap

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
// Finite, so that the difference of two of them is no NaN.
constexpr float LOWEST = -3.402823466e+38f;

// An element as it lies in memory, to f32 exactly and back to the nearest, ties to even.
#if ELEMENT == F32
typedef float Element;
__device__ inline float widen(Element x) { return x; }
__device__ inline Element narrow(float x) { return x; }
#elif ELEMENT == F16
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
typedef u16 Element;
__device__ inline float widen(Element x) { return __uint_as_float(u32(x) << 16); }
__device__ inline Element narrow(float x) {
#if __CUDA_ARCH__ >= 800
    Element y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#else
    // In integers: the instruction is missing below sm_80.
    const u32 bits = __float_as_uint(x);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return Element(nan ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}
#endif

// Elements of 16 bytes, loaded and stored at once.
constexpr u32 WIDTH = 16 / sizeof(Element);
struct alignas(16) Vector {
    Element element[WIDTH];
};

// The blocks of a grid in order, x fastest: the same number whether an axis is folded into x or not.
__device__ inline u64 block_number() {
    return blockIdx.x + gridDim.x * (blockIdx.y + u64(gridDim.y) * blockIdx.z);
}

// The first thing that a kernel makes. Where chunks of a split launch may OVERLAP, the next chunk's
// blocks begin as soon as this one's last have; and the last one ends only after the chunk before has
// ended, so that the end of the last chunk is the end of all. Only those blocks say so: the instructions
// cost small blocks up to a quarter of their time.
struct Overlap {
    __device__ inline Overlap() {
#if OVERLAP && __CUDA_ARCH__ >= 900
        if (block_number() + LAST_BLOCKS >= blocks()) asm volatile("griddepcontrol.launch_dependents;");
#endif
    }
    __device__ inline ~Overlap() {
#if OVERLAP && __CUDA_ARCH__ >= 900
        if (block_number() + 1 == blocks()) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    }
    // More than are resident at once on any device.
    static constexpr u64 LAST_BLOCKS = 8192;
    static __device__ inline u64 blocks() { return u64(gridDim.x) * gridDim.y * gridDim.z; }
};

__device__ inline float warp_max(float x) {
#pragma unroll
    for (u32 lane = WARP / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, lane));
    return x;
}

__device__ inline float warp_sum(float x) {
#pragma unroll
    for (u32 lane = WARP / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(ALL_LANES, x, lane);
    return x;
}

// Past the caches, for bytes that are used once; at multiples of 16 bytes.
__device__ inline Vector read_once(const Element *from) {
    const uint4 bits = __ldcs(reinterpret_cast<const uint4 *>(from));
    return *reinterpret_cast<const Vector *>(&bits);
}
__device__ inline void write_once(Element *to, const Vector &value) {
    __stcs(reinterpret_cast<uint4 *>(to), *reinterpret_cast<const uint4 *>(&value));
}
