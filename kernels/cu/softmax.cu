// Softmax of rows: out = exp(x - max(x)) / sum(exp(x - max(x))).
//
// Contract
//   macros      ELEMENT. COLUMNS. THREADS, a multiple of 32. THREADS_PER_ROW, a divisor of THREADS: a power of two or
//               a multiple of 32. A block has ROWS rows, a multiple of THREADS / THREADS_PER_ROW. STAGED is 1 if rows
//               are staged in shared memory. Then ROWS is a multiple of 8, and THREADS_PER_ROW at max 32.
//   layout      x and out are [rows, COLUMNS].
//   grid        ROWS rows a block on y.
//   block       THREADS on x.
//   arguments   x, out (addresses of the chunk's first row), rows of the chunk (u64).
//   alignment   16 bytes if rows are whole multiples of that, else one element.
//   arithmetic  f32. A row of -inf alone gives zeros. A row with a NaN or +inf gives NaN.
//
// Threads keep the row in registers between the sum and the division. Elements that do not fit are read again, usually
// from the L2 cache. Short rows that are no whole multiple of 16 bytes are staged in shared memory, so that global
// memory is accessed in vectors. Long ones are split at multiples of 16 bytes, and their first and last elements are
// accessed one by one. The split depends on the row's address alone, so results do not depend on the launch.

// Elements of a part.
constexpr u32 STEP = STAGED ? 1 : WIDTH;
// Whether rows may begin up to WIDTH - 1 elements after a multiple of 16 bytes.
constexpr bool SHIFTED = !STAGED && COLUMNS % WIDTH != 0;
constexpr u32 GROUPS = THREADS / THREADS_PER_ROW;
constexpr u32 WARPS_PER_ROW = divide_up(THREADS_PER_ROW, WARP);
constexpr u32 PARTS = divide_up(COLUMNS + (SHIFTED ? WIDTH - 1 : 0), STEP);
constexpr u32 STEPS = divide_up(PARTS, THREADS_PER_ROW);
// Steps whose elements stay in registers. Later steps are read twice, AT_A_TIME of them at a time.
constexpr u32 KEPT_LIMIT = STAGED ? 32 : 8;
constexpr u32 KEPT = STEPS < KEPT_LIMIT ? STEPS : KEPT_LIMIT;
constexpr u32 AT_A_TIME = 2;
// Up to this number of steps, the widened elements fit into registers too.
constexpr u32 WIDENED_LIMIT = 4;

#if ELEMENT == F32
__device__ inline Element negative_infinity() { return __uint_as_float(0xff800000u); }
#else
__device__ inline Element negative_infinity() { return ELEMENT == F16 ? 0xfc00 : 0xff80; }
#endif

// As words, because the compiler would keep each 16-bit element in a register of its own.
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
    const u32 at = i * sizeof(Element) / 4;
    const u32 word = at == 0 ? words.x : at == 1 ? words.y : at == 2 ? words.z : words.w;
#if ELEMENT == F32
    return __uint_as_float(word);
#else
    return Element(i % 2 ? word >> 16 : word);
#endif
#endif
}

// The elements `begin` to `end` (exclusive) from the addresses `from` and `to`.
struct Row {
    const Element *from;
    Element *to;
    u32 begin, end;
    // Whether `to` is a multiple of 16 bytes. `from` always is.
    bool aligned;
};

// The maximum over part of a row, and the sum of exp(x - max).
struct Total {
    float max, sum;
};
// The maximum is finite, so -inf has the weight 0 also in a row of nothing else.
constexpr Total EMPTY = {LOWEST, 0.f};

// Whether a part of this step may contain the first or last element of a shifted row.
__device__ constexpr bool is_edge(u32 step) {
    return SHIFTED && (step == 0 || step + 2 >= STEPS);
}

__device__ inline u32 column_of(u32 step, u32 thread) {
    return (step * THREADS_PER_ROW + thread) * STEP;
}

__device__ inline bool is_whole(const Row &row, u32 column, bool edge) {
    return edge ? column >= row.begin && column + STEP <= row.end : column < row.end;
}

