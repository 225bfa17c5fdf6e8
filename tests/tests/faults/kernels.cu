// Kernels that fault. The fake driver has kernels of the same names.

typedef unsigned long long u64;

// Writes out[b] = first + b, one block along y per item.
extern "C" __global__ void iota_y(u64 *out, u64 first, u64 items) {
    if (blockIdx.y < items) out[blockIdx.y] = first + blockIdx.y;
}

// As iota_y, through a workspace.
extern "C" __global__ void spill_y(u64 *out, u64 first, u64 items, u64 *workspace) {
    if (blockIdx.y >= items) return;
    volatile u64 *own = workspace + blockIdx.y;
    *own = first + blockIdx.y;
    out[blockIdx.y] = *own;
}

// As iota_y, with 16 KiB of local memory for each thread.
extern "C" __global__ void local_heavy(u64 *out, u64 first, u64 items) {
    volatile u64 own[2048];
    for (int i = 0; i < 2048; i++) own[i] = first + i;
    if (blockIdx.y < items) out[blockIdx.y] = own[blockIdx.y % 2048] - blockIdx.y % 2048 + blockIdx.y;
}

// Whether this block has the faulting item; waits `cycles` first.
static __device__ bool at_fault(u64 *out, u64 first, u64 items, u64 faulty, u64 cycles) {
    if (blockIdx.y < items) out[blockIdx.y] = first + blockIdx.y;
    if (first + blockIdx.y != faulty) return false;
    long long start = clock64();
    while (u64(clock64() - start) < cycles) {}
    return true;
}

// Each kernel below does what iota_y does, and faults at item `faulty` as `how` says. `code` is the error
// code that the fake driver returns.

extern "C" __global__ void fault_access(u64 *out, u64 first, u64 items, u64 faulty, u64 how, u64 cycles, u64 code) {
    if (!at_fault(out, first, items, faulty, cycles)) return;
    volatile char *base = reinterpret_cast<volatile char *>(out);
    switch (how >> 56) {
    case 0: *reinterpret_cast<volatile u64 *>(how & 0xfff8) = 1; break;                 // near null
    case 1: *reinterpret_cast<volatile u64 *>(base + (how & 0xfffffffffff8)) = 1; break; // far beyond
    case 2: out[0] = *reinterpret_cast<volatile u64 *>(base + (how & 0xfffffffffff8)); break;
    case 3: *reinterpret_cast<volatile u64 *>(base + 1 + (how & 6)) = 1; break;          // misaligned
    case 4: {
        extern __shared__ u64 shared[];
        *reinterpret_cast<volatile u64 *>(reinterpret_cast<char *>(shared) + (how & 0xfffff8)) = 1;
        break;
    }
    case 5: atomicAdd(reinterpret_cast<u64 *>(out) + (how & 0xfffffffffff8), 1ull); break;
    }
}

extern "C" __global__ void fault_trap(u64 *out, u64 first, u64 items, u64 faulty, u64 how, u64 cycles, u64 code) {
    if (at_fault(out, first, items, faulty, cycles)) __trap();
}

extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t) __attribute__((noreturn));

extern "C" __global__ void fault_assert(u64 *out, u64 first, u64 items, u64 faulty, u64 how, u64 cycles, u64 code) {
    if (at_fault(out, first, items, faulty, cycles)) __assertfail("no fault", "kernels.cu", 1, "fault_assert", 1);
}

static __device__ __noinline__ u64 deeper(u64 depth, volatile u64 *stop) {
    volatile u64 frame[128];
    frame[depth % 128] = depth;
    if (*stop == 0xfedcba9876543210ull) return depth;
    return deeper(depth + 1, stop) + frame[depth % 128];
}

extern "C" __global__ void fault_recursion(u64 *out, u64 first, u64 items, u64 faulty, u64 how, u64 cycles, u64 code) {
    if (at_fault(out, first, items, faulty, cycles)) *out = deeper(how, out);
}

extern "C" __global__ void fault_jump(u64 *out, u64 first, u64 items, u64 faulty, u64 how, u64 cycles, u64 code) {
    if (at_fault(out, first, items, faulty, cycles)) reinterpret_cast<void (*)(u64 *)>(how)(out);
}
