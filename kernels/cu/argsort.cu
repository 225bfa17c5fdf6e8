// Argsort of rows: out[r][p] is the column of the element of rank p in row r; equal elements keep their
// order.
//
// Contract
//   macros      ELEMENT; COLUMNS, at most 32,768; LOG, at least 1: 2^LOG is the least power of two that
//               holds COLUMNS; THREADS; ROWS, of a block, each served by THREADS / ROWS threads, as many
//               as hold 2^LOG columns, 32 or 2^LOG each; DESCENDING (1 or 0)
//   layout      x is [rows, COLUMNS] and out, u32, the same, contiguous; out overlaps none
//   grid        ROWS rows a block along y, folded into x or not; the last block may have fewer
//   block       THREADS on x, a multiple of 32; dynamic shared memory for each row: 2^LOG words of 32
//               bits and one more for every 32 of them, at least one; in f32 half as much again, rounded
//               to whole words for every 32 columns
//   arguments   x, out (addresses of the chunk's first row), rows of the chunk (u64)
//   alignment   that of the elements
//   order       as numbers; -0 equals +0; NaN is greater than all else and equals NaN
//   arithmetic  integers; 64-bit offsets
//
// A word of 32 bits holds 16 bits to sort by over 16 bits that say which column they are of, so that no
// two words are equal and their order is stable: a bitonic network may sort them. Elements of 32 bits are
// sorted twice, by their lower halves and then by their upper ones.
//
// A thread holds 32 words in registers and compares those whose places differ in one of the five bits of
// a place that its registers stand for. When other bits are due, the words go through shared memory and
// come back in another layout. A layout with shift s has place bits s to s + 4 in the register's number;
// the rest are the thread's. One word of gap after every 32 keeps all layouts free of bank conflicts.

constexpr u32 LOG_HELD = LOG < 5 ? LOG : 5;
// Words of a thread; threads of a row; words of a row with their gaps.
constexpr u32 HELD = 1 << LOG_HELD;
constexpr u32 PLACES = 1 << LOG;
constexpr u32 THREADS_PER_ROW = PLACES / HELD;
constexpr u32 GAP = 32;
constexpr u32 ROW_WORDS = PLACES + (PLACES < GAP ? 1 : PLACES / GAP);
// Place bits that a warp's words differ in.
constexpr u32 LOG_WARP = 10;
// The layouts: their shifts. A warp keeps to its own words in the first two.
constexpr u32 LOW = 0, MIDDLE = LOG < LOG_WARP ? LOG - LOG_HELD : LOG_WARP - LOG_HELD, HIGH = LOG - LOG_HELD;
// Passes over the key's halves; words that hold a half of each place, two a word, with gaps.
constexpr u32 PASSES = sizeof(Element) / 2;
constexpr u32 HALF_WORDS = HELD / 2 + 1;
constexpr u32 ROW_HALF_WORDS = PASSES > 1 ? THREADS_PER_ROW * HALF_WORDS : 0;
// Elements that a thread loads before it uses the first.
constexpr u32 BATCH = 8;
constexpr u32 STEPS = (ROWS * COLUMNS + THREADS - 1) / THREADS;

extern __shared__ u32 shared[];

// The element's bits, such that their order as an unsigned number is the one wanted.
__device__ inline u32 key_of(Element x) {
#if ELEMENT == F32
    constexpr u32 SIGN = 0x80000000u, INFINITE = 0x7f800000u, ALL = 0xffffffffu;
    const u32 bits = __float_as_uint(x);
#else
    constexpr u32 SIGN = 0x8000u, INFINITE = ELEMENT == F16 ? 0x7c00u : 0x7f80u, ALL = 0xffffu;
    const u32 bits = x;
#endif
    const u32 size = bits & ~SIGN;
    u32 key = bits & SIGN ? SIGN - size : SIGN + size;
    if (size > INFINITE) key = ALL;
    return DESCENDING ? ALL - key : key;
}

// Where a word lies in shared memory.
__device__ constexpr u32 spread(u32 place) {
    return place + place / GAP;
}

// Where the half of a column lies, in halves.
__device__ constexpr u32 spread_half(u32 column) {
    return column + 2 * (column / GAP);
}

// The place of a thread's first word.
__device__ inline u32 first_place(u32 shift, u32 thread) {
    return (thread >> shift << (shift + LOG_HELD)) | (thread & ((1u << shift) - 1));
}