// The part that begins at `column`, with -inf outside the row. `again` says that it is read again later.
__device__ inline Part load_part(const Row &row, u32 column, bool edge, bool again) {
    Part part;
#if STAGED
    part.only = column < row.end ? row.from[column] : negative_infinity();
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
        vector.element[i] = inside ? row.from[column + i] : negative_infinity();
    }
    part.words = *reinterpret_cast<const uint4 *>(&vector);
#endif
    return part;
}

// Stores whole parts as vectors if `vector`.
__device__ inline void store_part(const Row &row, u32 column, bool edge, bool vector, const Part &part) {
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

// Makes the compiler widen the elements again later, because long rows do not fit into registers as f32. Adding
// blockIdx.z (always 0) hides the value from the compiler.
__device__ inline void keep_narrow(Part &part) {
#if !STAGED
    uint4 &words = part.words;
    const u32 zero = blockIdx.z;
    words.x += zero, words.y += zero, words.z += zero, words.w += zero;
#endif
}

// exp(x - max), flushed to zero below the smallest normal number.
__device__ inline float weight(float x, float max) { return ex2_approx((x - max) * LOG2_E); }

__device__ inline float part_max(float max, const Part &part) {
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) max = fmaxf(max, widen(element_of(part, i)));
    return max;
}

__device__ inline float sum_of_weights(const Part &part, float max) {
    float sum = 0.f;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) sum += weight(widen(element_of(part, i)), max);
    return sum;
}

__device__ inline Part normalised(const Part &part, float max, float scale) {
    Part weights;
#if STAGED
    weights.only = narrow(weight(widen(part.only), max) * scale);
#else
    Vector vector;
#pragma unroll
    for (u32 i = 0; i < STEP; ++i) vector.element[i] = narrow(weight(widen(element_of(part, i)), max) * scale);
    weights.words = *reinterpret_cast<const uint4 *>(&vector);
#endif
    return weights;
}

// The total of LANES neighbouring lanes, in every lane.
template <u32 LANES>
__device__ inline Total combine_lanes(Total total) {
    const float max = warp_max<LANES>(total.max);
    return {max, warp_sum<LANES>(total.sum * weight(total.max, max))};
}

// The total of a row, in all its threads. `totals` has one entry for each warp.
__device__ inline Total combine(Total total, Total *totals) {
    total = combine_lanes<(THREADS_PER_ROW < WARP ? THREADS_PER_ROW : WARP)>(total);
    if (WARPS_PER_ROW == 1) return total;
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (lane == 0) totals[warp] = total;
    __syncthreads();
    total = lane < WARPS_PER_ROW ? totals[warp / WARPS_PER_ROW * WARPS_PER_ROW + lane] : EMPTY;
    return combine_lanes<WARP>(total);
}

// All threads of the block must call this, if necessary with an empty row.
__device__ inline void softmax_row(const Row &row, u32 thread, Total *totals) {
    Part kept[KEPT];
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) kept[step] = load_part(row, column_of(step, thread), is_edge(step), false);
    Total total = EMPTY;
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        total.max = part_max(total.max, kept[step]);
        if (KEPT > WIDENED_LIMIT) keep_narrow(kept[step]);
    }
#pragma unroll
    for (u32 step = 0; step < KEPT; ++step) {
        total.sum += sum_of_weights(kept[step], total.max);
        if (KEPT > WIDENED_LIMIT) keep_narrow(kept[step]);
    }
#pragma unroll 1
    for (u32 step = KEPT; step < STEPS; step += AT_A_TIME) {
        Part parts[AT_A_TIME];
        float max = total.max;
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) parts[i] = load_part(row, column_of(step + i, thread), SHIFTED, true);
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) max = part_max(max, parts[i]);
        total.sum *= weight(total.max, max);
        total.max = max;
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) total.sum += sum_of_weights(parts[i], max);
    }
    total = combine(total, totals);
    // Not `sum > 0`, which would hide a NaN.
    const float scale = total.sum == 0.f ? 0.f : 1.f / total.sum;
    if (!SHIFTED || row.aligned) {
#pragma unroll
        for (u32 step = 0; step < KEPT; ++step) {
            store_part(row, column_of(step, thread), is_edge(step), true, normalised(kept[step], total.max, scale));
        }
    }
