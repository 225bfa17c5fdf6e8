// Softmax of rows: out = exp(x - max(x)) / sum(exp(x - max(x))).
//
// Contract
//   macros      ELEMENT; COLUMNS; THREADS, a multiple of 32; THREADS_PER_ROW, a divisor of THREADS: a
//               power of two or a multiple of 32; ROWS, of a block, a multiple of
//               THREADS / THREADS_PER_ROW; STAGED: 1 where rows go through shared memory, for which
//               ROWS is a multiple of 8 and THREADS_PER_ROW at most 32
//   layout      x and out are [rows, COLUMNS], contiguous; out overlaps none
//   grid        ROWS rows a block along y, folded into x or not; the last block may have fewer
//   block       THREADS on x
//   arguments   x, out (addresses of the chunk's first row), rows of the chunk (u64)
//   alignment   16 bytes where rows are whole multiples of that, that of the element otherwise
//   arithmetic  f32; 64-bit offsets. A row of -inf alone gives zeros; one with a NaN or +inf gives NaN
//
// A row is read once: its threads keep it in registers between the sum and the division, and what has
// no room there is read again, out of the second-level cache as a rule. Short rows that are no whole
// multiple of 16 bytes lie one behind the other in shared memory, so that what moves to and from device
// memory moves 16 bytes at a time; long ones are cut at multiples of 16 bytes, and their first and last
// elements move one by one. Where a row is cut follows from its address alone, so that the result is the
// same whichever launch it is in.

constexpr float LOG2_E = 1.4426950408889634f;

// What a thread takes at once.
constexpr u32 STEP = STAGED ? 1 : WIDTH;
// Whether rows begin up to WIDTH - 1 elements behind a multiple of 16 bytes.
constexpr bool SHIFTED = !STAGED && COLUMNS % WIDTH != 0;
constexpr u32 GROUPS = THREADS / THREADS_PER_ROW;
constexpr u32 WARPS_PER_ROW = (THREADS_PER_ROW + WARP - 1) / WARP;
constexpr u32 PARTS = (COLUMNS + (SHIFTED ? WIDTH - 1 : 0) + STEP - 1) / STEP;
constexpr u32 STEPS = (PARTS + THREADS_PER_ROW - 1) / THREADS_PER_ROW;
// Steps whose elements stay in registers; those after are read twice, some at a time.
constexpr u32 KEPT_LIMIT = STAGED ? 32 : 8;
constexpr u32 KEPT = STEPS < KEPT_LIMIT ? STEPS : KEPT_LIMIT;
constexpr u32 AT_A_TIME = 2;
// Steps whose elements may stay in registers widened.
constexpr u32 LIGHT = 4;

// -inf.
#if ELEMENT == F32
__device__ inline Element least() { return __uint_as_float(0xff800000u); }
#else
__device__ inline Element least() { return ELEMENT == F16 ? 0xfc00 : 0xff80; }
#endif

// In words, two elements each where they have 16 bits: the compiler would give each a register.
struct Part {
#if STAGED
    Element only;
#else
    uint4 words;
#endif
};

__device__ inline Element element_of(const Part &part, u32 i) {
#if STAGED
    return part.only;
#else
    const uint4 &words = part.words;
    const u32 place = i * sizeof(Element) / 4;
    const u32 word = place == 0 ? words.x : place == 1 ? words.y : place == 2 ? words.z : words.w;
#if ELEMENT == F32
    return __uint_as_float(word);
#else
    return Element(i % 2 ? word >> 16 : word);
#endif
#endif
}

// Where a row lies: the elements from `begin` to before `end`, counted from `from` or `to`.
struct Row {
    const Element *from;
    Element *to;
    u32 begin, end;
    // Whether `to` is at a multiple of 16 bytes, as `from` is.
    bool aligned;
};

// The greatest element of a part of a row, and the sum of exp(x - most) over it.
struct Total {
    float most, sum;
};
// Finite, so that -inf has the weight 0 also where nothing else is there.
constexpr Total NOTHING = {LOWEST, 0.f};

// Whether a part of this step may hold the first or the last element of a shifted row.
__device__ constexpr bool is_edge(u32 step) {
    return SHIFTED && (step == 0 || step + 2 >= STEPS);
}

__device__ inline u32 column_of(u32 step, u32 thread) {
    return (step * THREADS_PER_ROW + thread) * STEP;
}

