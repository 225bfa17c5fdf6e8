//! The limit of memory-bound kernels: the fastest of several that read and write as many bytes as the
//! case must and compute nothing.

use cudarc::driver::CudaSlice;
use gridguard::cuda::{Args, Kernel};
use gridguard::{Choice, Dim3, LaunchRequest, Parameter, Plan};
use gridguard_kernels::Element;
use gridguard_problems::Traffic;

use super::journal::median;
use super::{Device, Failure};

pub(super) const SOURCE: &str = r#"
typedef unsigned long long u64;

constexpr u64 THREADS = 256;

__device__ inline uint4 operator^(const uint4 &a, const uint4 &b) {
    return make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w);
}

// Volatile, so that every load is made.
template <bool STREAMED>
__device__ inline uint4 load(const uint4 *from) {
    uint4 x;
    if (STREAMED)
        asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
    else
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
    return x;
}

template <bool STREAMED>
__device__ inline void store(uint4 *to, const uint4 &x) {
    if (STREAMED) __stcs(to, x);
    else *to = x;
}

struct Stream {
    // Vectors of all chunks, and of one: whole lines.
    u64 vectors, share;
    __device__ u64 first(u64 chunk) const {
        return chunk * share < vectors ? chunk * share : vectors;
    }
};

// Reads and writes two streams in chunks, each read and then written. A thread has COUNT loads under way before
// it waits for the first, and writes their xor.
// Grid: blocks of THREADS on x, any number; each takes a chunk after another.
template <bool STREAMED_LOADS, bool STREAMED_STORES, int COUNT>
__device__ inline void move(const uint4 *in, uint4 *out, const Stream &read, const Stream &written, u64 chunks) {
    for (u64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        // Not zero, which is what memory that was not written holds: the last chunks may read nothing.
        uint4 sum = make_uint4(1, 1, 1, 1);
        const u64 read_end = read.first(chunk + 1), end = written.first(chunk + 1);
        for (u64 at = read.first(chunk) + threadIdx.x; at < read_end; at += COUNT * THREADS) {
            uint4 x[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                x[i] = make_uint4(0, 0, 0, 0);
                if (at + i * THREADS < read_end) x[i] = load<STREAMED_LOADS>(in + at + i * THREADS);
            }
#pragma unroll
            for (int i = 0; i < COUNT; ++i) sum = sum ^ x[i];
        }
        for (u64 at = written.first(chunk) + threadIdx.x; at < end; at += THREADS)
            store<STREAMED_STORES>(out + at, sum);
    }
}

#define KERNEL(name, streamed_loads, streamed_stores, count)                                           \
    extern "C" __global__ void __launch_bounds__(256)                                                  \
        name(const uint4 *in, uint4 *out, u64 read, u64 read_share, u64 written, u64 write_share,      \
             u64 chunks) {                                                                             \
        const Stream reads = {read, read_share}, writes = {written, write_share};                      \
        move<streamed_loads, streamed_stores, count>(in, out, reads, writes, chunks);                  \
    }
KERNEL(plain_4, false, false, 4)
KERNEL(plain_8, false, false, 8)
KERNEL(streamed_loads_4, true, false, 4)
KERNEL(streamed_loads_8, true, false, 8)
KERNEL(streamed_stores_4, false, true, 4)
KERNEL(streamed_stores_8, false, true, 8)
KERNEL(streamed_4, true, true, 4)
KERNEL(streamed_8, true, true, 8)
"#;

/// The kernels, each with the loads that a thread has under way.
const KERNELS: [(&str, u64); 8] = [
    ("plain_4", 4),
    ("plain_8", 8),
    ("streamed_loads_4", 4),
    ("streamed_loads_8", 8),
    ("streamed_stores_4", 4),
    ("streamed_stores_8", 8),
    ("streamed_4", 4),
    ("streamed_8", 8),
];
const THREADS: u64 = 256;
const VECTOR_BYTES: u64 = 16;
/// Vectors in a line of 128 bytes.
const LINE: u64 = 8;

/// Rounds that choose the fastest, after one that is not counted.
const ROUNDS: usize = 5;
/// Bytes that a burst of launches moves in a round, of at least one launch and at most [`BURST`].
const BURST_BYTES: u64 = 4 << 30;
const BURST: u64 = 16;
/// Elements at each end of the output that are looked at.
const CHECKED: usize = 1024;

/// Memory on the device, and a way to move as many bytes as a case must.
pub(crate) struct Limit<T> {
    mover: Mover,
    /// Vectors read and written.
    vectors: [u64; 2],
    input: CudaSlice<T>,
    out: CudaSlice<T>,
}

/// A way to move bytes.
#[derive(Clone)]
struct Mover {
    name: String,
    /// A kernel, its plan and its chunks; `None` for the driver's copy, where as much is read as written.
    kernel: Option<(Kernel, Plan, u64)>,
}

impl Mover {
    fn device_copy() -> Self {
        Self { name: "device copy".into(), kernel: None }
    }
}

