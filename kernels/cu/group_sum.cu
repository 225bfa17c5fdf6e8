// Sums of two tensors over the members of each group, such as the gradients of keys and values that several heads of
// queries share.
//
// Contract
//   macros      ELEMENT. MEMBERS of a group. COLUMNS, whole vectors of 16 bytes. LANES, the threads of a group, and THREADS,
//               a multiple of them.
//   layout      first and second are [groups, MEMBERS, COLUMNS], their sums [groups, COLUMNS].
//   grid        THREADS / LANES groups a block on y.
//   block       THREADS on x.
//   arguments   first, second, first_sum, second_sum (addresses of the chunk's first group), groups of the chunk (u64).
//   alignment   16 bytes.
//   arithmetic  f32, in the order of the members.

// The sum of a vector of each member.
__device__ inline Vector sum_members(const Element *from) {
    float sums[WIDTH] = {};
#pragma unroll 4
    for (u32 member = 0; member < MEMBERS; ++member) {
        const Vector one = ldcs_vector(from + u64(member) * COLUMNS);
#pragma unroll
        for (u32 i = 0; i < WIDTH; ++i) sums[i] += widen(one.element[i]);
    }
    Vector sum;
#pragma unroll
    for (u32 i = 0; i < WIDTH; ++i) sum.element[i] = narrow(sums[i]);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    group_sum(const Element *__restrict__ first, const Element *__restrict__ second, Element *__restrict__ first_sum,
              Element *__restrict__ second_sum, u64 groups) {
    const Overlap overlap;
    const u64 group = linear_block_index() * (THREADS / LANES) + threadIdx.x / LANES;
    if (group >= groups) return;
    for (u32 column = threadIdx.x % LANES * WIDTH; column < COLUMNS; column += LANES * WIDTH) {
        const u64 to = group * COLUMNS + column, from = group * MEMBERS * COLUMNS + column;
        stcs_vector(first_sum + to, sum_members(first + from));
        stcs_vector(second_sum + to, sum_members(second + from));
    }
}