__device__ inline bool is_whole(const Row &row, u32 column, bool edge) {
    return edge ? column >= row.begin && column + STEP <= row.end : column < row.end;
}

// The part from `column` on; -inf where the row has no element. `again` where it is read later, too.
__device__ inline Part read_part(const Row &row, u32 column, bool edge, bool again) {
    Part part;
#if STAGED
    part.only = column < row.end ? row.from[column] : least();
#else
    if (is_whole(row, column, edge)) {
        const uint4 *from = reinterpret_cast<const uint4 *>(row.from + column);
        part.words = again ? *from : __ldcs(from);
        return part;
    }
    Vector vector;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) {
        const bool inside = edge && column + i >= row.begin && column + i < row.end;
        vector.element[i] = inside ? row.from[column + i] : least();
    }
    part.words = *reinterpret_cast<const uint4 *>(&vector);
#endif
    return part;
}

// Where `vector`, parts within the row are written at once.
__device__ inline void write_part(const Row &row, u32 column, bool edge, bool vector, const Part &part) {
#if STAGED
    if (column < row.end) row.to[column] = part.only;
#else
    if (vector && is_whole(row, column, edge)) {
        __stcs(reinterpret_cast<uint4 *>(row.to + column), part.words);
    } else if (edge) {
#pragma unroll
        for (u32 i = 0; i < STEP; ++i) {
            if (column + i >= row.begin && column + i < row.end) row.to[column + i] = element_of(part, i);
        }
    }
#endif
}

// Has the compiler widen the elements of a part anew: were it to keep what it once widened, long rows
// would not fit into registers. It does not know that z is 0, and takes the words for others.
__device__ inline void forget_widened(Part &part) {
#if !STAGED
    uint4 &words = part.words;
    const u32 zero = blockIdx.z;
    words.x += zero, words.y += zero, words.z += zero, words.w += zero;
#endif
}

// exp(x - most), zero where that is below the least normal number.
__device__ inline float weight(float x, float most) {
    float y;
    x = (x - most) * LOG2_E;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float greatest(float most, const Part &part) {
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) most = fmaxf(most, widen(element_of(part, i)));
    return most;
}

__device__ inline float sum_of_weights(const Part &part, float most) {
    float sum = 0.f;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) sum += weight(widen(element_of(part, i)), most);
    return sum;
}

__device__ inline Part weigh(const Part &part, float most, float scale) {
    Part weights;
#if STAGED
    weights.only = narrow(weight(widen(part.only), most) * scale);
#else
    Vector vector;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) vector.element[i] = narrow(weight(widen(element_of(part, i)), most) * scale);
    weights.words = *reinterpret_cast<const uint4 *>(&vector);
#endif
    return weights;
}

// The total of `LANES` neighbouring lanes, known to each of them.
template <u32 LANES>
__device__ inline Total combine_lanes(Total total) {
    float most = total.most;
#pragma unroll
    for (u32 lane = LANES / 2; lane > 0; lane /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, lane));
    float sum = total.sum * weight(total.most, most);
#pragma unroll
    for (u32 lane = LANES / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, lane);
    return {most, sum};
}

// One row's total out of those of its threads, known to each of them. `totals` has room for each warp's.
__device__ inline Total combine(Total total, Total *totals) {
    total = combine_lanes<(THREADS_PER_ROW < WARP ? THREADS_PER_ROW : WARP)>(total);
    if (WARPS_PER_ROW == 1) return total;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    total = lane < WARPS_PER_ROW ? totals[warp / WARPS_PER_ROW * WARPS_PER_ROW + lane] : NOTHING;
    return combine_lanes<WARP>(total);
}

// Every thread of the block takes part, with an empty row where there is none for it.
__device__ inline void soften(const Row &row, u32 thread, Total *totals) {
    Part kept[KEPT];
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) kept[step] = read_part(row, column_of(step, thread), is_edge(step), false);
    Total total = NOTHING;
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        total.most = greatest(total.most, kept[step]);
        if (KEPT > LIGHT) forget_widened(kept[step]);
    }
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        total.sum += sum_of_weights(kept[step], total.most);
        if (KEPT > LIGHT) forget_widened(kept[step]);
    }