__device__ inline void put(const u32 (&words)[HELD], u32 *row, u32 shift, u32 thread) {
    row += spread(first_place(shift, thread));
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) row[spread(i << shift)] = words[i];
}

__device__ inline void take(u32 (&words)[HELD], const u32 *row, u32 shift, u32 thread) {
    row += spread(first_place(shift, thread));
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) words[i] = row[spread(i << shift)];
}

// Complements the words where `mask` is all ones and leaves them where it is 0; a multiplication, as
// logic shares its unit with comparisons.
__device__ inline void complement(u32 (&words)[HELD], u32 mask) {
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) words[i] = words[i] * (mask | 1u) + mask;
}

__device__ inline void sort_two(u32 &one, u32 &other) {
    const u32 most = max(one, other);
    one = min(one, other), other = most;
}

// Sorts the words whose registers' numbers differ in `bit`.
__device__ inline void compare(u32 (&words)[HELD], u32 bit) {
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) {
        if (!(i >> bit & 1)) sort_two(words[i], words[i | 1u << bit]);
    }
}

// Sorts a thread's words.
__device__ inline void sort_held(u32 (&words)[HELD]) {
#pragma unroll
    for (u32 stage = 1; stage <= LOG_HELD; ++stage) {
        // The first step compares with the mirror image, which spares turning every other run.
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) {
            if (!(i >> (stage - 1) & 1)) sort_two(words[i], words[i ^ ((1u << stage) - 1)]);
        }
#pragma unroll
        for (u32 bit = stage - 1; bit-- > 0;) compare(words, bit);
    }
}

// All ones where the runs that `stage` makes descend: every other one, but the last stage makes one run.
__device__ inline u32 descent(u32 stage, u32 thread) {
    return stage < LOG ? 0u - (thread >> (stage - LOG_HELD) & 1u) : 0u;
}

// Sorts a row, in the lowest layout before and after. Complemented, a run that is to descend ascends.
__device__ inline void sort(u32 (&words)[HELD], u32 *row, u32 thread) {
    u32 mask = descent(LOG_HELD, thread);
    complement(words, mask);
    sort_held(words);
#pragma unroll 1
    for (u32 stage = LOG_HELD + 1; stage <= LOG; ++stage) {
        const u32 next = descent(stage, thread);
        complement(words, mask ^ next);
        mask = next;
        put(words, row, LOW, thread);
        if (LOG > LOG_WARP && stage > LOG_WARP) {
            __syncthreads();
            take(words, row, HIGH, thread);
#pragma unroll
            for (u32 bit = LOG - 1; bit >= LOG_WARP; --bit) {
                if (stage > bit) compare(words, bit - HIGH);
            }
            put(words, row, HIGH, thread);
            __syncthreads();
        } else {
            __syncwarp();
        }
        take(words, row, MIDDLE, thread);
#pragma unroll
        for (u32 bit = MIDDLE + LOG_HELD - 1; bit >= LOG_HELD; --bit) {
            if (stage > bit) compare(words, bit - MIDDLE);
        }
        put(words, row, MIDDLE, thread);
        __syncwarp();
        take(words, row, LOW, thread);
#pragma unroll
        for (u32 bit = LOG_HELD; bit-- > 0;) compare(words, bit);
    }
}

#if ELEMENT == F32
// What is done before a pass is done in memory: a thread's words are too many to have their addresses in
// registers as well.

// The upper halves of the keys are put aside; the lower ones are what to sort by first.
__device__ inline void prepare_lower(u32 *row, u32 *half_row, u32 thread) {
    u32 *own = row + spread(thread * HELD), *own_halves = half_row + thread * HALF_WORDS;
#pragma unroll 4
    for (u32 i = 0; i < HELD; i += 2) {
        const u32 column = thread * HELD + i;
        // Places behind the last column come last.
        const u32 one = column < COLUMNS ? own[i] : 0xffffffffu;
        const u32 other = column + 1 < COLUMNS ? own[i + 1] : 0xffffffffu;
        own_halves[i / 2] = __byte_perm(one, other, 0x7632);
        own[i] = one << 16 | column, own[i + 1] = other << 16 | (column + 1);
    }
}