#pragma unroll 1
    for (u32 step = !SHIFTED || row.aligned ? KEPT : 0; step < STEPS; step += AT_A_TIME) {
        Part parts[AT_A_TIME];
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) parts[i] = load_part(row, column_of(step + i, thread), SHIFTED, false);
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) {
            const Part weights = normalised(parts[i], total.max, scale);
            store_part(row, column_of(step + i, thread), SHIFTED, row.aligned, weights);
        }
    }
}

// Elements after the last multiple of 16 bytes.
__device__ inline u32 misalignment(const Element *address) {
    return u32(reinterpret_cast<u64>(address) % sizeof(Vector) / sizeof(Element));
}

#if STAGED
// Copies a block's elements to shared memory and back, in vectors if global memory is aligned.
constexpr u32 COPIES = divide_up(ROWS * COLUMNS / WIDTH, THREADS);

__device__ inline void load_staged(Element *staged, const Element *from, u32 elements) {
    const u32 whole = misalignment(from) == 0 ? elements - elements % WIDTH : 0;
    Vector vectors[COPIES];
#pragma unroll
    for (u32 copy = 0; copy < COPIES; ++copy) {
        const u32 element = (copy * THREADS + threadIdx.x) * WIDTH;
        if (element < whole) vectors[copy] = ldcs_vector(from + element);
    }
#pragma unroll
    for (u32 copy = 0; copy < COPIES; ++copy) {
        const u32 element = (copy * THREADS + threadIdx.x) * WIDTH;
        if (element < whole) *reinterpret_cast<Vector *>(staged + element) = vectors[copy];
    }
#pragma unroll 1
    for (u32 element = whole + threadIdx.x; element < elements; element += THREADS) staged[element] = from[element];
}

__device__ inline void store_staged(Element *to, const Element *staged, u32 elements) {
    const u32 whole = misalignment(to) == 0 ? elements - elements % WIDTH : 0;
#pragma unroll
    for (u32 copy = 0; copy < COPIES; ++copy) {
        const u32 element = (copy * THREADS + threadIdx.x) * WIDTH;
        if (element < whole) stcs_vector(to + element, *reinterpret_cast<const Vector *>(staged + element));
    }
#pragma unroll 1
    for (u32 element = whole + threadIdx.x; element < elements; element += THREADS) to[element] = staged[element];
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    softmax(const Element *__restrict__ x, Element *__restrict__ out, u64 rows) {
    const Overlap overlap;
    const u32 group = threadIdx.x / THREADS_PER_ROW, thread = threadIdx.x % THREADS_PER_ROW;
    const u64 first = linear_block_index() * ROWS;
    // Rows of this block.
    const u32 count = rows - first < ROWS ? u32(rows - first) : ROWS;
#if STAGED
    alignas(sizeof(Vector)) __shared__ Element staged[ROWS * COLUMNS];
    load_staged(staged, x + first * COLUMNS, count * COLUMNS);
    __syncthreads();
    for (u32 round = 0; round < ROWS / GROUPS; ++round) {
        const u32 index = round * GROUPS + group;
        Element *row = staged + index * COLUMNS;
        softmax_row({row, row, 0, index < count ? u32(COLUMNS) : 0, true}, thread, nullptr);
    }
    __syncthreads();
    store_staged(out + first * COLUMNS, staged, count * COLUMNS);
#else
    __shared__ Total totals[THREADS / WARP];
    x += (first + group) * COLUMNS, out += (first + group) * COLUMNS;
    const u32 begin = SHIFTED ? misalignment(x) : 0;
    const u32 end = group < count ? begin + COLUMNS : 0;
    softmax_row({x - begin, out - begin, begin, end, misalignment(out) == begin}, thread, totals);
#endif
}
