// Hopper's warpgroup matrix instructions and their memory fences. Needs sm_90a, and f16 or bf16 elements.

// Makes this thread's writes to shared memory visible to wgmma.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 PENDING>
__device__ inline void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
__device__ inline void wgmma_commit_wait() {
    wgmma_commit_group();
    wgmma_wait_group<0>();
}

// The descriptor of a matrix in shared memory: the byte offsets between panels and between groups of eight
// rows, and the swizzle (1: 128 bytes, 2: 64 bytes, 3: 32 bytes).
__device__ inline u64 matrix_descriptor(u32 address, u32 leading, u32 stride, u32 swizzle) {
    return u64((address & 0x3ffff) >> 4) | u64(leading >> 4) << 16 | u64(stride >> 4) << 32 | u64(swizzle) << 62;
}
// The descriptor of a matrix that begins `bytes` later.
__device__ inline u64 descriptor_at(u64 descriptor, u32 bytes) {
    return (descriptor & 0xffffffff00000000) | (u32(descriptor) + (bytes >> 4));
}

// The accumulators of N tiles of 8 columns: operand numbers, and asm outputs from tile t on.
#define OPERANDS_1 "%0, %1, %2, %3"
#define OPERANDS_2 OPERANDS_1 ", %4, %5, %6, %7"
#define OPERANDS_3 OPERANDS_2 ", %8, %9, %10, %11"
#define OPERANDS_4 OPERANDS_3 ", %12, %13, %14, %15"
#define OPERANDS_5 OPERANDS_4 ", %16, %17, %18, %19"
#define OPERANDS_6 OPERANDS_5 ", %20, %21, %22, %23"
#define OPERANDS_7 OPERANDS_6 ", %24, %25, %26, %27"
#define OPERANDS_8 OPERANDS_7 ", %28, %29, %30, %31"
#define OPERANDS_9 OPERANDS_8 ", %32, %33, %34, %35"
#define OPERANDS_10 OPERANDS_9 ", %36, %37, %38, %39"
#define OPERANDS_11 OPERANDS_10 ", %40, %41, %42, %43"
#define OPERANDS_12 OPERANDS_11 ", %44, %45, %46, %47"
#define OPERANDS_13 OPERANDS_12 ", %48, %49, %50, %51"
#define OPERANDS_14 OPERANDS_13 ", %52, %53, %54, %55"
#define OPERANDS_15 OPERANDS_14 ", %56, %57, %58, %59"
#define OPERANDS_16 OPERANDS_15 ", %60, %61, %62, %63"
#define OPERANDS_18 OPERANDS_16 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define OPERANDS_20 OPERANDS_18 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define OPERANDS_22 OPERANDS_20 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define OPERANDS_24 OPERANDS_22 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define OPERANDS_26 OPERANDS_24 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define OPERANDS_28 OPERANDS_26 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define OPERANDS_30 OPERANDS_28 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define OPERANDS_32 OPERANDS_30 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define OUTPUTS_1(t) "+f"(c[t][0]), "+f"(c[t][1]), "+f"(c[t][2]), "+f"(c[t][3])
#define OUTPUTS_2(t) OUTPUTS_1(t), OUTPUTS_1(t + 1)
#define OUTPUTS_3(t) OUTPUTS_2(t), OUTPUTS_1(t + 2)
#define OUTPUTS_4(t) OUTPUTS_2(t), OUTPUTS_2(t + 2)
#define OUTPUTS_5(t) OUTPUTS_4(t), OUTPUTS_1(t + 4)
#define OUTPUTS_6(t) OUTPUTS_4(t), OUTPUTS_2(t + 4)
#define OUTPUTS_7(t) OUTPUTS_4(t), OUTPUTS_3(t + 4)
#define OUTPUTS_8(t) OUTPUTS_4(t), OUTPUTS_4(t + 4)
#define OUTPUTS_9(t) OUTPUTS_8(t), OUTPUTS_1(t + 8)
#define OUTPUTS_10(t) OUTPUTS_8(t), OUTPUTS_2(t + 8)
#define OUTPUTS_11(t) OUTPUTS_8(t), OUTPUTS_3(t + 8)
#define OUTPUTS_12(t) OUTPUTS_8(t), OUTPUTS_4(t + 8)
#define OUTPUTS_13(t) OUTPUTS_8(t), OUTPUTS_5(t + 8)
#define OUTPUTS_14(t) OUTPUTS_8(t), OUTPUTS_6(t + 8)
#define OUTPUTS_15(t) OUTPUTS_8(t), OUTPUTS_7(t + 8)
#define OUTPUTS_16(t) OUTPUTS_8(t), OUTPUTS_8(t + 8)
#define OUTPUTS_18(t) OUTPUTS_16(t), OUTPUTS_2(t + 16)
#define OUTPUTS_20(t) OUTPUTS_16(t), OUTPUTS_4(t + 16)
#define OUTPUTS_22(t) OUTPUTS_16(t), OUTPUTS_6(t + 16)
#define OUTPUTS_24(t) OUTPUTS_16(t), OUTPUTS_8(t + 16)
#define OUTPUTS_26(t) OUTPUTS_16(t), OUTPUTS_10(t + 16)
#define OUTPUTS_28(t) OUTPUTS_16(t), OUTPUTS_12(t + 16)
#define OUTPUTS_30(t) OUTPUTS_16(t), OUTPUTS_14(t + 16)
#define OUTPUTS_32(t) OUTPUTS_16(t), OUTPUTS_16(t + 16)