// The upper halves come back to sort by. What a word says then is its rank by the lower half; the columns of
// the ranks are put aside where the upper halves were.
__device__ inline void prepare_upper(u32 *row, u32 *half_row, u32 thread) {
    const u16 *halves = reinterpret_cast<const u16 *>(half_row);
    u32 *own = row + spread(thread * HELD), *own_halves = half_row + thread * HALF_WORDS;
#pragma unroll 8
    for (u32 i = 0; i < HELD; ++i) {
        const u32 column = own[i] & 0xffffu;
        own[i] = u32(halves[spread_half(column)]) << 16 | column;
    }
    // Until nobody wants an upper half any more.
    if (LOG > LOG_WARP) {
        __syncthreads();
    } else {
        __syncwarp();
    }
#pragma unroll 4
    for (u32 i = 0; i < HELD; i += 2) {
        const u32 rank = thread * HELD + i, one = own[i], other = own[i + 1];
        own_halves[i / 2] = __byte_perm(one, other, 0x5410);
        own[i] = (one & 0xffff0000u) | rank, own[i + 1] = (other & 0xffff0000u) | (rank + 1);
    }
}
#endif

// The block's rows: their first element, and how many elements they have.
struct Rows {
    u64 first;
    u32 elements;
};

// Reads the block's rows and stores their keys, in halves together with their columns.
__device__ inline void read_rows(const Element *__restrict__ x, const Rows &rows) {
    const u32 elements = rows.elements;
    x += rows.first;
#pragma unroll 1
    for (u32 step = 0; step < STEPS; step += BATCH) {
        Element batch[BATCH];
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            const u32 element = (step + i) * THREADS + threadIdx.x;
            if (element < elements) batch[i] = __ldcs(x + element);
        }
#pragma unroll
        for (u32 i = 0; i < BATCH; ++i) {
            const u32 element = (step + i) * THREADS + threadIdx.x;
            const u32 column = element % COLUMNS;
            u32 word = key_of(batch[i]);
            if (PASSES == 1) word = word << 16 | column;
            if (element < elements) shared[element / COLUMNS * ROW_WORDS + spread(column)] = word;
        }
    }
}

// Writes the columns that the words have come to name.
__device__ inline void write_rows(u32 *__restrict__ out, const Rows &rows, const u32 *half_rows) {
    const u32 elements = rows.elements;
    out += rows.first;
#pragma unroll 8
    for (u32 element = threadIdx.x; element < elements; element += THREADS) {
        const u32 place = element / COLUMNS;
        u32 column = shared[place * ROW_WORDS + spread(element % COLUMNS)] & 0xffffu;
        if (PASSES > 1) {
            const u16 *halves = reinterpret_cast<const u16 *>(half_rows + place * ROW_HALF_WORDS);
            column = halves[spread_half(column)];
        }
        __stcs(out + element, column);
    }
}

// 1,024 threads of 64 registers each fill a multiprocessor; with two passes some small blocks want more.
#if OVERLAP && __CUDA_ARCH__ >= 1000
// One less, where they would spill otherwise.
constexpr u32 BLOCKS = PASSES > 1 && THREADS > 1 && THREADS < 1024 ? 1024 / THREADS - 1 : 1024 / THREADS;
#else
constexpr u32 BLOCKS = PASSES > 1 && THREADS == 128 ? 7 : 1024 / THREADS;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    argsort(const Element *__restrict__ x, u32 *__restrict__ out, u64 rows) {
    const Overlap overlap;
    const u32 place = threadIdx.x / THREADS_PER_ROW, thread = threadIdx.x % THREADS_PER_ROW;
    u32 *const row = shared + place * ROW_WORDS, *const half_rows = shared + ROWS * ROW_WORDS;
    // Sorting takes all registers, so that what is wanted afterwards is better kept elsewhere.
    __shared__ Rows kept;
    {
        const u64 first = block_number() * ROWS;
        const Rows own = {first * COLUMNS, (rows - first < ROWS ? u32(rows - first) : ROWS) * COLUMNS};
        if (threadIdx.x == 0) kept = own;
        read_rows(x, own);
    }
    __syncthreads();
#pragma unroll 1
    for (u32 pass = 0; pass < PASSES; ++pass) {
        u32 words[HELD];
#if ELEMENT == F32
        u32 *half_row = half_rows + place * ROW_HALF_WORDS;
        if (pass == 0) {
            prepare_lower(row, half_row, thread);
        } else {
            prepare_upper(row, half_row, thread);
        }
        take(words, row, LOW, thread);
#else
        take(words, row, LOW, thread);
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) {
            // Places behind the last column come last.
            const u32 column = thread * HELD + i;
            if (column >= COLUMNS) words[i] = 0xffff0000u | column;
        }
#endif
        sort(words, row, thread);
        put(words, row, LOW, thread);
    }
    __syncthreads();

    write_rows(out, kept, half_rows);
}
