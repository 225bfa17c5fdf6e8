// Stable argsort of rows: out[r][p] is the column of the element of rank p in row r.
//
// Contract
//   macros      ELEMENT. COLUMNS, at most 32,768. LOG, at least 1: 2^LOG is the smallest power of two that is at
//               least COLUMNS. THREADS. A block has ROWS rows of THREADS / ROWS threads each. A thread sorts 32 or
//               2^LOG words. DESCENDING is 1 or 0.
//   layout      x is [rows, COLUMNS], out is u32 of the same shape.
//   grid        ROWS rows a block on y.
//   block       THREADS on x, a multiple of 32.
//   shared      dynamic, for each row: 2^LOG words of 32 bits, and one more for every 32 of them, at least one. In
//               f32 half as much again, rounded to whole words for every 32 columns.
//   arguments   x, out (addresses of the chunk's first row), rows of the chunk (u64).
//   alignment   one element.
//   order       as numbers. -0 equals +0. NaN is greater than all other values and equals NaN.
//   arithmetic  integers.
//
// A word of 32 bits has a 16-bit key above its 16-bit column. So no two words are equal, and a bitonic network, which
// is not stable, sorts them stably. f32 elements are sorted in two passes: by their lower halves, then by their upper
// halves.
//
// A thread has 32 words in registers, and compares words whose indices differ in one of five bits. For other bits the
// words are exchanged through shared memory into another layout. In a layout with shift s, bits s to s + 4 of a word's
// index are its register number, and the other bits are the thread's. A padding word after every 32 words avoids bank
// conflicts in all layouts.

constexpr u32 LOG_HELD = LOG < 5 ? LOG : 5;
// Words of a thread, words of a row, threads of a row, words of a row with padding.
constexpr u32 HELD = 1 << LOG_HELD;
constexpr u32 ROW_KEYS = 1 << LOG;
constexpr u32 THREADS_PER_ROW = ROW_KEYS / HELD;
constexpr u32 GAP = 32;
constexpr u32 ROW_WORDS = ROW_KEYS + (ROW_KEYS < GAP ? 1 : ROW_KEYS / GAP);
// Bits of the index within a warp.
constexpr u32 LOG_WARP = 10;
// The shifts of the layouts. The first two only exchange words within a warp.
constexpr u32 LOW = 0, MIDDLE = LOG < LOG_WARP ? LOG - LOG_HELD : LOG_WARP - LOG_HELD, HIGH = LOG - LOG_HELD;
// Passes over the halves of the keys. Padded words that hold 16 bits for each column.
constexpr u32 PASSES = sizeof(Element) / 2;
constexpr u32 HALF_WORDS = HELD / 2 + 1;
constexpr u32 ROW_HALF_WORDS = PASSES > 1 ? THREADS_PER_ROW * HALF_WORDS : 0;
// Elements that a thread loads before it uses them.
constexpr u32 BATCH = 8;
constexpr u32 STEPS = divide_up(ROWS * COLUMNS, THREADS);

extern __shared__ u32 shared[];

// An unsigned number that orders the elements as wanted.
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

// The padded index of a word in shared memory.
__device__ constexpr u32 padded(u32 index) {
    return index + index / GAP;
}

// The padded index of the 16 bits of a column.
__device__ constexpr u32 padded_half(u32 column) {
    return column + 2 * (column / GAP);
}

// The index of a thread's first word.
__device__ inline u32 first_index(u32 shift, u32 thread) {
    return (thread >> shift << (shift + LOG_HELD)) | (thread & ((1u << shift) - 1));
}

__device__ inline void store_words(const u32 (&words)[HELD], u32 *row, u32 shift, u32 thread) {
    row += padded(first_index(shift, thread));
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) row[padded(i << shift)] = words[i];
}

__device__ inline void load_words(u32 (&words)[HELD], const u32 *row, u32 shift, u32 thread) {
    row += padded(first_index(shift, thread));
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) words[i] = row[padded(i << shift)];
}