// The sizes of c, with the numbers of the operands after c.
#define WGMMA_SIZES(X) \
    X(1, "8", "4", "5", "6", "7", "8", "9", "10") \
    X(2, "16", "8", "9", "10", "11", "12", "13", "14") \
    X(3, "24", "12", "13", "14", "15", "16", "17", "18") \
    X(4, "32", "16", "17", "18", "19", "20", "21", "22") \
    X(5, "40", "20", "21", "22", "23", "24", "25", "26") \
    X(6, "48", "24", "25", "26", "27", "28", "29", "30") \
    X(7, "56", "28", "29", "30", "31", "32", "33", "34") \
    X(8, "64", "32", "33", "34", "35", "36", "37", "38") \
    X(9, "72", "36", "37", "38", "39", "40", "41", "42") \
    X(10, "80", "40", "41", "42", "43", "44", "45", "46") \
    X(11, "88", "44", "45", "46", "47", "48", "49", "50") \
    X(12, "96", "48", "49", "50", "51", "52", "53", "54") \
    X(13, "104", "52", "53", "54", "55", "56", "57", "58") \
    X(14, "112", "56", "57", "58", "59", "60", "61", "62") \
    X(15, "120", "60", "61", "62", "63", "64", "65", "66") \
    X(16, "128", "64", "65", "66", "67", "68", "69", "70") \
    X(18, "144", "72", "73", "74", "75", "76", "77", "78") \
    X(20, "160", "80", "81", "82", "83", "84", "85", "86") \
    X(22, "176", "88", "89", "90", "91", "92", "93", "94") \
    X(24, "192", "96", "97", "98", "99", "100", "101", "102") \
    X(26, "208", "104", "105", "106", "107", "108", "109", "110") \
    X(28, "224", "112", "113", "114", "115", "116", "117", "118") \
    X(30, "240", "120", "121", "122", "123", "124", "125", "126") \
    X(32, "256", "128", "129", "130", "131", "132", "133", "134")

// c = a b, or c += a b if `accumulate`, for 16 columns of a: 64 rows in registers. b is in shared memory, with
// contiguous columns if TRANSPOSED.
template <u32 TRANSPOSED, u32 N>
__device__ inline void wgmma(float (&c)[N][4], const u32 (&a)[4], u64 b, u32 accumulate) {
#define WGMMA(TILES, COLUMNS, A0, A1, A2, A3, B, P, T)                                              \
    if constexpr (N == TILES) {                                                                        \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                   \
                     "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE              \
                     " {" OPERANDS_##TILES "}, {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B               \
                     ", p, 1, 1, %" T ";\n}"                                                           \
                     : OUTPUTS_##TILES(0)                                                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TRANSPOSED) \
                     : "memory");                                                                      \
    }
    WGMMA_SIZES(WGMMA)
#undef WGMMA
}

// The same with a in shared memory, with contiguous rows.
template <u32 TRANSPOSED, u32 N>
__device__ inline void wgmma(float (&c)[N][4], u64 a, u64 b, u32 accumulate) {
#define WGMMA(TILES, COLUMNS, A, B, P, T, ...)                                                         \
    if constexpr (N == TILES) {                                                                        \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" P ", 0;\n"                                   \
                     "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE              \
                     " {" OPERANDS_##TILES "}, %" A ", %" B ", p, 1, 1, 0, %" T ";\n}"                 \
                     : OUTPUTS_##TILES(0)                                                              \
                     : "l"(a), "l"(b), "r"(accumulate), "n"(TRANSPOSED)                                \
                     : "memory");                                                                      \
    }
    WGMMA_SIZES(WGMMA)
#undef WGMMA
}
