// Instructions of tensor cores that the prelude lacks. It has ldmatrix for 16-bit elements only.

#if ELEMENT == F32
// Products of f32 as three products in TF32, which has 10 bits of mantissa. The instructions ignore the other bits. `high`
// has the first bits of a number, and `low` the next ones: high + low differs from the number by at most 2^-20 of it. A
// product of two numbers as high high + high low + low high has an error of at most 2^-18 of it.

__device__ inline float ld_shared_f32(u32 from) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
}
// Loads 1, 2 or 4 neighbouring numbers.
__device__ inline void ld_shared_f32(float (&x)[4], u32 count, u32 from) {
    if (count == 4) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                     : "r"(from)
                     : "memory");
    } else if (count == 2) {
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x[0]), "=f"(x[1]) : "r"(from) : "memory");
    } else {
        x[0] = ld_shared_f32(from);
    }
}
__device__ inline void st_shared_v2_f32(u32 to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}
__device__ inline void mma_m16n8k8_tf32(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// 8 x 4 matrices of 32-bit elements from shared memory. Lane l gives the address of row l % 8 of matrix l / 8.
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

// The parts of COUNT numbers. The high part is not rounded, so that the largest numbers do not become infinite. An infinite
// number has a low part of 0, or NaN unless IS_SAFE.
constexpr u32 TF32_MASK = 0xffffe000u;
template <u32 COUNT, bool IS_SAFE = false>
struct Tf32x2 {
    u32 high[COUNT], low[COUNT];
    Tf32x2() = default;
    __device__ inline explicit Tf32x2(const u32 (&x)[COUNT], u32 mask = TF32_MASK) {
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) {
            high[i] = x[i] & mask;
            const u32 rest = __float_as_uint(__uint_as_float(x[i]) - __uint_as_float(high[i]));
            low[i] = IS_SAFE && high[i] == x[i] ? 0 : rest;
        }
    }
    __device__ inline explicit Tf32x2(const float (&x)[COUNT], u32 mask = TF32_MASK) : Tf32x2(words(x).x, mask) {}

  private:
    struct Words {
        u32 x[COUNT];
    };
    static __device__ inline Words words(const float (&x)[COUNT]) {
        Words words;
#pragma unroll
        for (u32 i = 0; i < COUNT; ++i) words.x[i] = __float_as_uint(x[i]);
        return words;
    }
};

// c[m][first + n] += a[m] b[n], where `small` has the sum of the small products; it may be c if the parts are safe.
template <bool IS_SAFE, u32 TILES, u32 COUNT>
__device__ inline void mma_3xtf32(float (&c)[TILES][COUNT][4], float (&small)[TILES][COUNT][4], u32 first,
                                  const Tf32x2<4, IS_SAFE> (&a)[TILES], const Tf32x2<2, IS_SAFE> (&b)[2], u32 columns) {
#pragma unroll
    for (u32 product = 0; product < 3; ++product) {
#pragma unroll
        for (u32 n = 0; n < 2; ++n) {
            if (n >= columns) break;
#pragma unroll
            for (u32 m = 0; m < TILES; ++m) {
                const u32(&of_a)[4] = product == 0 ? a[m].low : a[m].high, (&of_b)[2] = product == 2 ? b[n].low : b[n].high;
                float(&sum)[4] = product == 1 ? c[m][first + n] : small[m][first + n];
                mma_m16n8k8_tf32(sum, of_a, of_b);
            }
        }
    }
}
// c += small. An infinite sum stays as it is.
template <u32 TILES, u32 COUNT>
__device__ inline void add_small(float (&c)[TILES][COUNT][4], const float (&small)[TILES][COUNT][4]) {
#pragma unroll
    for (u32 m = 0; m < TILES; ++m) {
#pragma unroll
        for (u32 n = 0; n < COUNT; ++n) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                if (fabsf(c[m][n][i]) < __int_as_float(0x7f800000)) c[m][n][i] += small[m][n][i];
            }
        }
    }
}
#else
// 8 x 8 matrices of 16-bit elements to shared memory. Lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void stmatrix_x4(u32 address, const u32 (&words)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}
#endif
