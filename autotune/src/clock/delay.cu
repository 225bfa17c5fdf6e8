// Holds a stream for a while, and reads its multiprocessor's clock against the time.
//
// Grid: one block of one thread. `stamps` takes four words: cycles and nanoseconds at the begin of a
// window, and the same at its end. The window lasts `window_ns`, or MOST_CYCLES where the timer does
// not advance: the kernel always ends.

typedef unsigned long long u64;

// Some half a millisecond: far beyond a window, and still short.
constexpr long long MOST_CYCLES = 1000000;

__device__ inline u64 time_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Waits for the time `until`, at most MOST_CYCLES, and gives the time it is then.
__device__ inline u64 wait(u64 until) {
    const long long first = clock64();
    u64 now = time_ns();
    while (now < until && clock64() - first < MOST_CYCLES) now = time_ns();
    return now;
}

extern "C" __global__ void __launch_bounds__(1) delay(u64 *__restrict__ stamps, u64 window_ns) {
    // From one tick of the timer to another, so that their distance, up to a microsecond, does not
    // make the clock inexact.
    const u64 begin_ns = wait(time_ns() + 1);
    const u64 begin_cycles = clock64();
    const u64 end_ns = wait(begin_ns + window_ns);
    const u64 end_cycles = clock64();
    stamps[0] = begin_cycles;
    stamps[1] = begin_ns;
    stamps[2] = end_cycles;
    stamps[3] = end_ns;
}
