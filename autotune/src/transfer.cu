// Reads all words, 16 bytes at a time, to measure the bandwidth of reads.
//
// Grid: any, of blocks along x. `from` has `count` vectors. `sum` is written only if the exclusive or of a thread's words
// is MAGIC, so that the reads are needed; the words are zeros.

typedef unsigned long long u64;

constexpr unsigned MAGIC = 0x9e3779b9u;

extern "C" __global__ void __launch_bounds__(512)
transfer(const uint4 *__restrict__ from, u64 *__restrict__ sum, u64 count) {
    const u64 stride = u64(gridDim.x) * blockDim.x;
    u64 place = u64(blockIdx.x) * blockDim.x + threadIdx.x;
    unsigned all = 0;
    for (; place + 3 * stride < count; place += 4 * stride) {
        uint4 part[4];
#pragma unroll
        for (int turn = 0; turn < 4; ++turn) part[turn] = from[place + turn * stride];
#pragma unroll
        for (int turn = 0; turn < 4; ++turn) all ^= part[turn].x ^ part[turn].y ^ part[turn].z ^ part[turn].w;
    }
    for (; place < count; place += stride) all ^= from[place].x ^ from[place].y ^ from[place].z ^ from[place].w;
    if (all == MAGIC) sum[0] = all;
}