impl<T: Element> Limit<T> {
    /// The fastest way to move `traffic`, rounded up to whole vectors: the one with the smallest median over
    /// rounds that alternate all kernels.
    pub(crate) fn fastest(device: &Device, traffic: Traffic) -> Result<Self, Failure> {
        let vectors = |bytes: u128| u64::try_from(bytes.div_ceil(VECTOR_BYTES.into()));
        let [read, written] = [vectors(traffic.read)?, vectors(traffic.written)?];
        let elements = |vectors: u64| usize::try_from(vectors * VECTOR_BYTES / T::TYPE.bytes());
        let mut limit = Self {
            mover: Mover::device_copy(),
            vectors: [read, written],
            input: device.filled::<T>(elements(read)?, 1)?,
            out: device.zeros(elements(written)?)?,
        };
        let movers = movers(device, limit.vectors)?;
        let total = (read + written) * VECTOR_BYTES;
        let burst = (BURST_BYTES / total.max(1)).clamp(1, BURST);
        let mut times = vec![Vec::with_capacity(ROUNDS); movers.len()];
        for round in 0..=ROUNDS {
            for (mover, times) in movers.iter().zip(&mut times) {
                limit.mover = mover.clone();
                let time = limit.burst(device, burst)?;
                if round == 0 {
                    limit.check(device)?;
                } else {
                    times.push(time);
                }
            }
        }
        let medians = times.into_iter().map(median);
        let fastest = movers.into_iter().zip(medians).min_by(|(_, a), (_, b)| a.total_cmp(b));
        limit.mover = fastest.ok_or("no way to move bytes")?.0;
        Ok(limit)
    }

    /// What moves the bytes.
    pub(crate) fn name(&self) -> &str {
        &self.mover.name
    }

    pub(crate) fn launch(&mut self, device: &Device) -> Result<(), Failure> {
        let Self { mover, vectors: [read, written], input, out } = self;
        let Some((kernel, plan, chunks)) = &mover.kernel else {
            return Ok(device.stream().memcpy_dtod(input, out)?);
        };
        let mut args = Args::new(device.stream());
        let share = |vectors: u64| vectors.div_ceil(*chunks).next_multiple_of(LINE);
        args.read(input).write(out);
        args.value(*read).value(share(*read)).value(*written).value(share(*written)).value(*chunks);
        device.guard().launch(kernel, plan, args)?;
        Ok(())
    }

    /// Milliseconds of `launches` launches.
    fn burst(&mut self, device: &Device, launches: u64) -> Result<f64, Failure> {
        let start = device.event()?;
        for _ in 0..launches {
            self.launch(device)?;
        }
        Ok(f64::from(start.elapsed_ms(&device.event()?)?))
    }

    /// Whether the output was written at both ends; clears them.
    fn check(&mut self, device: &Device) -> Result<(), Failure> {
        let zero = T::narrow(0.0);
        let len = self.out.len();
        for range in [0..CHECKED.min(len), len.saturating_sub(CHECKED)..len] {
            let written = device.fetch(&self.out, range.clone())?;
            if written.iter().all(|element| element.widen() == 0.0) {
                return Err(format!("{} wrote nothing at {range:?}", self.name()).into());
            }
            let mut part = self.out.try_slice_mut(range).ok_or("beyond the memory")?;
            device.stream().memcpy_htod(&vec![zero; written.len()], &mut part)?;
        }
        Ok(())
    }
}

/// Every kernel, with a block for each chunk and with as many blocks as are resident; and the driver's copy.
fn movers(device: &Device, [read, written]: [u64; 2]) -> Result<Vec<Mover>, Failure> {
    let limits = device.limits();
    let resident = limits.resident_threads() / THREADS;
    let mut movers = Vec::new();
    for (name, count) in KERNELS {
        let kernel = kernel(device, name)?;
        let chunks = read.max(written).div_ceil(THREADS * count).max(1);
        for (grid, blocks) in [("a block a chunk", chunks), ("resident blocks", resident)] {
            let request = LaunchRequest::new(
                Dim3::new(blocks.clamp(1, chunks), 1, 1),
                Dim3::new(THREADS, 1, 1),
            );
            let plan = device.guard().plan(&request, None, kernel.limits(), Choice::AUTOMATIC)?;
            let name = format!("{name}, {grid}");
            movers.push(Mover { name, kernel: Some((kernel.clone(), plan, chunks)) });
        }
    }
    if read == written {
        movers.push(Mover::device_copy());
    }
    Ok(movers)
}

#[allow(unsafe_code, reason = "the kernels above")]
fn kernel(device: &Device, name: &str) -> Result<Kernel, Failure> {
    let memory = Parameter::AlignedMemory { bytes: VECTOR_BYTES };
    let number = Parameter::of::<u64>();
    let parameters = [memory, memory, number, number, number, number, number];
    // SAFETY: the kernels above take these parameters. They read and write the numbers of vectors in the third and
    // fifth. `Limit::fastest` allocates these numbers, and only `Limit::launch` launches the kernels.
    Ok(unsafe { device.limit_module()?.kernel(name, &parameters)? })
}