// Complements the words if `mask` is all ones, not if it is 0. A multiplication, because logic shares its unit with
// comparisons.
__device__ inline void complement(u32 (&words)[HELD], u32 mask) {
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) words[i] = words[i] * (mask | 1u) + mask;
}

__device__ inline void compare_exchange(u32 &one, u32 &other) {
    const u32 larger = max(one, other);
    one = min(one, other), other = larger;
}

// Compares and exchanges words whose register numbers differ in `bit`.
__device__ inline void compare_exchange_bit(u32 (&words)[HELD], u32 bit) {
#pragma unroll
    for (u32 i = 0; i < HELD; ++i) {
        if (!(i >> bit & 1)) compare_exchange(words[i], words[i | 1u << bit]);
    }
}

// Sorts the words of a thread.
__device__ inline void sort_registers(u32 (&words)[HELD]) {
#pragma unroll
    for (u32 stage = 1; stage <= LOG_HELD; ++stage) {
        // The first step compares with the mirrored word, so that no run has to be reversed.
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) {
            if (!(i >> (stage - 1) & 1)) compare_exchange(words[i], words[i ^ ((1u << stage) - 1)]);
        }
#pragma unroll
        for (u32 bit = stage - 1; bit-- > 0;) compare_exchange_bit(words, bit);
    }
}

// All ones in threads whose run descends after `stage`: every other run, except in the last stage.
__device__ inline u32 descending_mask(u32 stage, u32 thread) {
    return stage < LOG ? 0u - (thread >> (stage - LOG_HELD) & 1u) : 0u;
}

// Sorts a row that is in the lowest layout. A descending run is sorted as complemented words in ascending order.
__device__ inline void sort_row(u32 (&words)[HELD], u32 *row, u32 thread) {
    u32 mask = descending_mask(LOG_HELD, thread);
    complement(words, mask);
    sort_registers(words);
#pragma unroll 1
    for (u32 stage = LOG_HELD + 1; stage <= LOG; ++stage) {
        const u32 next = descending_mask(stage, thread);
        complement(words, mask ^ next);
        mask = next;
        store_words(words, row, LOW, thread);
        if (LOG > LOG_WARP && stage > LOG_WARP) {
            __syncthreads();
            load_words(words, row, HIGH, thread);
#pragma unroll
            for (u32 bit = LOG - 1; bit >= LOG_WARP; --bit) {
                if (stage > bit) compare_exchange_bit(words, bit - HIGH);
            }
            store_words(words, row, HIGH, thread);
            __syncthreads();
        } else {
            __syncwarp();
        }
        load_words(words, row, MIDDLE, thread);
#pragma unroll
        for (u32 bit = MIDDLE + LOG_HELD - 1; bit >= LOG_HELD; --bit) {
            if (stage > bit) compare_exchange_bit(words, bit - MIDDLE);
        }
        store_words(words, row, MIDDLE, thread);
        __syncwarp();
        load_words(words, row, LOW, thread);
#pragma unroll
        for (u32 bit = LOG_HELD; bit-- > 0;) compare_exchange_bit(words, bit);
    }
}

#if ELEMENT == F32
// The words are prepared in shared memory, because registers do not suffice for them and their addresses.

// Makes words of the lower halves of the keys, and saves the upper halves.
__device__ inline void prepare_lower(u32 *row, u32 *half_row, u32 thread) {
    u32 *own = row + padded(thread * HELD), *own_halves = half_row + thread * HALF_WORDS;
#pragma unroll 4
    for (u32 i = 0; i < HELD; i += 2) {
        const u32 column = thread * HELD + i;
        // Padding after the last column has the largest key.
        const u32 one = column < COLUMNS ? own[i] : 0xffffffffu;
        const u32 other = column + 1 < COLUMNS ? own[i + 1] : 0xffffffffu;
        own_halves[i / 2] = __byte_perm(one, other, 0x7632);
        own[i] = one << 16 | column, own[i + 1] = other << 16 | (column + 1);
    }
}

