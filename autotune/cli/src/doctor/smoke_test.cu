// Inverts `items` words, one for each thread, in blocks of 256 threads along x.
extern "C" __global__ void gridguard_invert(unsigned long long *values, unsigned long long items) {
    unsigned long long item = blockIdx.x * 256ull + threadIdx.x;
    if (item < items) values[item] = ~values[item];
}
