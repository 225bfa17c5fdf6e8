// Reflection padding of rows: out[x] = in[x - LEFT], mirrored at the row's first and last element.
//
// Contract
//   macros      ELEMENT. CHANNELS. IN_WIDTH, up to 2^29. LEFT and RIGHT, less than IN_WIDTH. THREADS. A thread stores
//               STEPS vectors. TILES blocks share ITEMS items. TILES * THREADS * STEPS vectors cover these items, and
//               a partial vector at the start.
//   layout      in is [items, CHANNELS, IN_WIDTH], out is [items, CHANNELS, LEFT + IN_WIDTH + RIGHT].
//   grid        TILES blocks on x for each group of ITEMS items on z.
//   block       THREADS on x.
//   arguments   in, out (addresses of the chunk's first item), items of the chunk (u64).
//   alignment   one element.
//   arithmetic  none on elements. Offsets have 64 bits unless 32 bits hold the offsets of a group.
//
// The rows of a group are one span of out, split into vectors at multiples of 16 bytes. A vector away from the ends of
// a row is contiguous in `in` too. It is shifted out of two aligned vectors; the second one is mostly in the L1
// cache. Other vectors are loaded element by element.

constexpr u32 OUT_WIDTH = LEFT + IN_WIDTH + RIGHT;
constexpr u64 IN_ITEM = u64(CHANNELS) * IN_WIDTH;
constexpr u64 OUT_ITEM = u64(CHANNELS) * OUT_WIDTH;

// An offset of elements within a group, or up to one tile past its end.
#if ITEMS * CHANNELS * (LEFT + IN_WIDTH + RIGHT) < 0x80000000
typedef u32 Offset;
#else
typedef u64 Offset;
#endif

// 32 bytes, aligned to 16.
struct Window {
    uint4 low, high;
};

// The vector that begins `shift` bytes (less than 16) after the start of the window.
__device__ inline Vector shifted(const Window &window, u32 shift) {
    const uint4 &low = window.low, &high = window.high;
    const u32 words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    u32 by_two[6], by_one[5];
#pragma unroll
    for (u32 i = 0; i < 6; ++i) by_two[i] = shift & 8 ? words[i + 2] : words[i];
#pragma unroll
    for (u32 i = 0; i < 5; ++i) by_one[i] = shift & 4 ? by_two[i + 1] : by_two[i];
    const u32 bits = shift % 4 * 8;
    const uint4 vector = {
        __funnelshift_r(by_one[0], by_one[1], bits), __funnelshift_r(by_one[1], by_one[2], bits),
        __funnelshift_r(by_one[2], by_one[3], bits), __funnelshift_r(by_one[3], by_one[4], bits)};
    return *reinterpret_cast<const Vector *>(&vector);
}

__device__ inline Element load_element(const Element *__restrict__ in, Offset at) {
    const int column = int(at % OUT_WIDTH) - LEFT;
    const int from_left = column < 0 ? -column : column;
    const int from_right = 2 * (IN_WIDTH - 1) - from_left;
    return __ldg(in + (at / OUT_WIDTH * IN_WIDTH + (from_left < from_right ? from_left : from_right)));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    reflection_pad1d(const Element *__restrict__ in, Element *__restrict__ out, u64 items) {
    const Overlap overlap;
    const u64 block = linear_block_index();
    const u64 first_item = block / TILES * ITEMS;
    // The readable bytes. A window may begin in one row and end in another.
    const u64 in_begin = reinterpret_cast<u64>(in);
    const u64 in_end = in_begin + items * IN_ITEM * sizeof(Element);
    in += first_item * IN_ITEM, out += first_item * OUT_ITEM;
    const u64 in_group = reinterpret_cast<u64>(in);
    const Offset span = Offset((items - first_item < ITEMS ? items - first_item : ITEMS) * OUT_ITEM);
    // Elements of the first vector before the span.
    const u32 skew = u32(reinterpret_cast<u64>(out) % 16 / sizeof(Element));
    // The start of the thread's first vector. A negative value wraps, and is then past the end of the span.
    const Offset start = (Offset(block % TILES) * (STEPS * THREADS) + threadIdx.x) * WIDTH - skew;

    Window windows[STEPS];
    // For each step: four bits of `shifts`, and one bit of `others` if it has no window.
    u32 shifts = 0, others = 0;
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const Offset first = start + step * THREADS * WIDTH;
        // The column of the vector in `in`. A negative value wraps, and is then past the end of the row.
        const u32 column = u32(first % OUT_WIDTH) - LEFT;
        const u64 from = in_group + u64(first / OUT_WIDTH * IN_WIDTH + column) * sizeof(Element);
        const u32 shift = from % 16;
        const u64 low = from - shift, high = shift ? low + 16 : low;
        const bool within_row = IN_WIDTH >= WIDTH && column <= IN_WIDTH - WIDTH;
        const bool within_span = first < span && span - first >= WIDTH;
        if (within_row && within_span && low >= in_begin && high + 16 <= in_end) {
            windows[step].low = __ldg(reinterpret_cast<const uint4 *>(low));
            windows[step].high = __ldg(reinterpret_cast<const uint4 *>(high));
            shifts |= shift << 4 * step;
        } else {
            others |= 1 << step;
        }
    }
    // While the windows are loaded.
#pragma unroll 1
    for (u32 left = others; left > 0; left &= left - 1) {
        const Offset first = start + (__ffs(left) - 1) * THREADS * WIDTH;
        if (first < span && span - first >= WIDTH) {
            Vector vector;
#pragma unroll
            for (u32 i = 0; i < WIDTH; ++i) vector.element[i] = load_element(in, first + i);
            stcs_vector(out + first, vector);
        } else {
            // A vector that is partly or wholly outside the span.
#pragma unroll 1
            for (u32 i = 0; i < WIDTH; ++i) {
                const Offset at = first + i;
                if (at < span) out[at] = load_element(in, at);
            }
        }
    }
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
        const Offset first = start + step * THREADS * WIDTH;
        if (!(others >> step & 1)) stcs_vector(out + first, shifted(windows[step], shifts >> 4 * step & 15));
    }
}
