// Holds a stream for a while, and measures the clock of its multiprocessor.
//
// Grid: one block of one thread. `stamps` has four words: cycles and nanoseconds at the start of a
// window, and the same at its end. The window lasts `window_ns`, or MAX_CYCLES if the timer does
// not advance, so the kernel always ends.

typedef unsigned long long u64;

// About half a millisecond: far longer than a window, and still short.
constexpr long long MAX_CYCLES = 1000000;

__device__ inline u64 time_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Waits until the time `until`, at most MAX_CYCLES, and returns the current time.
__device__ inline u64 wait(u64 until) {
    const long long first = clock64();
    u64 now = time_ns();
    while (now < until && clock64() - first < MAX_CYCLES) now = time_ns();
    return now;
}

extern "C" __global__ void __launch_bounds__(1) delay(u64 *__restrict__ stamps, u64 window_ns) {
    // Both ends are at ticks of the timer, so its period of up to a microsecond does not matter.
    const u64 begin_ns = wait(time_ns() + 1);
    const u64 begin_cycles = clock64();
    const u64 end_ns = wait(begin_ns + window_ns);
    const u64 end_cycles = clock64();
    stamps[0] = begin_cycles;
    stamps[1] = begin_ns;
    stamps[2] = end_cycles;
    stamps[3] = end_ns;
}