// Makes words of the upper halves of the keys and the rank by the lower half. Saves the columns in the order of these
// ranks, in the memory of the upper halves.
__device__ inline void prepare_upper(u32 *row, u32 *half_row, u32 thread) {
    const u16 *halves = reinterpret_cast<const u16 *>(half_row);
    u32 *own = row + padded(thread * HELD), *own_halves = half_row + thread * HALF_WORDS;
#pragma unroll 8
    for (u32 i = 0; i < HELD; ++i) {
        const u32 column = own[i] & 0xffffu;
        own[i] = u32(halves[padded_half(column)]) << 16 | column;
    }
    // All threads have read the upper halves.
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

// The first element of the block's rows, and their number of elements.
struct Rows {
    u64 first;
    u32 elements;
};

// Loads the block's rows and stores their keys: whole f32 keys, or words of a 16-bit key and its column.
__device__ inline void load_rows(const Element *__restrict__ x, const Rows &rows) {
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
            if (element < elements) shared[element / COLUMNS * ROW_WORDS + padded(column)] = word;
        }
    }
}

// Stores the columns of the sorted words.
__device__ inline void store_rows(u32 *__restrict__ out, const Rows &rows, const u32 *half_rows) {
    const u32 elements = rows.elements;
    out += rows.first;
#pragma unroll 8
    for (u32 element = threadIdx.x; element < elements; element += THREADS) {
        const u32 row = element / COLUMNS;
        u32 column = shared[row * ROW_WORDS + padded(element % COLUMNS)] & 0xffffu;
        if (PASSES > 1) {
            const u16 *halves = reinterpret_cast<const u16 *>(half_rows + row * ROW_HALF_WORDS);
            column = halves[padded_half(column)];
        }
        __stcs(out + element, column);
    }
}

// 1,024 threads of 64 registers fill a multiprocessor. With two passes some small blocks need more registers.
#if OVERLAP && __CUDA_ARCH__ >= 1000
// One block less avoids spilling.
constexpr u32 BLOCKS = PASSES > 1 && THREADS > 1 && THREADS < 1024 ? 1024 / THREADS - 1 : 1024 / THREADS;
#else
constexpr u32 BLOCKS = PASSES > 1 && THREADS == 128 ? 7 : 1024 / THREADS;
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    argsort(const Element *__restrict__ x, u32 *__restrict__ out, u64 rows) {
    const Overlap overlap;
    const u32 slot = threadIdx.x / THREADS_PER_ROW, thread = threadIdx.x % THREADS_PER_ROW;
    u32 *const row = shared + slot * ROW_WORDS, *const half_rows = shared + ROWS * ROW_WORDS;
    // In shared memory, because sorting needs all registers.
    __shared__ Rows kept;
    {
        const u64 first = linear_block_index() * ROWS;
        const Rows own = {first * COLUMNS, (rows - first < ROWS ? u32(rows - first) : ROWS) * COLUMNS};
        if (threadIdx.x == 0) kept = own;
        load_rows(x, own);
    }
    __syncthreads();
#pragma unroll 1
    for (u32 pass = 0; pass < PASSES; ++pass) {
        u32 words[HELD];
#if ELEMENT == F32
        u32 *half_row = half_rows + slot * ROW_HALF_WORDS;
        if (pass == 0) {
            prepare_lower(row, half_row, thread);
        } else {
            prepare_upper(row, half_row, thread);
        }
        load_words(words, row, LOW, thread);
#else
        load_words(words, row, LOW, thread);
#pragma unroll
        for (u32 i = 0; i < HELD; ++i) {
            // Padding after the last column has the largest key.
            const u32 column = thread * HELD + i;
            if (column >= COLUMNS) words[i] = 0xffff0000u | column;
        }
#endif
        sort_row(words, row, thread);
        store_words(words, row, LOW, thread);
    }
    __syncthreads();

    store_rows(out, kept, half_rows);
}