#pragma unroll 1
    for (u32 step = KEPT; step < STEPS; step += AT_A_TIME) {
        Part parts[AT_A_TIME];
        float most = total.most;
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) parts[i] = read_part(row, column_of(step + i, thread), SHIFTED, true);
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) most = greatest(most, parts[i]);
        total.sum *= weight(total.most, most);
        total.most = most;
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) total.sum += sum_of_weights(parts[i], most);
    }
    total = combine(total, totals);
    // Not `sum > 0`: a NaN is to be seen.
    const float scale = total.sum == 0.f ? 0.f : 1.f / total.sum;
    if (!SHIFTED || row.aligned) {
#pragma unroll
        for (u32 step = 0; step < KEPT; ++step) {
            write_part(row, column_of(step, thread), is_edge(step), true, weigh(kept[step], total.most, scale));
        }
    }
#pragma unroll 1
    for (u32 step = !SHIFTED || row.aligned ? KEPT : 0; step < STEPS; step += AT_A_TIME) {
        Part parts[AT_A_TIME];
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) parts[i] = read_part(row, column_of(step + i, thread), SHIFTED, false);
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) {
            const Part weights = weigh(parts[i], total.most, scale);
            write_part(row, column_of(step + i, thread), SHIFTED, row.aligned, weights);
        }
    }
}

// Elements behind the last multiple of 16 bytes.
__device__ inline u32 misalignment(const Element *address) {
    return u32(reinterpret_cast<u64>(address) % sizeof(Vector) / sizeof(Element));
}

#if STAGED
// Copies a block's elements to shared memory and back, 16 bytes at a time where the memory begins at a
// multiple of that.
constexpr u32 COPIES = (ROWS * COLUMNS / WIDTH + THREADS - 1) / THREADS;

__device__ inline void stage(Element *staged, const Element *from, u32 elements) {
    const u32 whole = misalignment(from) == 0 ? elements - elements % WIDTH : 0;
    Vector vectors[COPIES];
#pragma unroll
    for (u32 copy = 0; copy < COPIES; ++copy) {
        const u32 element = (copy * THREADS + threadIdx.x) * WIDTH;
        if (element < whole) vectors[copy] = read_once(from + element);
    }
#pragma unroll
    for (u32 copy = 0; copy < COPIES; ++copy) {
        const u32 element = (copy * THREADS + threadIdx.x) * WIDTH;
        if (element < whole) *reinterpret_cast<Vector *>(staged + element) = vectors[copy];
    }
#pragma unroll 1
    for (u32 element = whole + threadIdx.x; element < elements; element += THREADS) staged[element] = from[element];
}

__device__ inline void unstage(Element *to, const Element *staged, u32 elements) {
    const u32 whole = misalignment(to) == 0 ? elements - elements % WIDTH : 0;
#pragma unroll
    for (u32 copy = 0; copy < COPIES; ++copy) {
        const u32 element = (copy * THREADS + threadIdx.x) * WIDTH;
        if (element < whole) write_once(to + element, *reinterpret_cast<const Vector *>(staged + element));
    }
#pragma unroll 1
    for (u32 element = whole + threadIdx.x; element < elements; element += THREADS) to[element] = staged[element];
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    softmax(const Element *__restrict__ x, Element *__restrict__ out, u64 rows) {
    const Overlap overlap;
    const u32 group = threadIdx.x / THREADS_PER_ROW, thread = threadIdx.x % THREADS_PER_ROW;
    const u64 first = block_number() * ROWS;
    // Rows of this block.
    const u32 count = rows - first < ROWS ? u32(rows - first) : ROWS;
#if STAGED
    alignas(sizeof(Vector)) __shared__ Element staged[ROWS * COLUMNS];
    stage(staged, x + first * COLUMNS, count * COLUMNS);
    __syncthreads();
    for (u32 round = 0; round < ROWS / GROUPS; ++round) {
        const u32 place = round * GROUPS + group;
        Element *row = staged + place * COLUMNS;
        soften({row, row, 0, place < count ? u32(COLUMNS) : 0, true}, thread, nullptr);
    }
    __syncthreads();
    unstage(out + first * COLUMNS, staged, count * COLUMNS);
#else
    __shared__ Total totals[THREADS / WARP];
    x += (first + group) * COLUMNS, out += (first + group) * COLUMNS;
    const u32 begin = SHIFTED ? misalignment(x) : 0;
    const u32 end = group < count ? begin + COLUMNS : 0;
    soften({x - begin, out - begin, begin, end, misalignment(out) == begin}, thread, totals);
#endif
}
