// Rows of a table by index: out[i] = table[index[i]].
//
// Contract
//   macros      ELEMENT. INDEX is I32 or I64. COLUMNS. A thread moves pieces of PIECE_BYTES at once: 2, 4, 8 or 16, a
//               divisor of a row's bytes. THREADS. LANES threads share a row, a divisor of THREADS. A thread moves
//               STEPS pieces of a row, of PASSES rows. TILES blocks share a row. LANES * STEPS * TILES pieces cover a
//               row.
//   layout      table is [table_rows, COLUMNS], index is [rows], out is [rows, COLUMNS].
//   grid        TILES blocks on x for every THREADS / LANES * PASSES rows on y.
//   block       THREADS on x.
//   arguments   table, index and out (addresses of the chunk's first row), first_bad (one u64), table_rows (u64), the
//               chunk's first row (u64), rows of the chunk (u64).
//   alignment   PIECE_BYTES for table and out, one element for the others.
//   arithmetic  none on elements.
//
// For an index outside the table, the row of out becomes zeros, and first_bad the minimum of itself and the row's
// position in the whole batch.

#define I32 0
#define I64 1

#if INDEX == I32
typedef int Index;
#else
typedef i64 Index;
#endif

#if PIECE_BYTES == 16
typedef uint4 Piece;
#elif PIECE_BYTES == 8
typedef uint2 Piece;
#elif PIECE_BYTES == 4
typedef u32 Piece;
#else
typedef u16 Piece;
#endif

constexpr u32 PIECES = u64(COLUMNS) * sizeof(Element) / sizeof(Piece);
constexpr u32 ROWS_AT_ONCE = THREADS / LANES;

extern "C" __global__ void __launch_bounds__(THREADS)
    get_rows(const Element *__restrict__ table, const Index *__restrict__ index, Element *__restrict__ out, u64 *first_bad,
             u64 table_rows, u64 offset, u64 rows) {
    const Overlap overlap;
    const u64 block = linear_block_index();
    const u32 lane = threadIdx.x % LANES;
    const u32 piece = u32(block % TILES) * (LANES * STEPS) + lane;
    const u64 first_row = block / TILES * (ROWS_AT_ONCE * PASSES) + threadIdx.x / LANES;
    const Piece *pieces = reinterpret_cast<const Piece *>(table);
    Piece *to = reinterpret_cast<Piece *>(out);

    // Load all indices, then all pieces, before the first store.
    i64 wanted[PASSES];
#pragma unroll
    for (u32 pass = 0; pass < PASSES; ++pass) {
        const u64 row = first_row + pass * ROWS_AT_ONCE;
        wanted[pass] = row < rows ? i64(__ldg(index + row)) : -1;
    }
    Piece kept[PASSES][STEPS];
#pragma unroll
    for (u32 pass = 0; pass < PASSES; ++pass) {
        // As u64, a negative index is larger than any table.
        const bool exists = u64(wanted[pass]) < table_rows;
#pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            const u32 at = piece + step * LANES;
            kept[pass][step] = exists && at < PIECES ? __ldg(pieces + (u64(wanted[pass]) * PIECES + at)) : Piece{};
        }
    }
#pragma unroll
    for (u32 pass = 0; pass < PASSES; ++pass) {
        const u64 row = first_row + pass * ROWS_AT_ONCE;
        if (row >= rows) continue;
        if (u64(wanted[pass]) >= table_rows && piece == 0) atomicMin(first_bad, offset + row);
#pragma unroll
        for (u32 step = 0; step < STEPS; ++step) {
            const u32 at = piece + step * LANES;
            if (at < PIECES) __stcs(to + (row * PIECES + at), kept[pass][step]);
        }
    }
}
