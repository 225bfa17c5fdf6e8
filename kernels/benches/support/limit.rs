//! Kernels that read streams and write one without computing: the limit of memory-bound kernels.

use cudarc::driver::CudaSlice;
use gridguard::cuda::{Args, Kernel, Module};
use gridguard::{Choice, Dim3, Guard, LaunchRequest, Parameter, Plan};
use gridguard_kernels::Element;

use super::{Device, Failure};

pub(super) const SOURCE: &str = r#"
typedef unsigned long long u64;

constexpr int THREADS = 256;

__device__ inline uint4 operator^(const uint4 &a, const uint4 &b) {
    return make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w);
}

template <int INPUTS>
struct Streams {
    const uint4 *in[INPUTS];
};

// out[i] = the xor of all in[i], in vectors of 16 bytes, each touched once and so not kept in caches.
// Grid: blocks of THREADS on x, enough for COUNT vectors a thread.
template <int COUNT, int INPUTS>
__device__ inline void move(const Streams<INPUTS> &streams, uint4 *out, u64 vectors) {
    const u64 block = u64(blockIdx.x) * (THREADS * COUNT);
    if (block + THREADS * COUNT <= vectors) {
        // All loads are under way before the first is waited for.
        uint4 x[COUNT][INPUTS];
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int s = 0; s < INPUTS; ++s)
                x[i][s] = __ldcs(streams.in[s] + block + i * THREADS + threadIdx.x);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
#pragma unroll
            for (int s = 1; s < INPUTS; ++s) x[i][0] = x[i][0] ^ x[i][s];
            __stcs(out + block + i * THREADS + threadIdx.x, x[i][0]);
        }
    } else {
        for (u64 at = block + threadIdx.x; at < vectors; at += THREADS) {
            uint4 x = __ldcs(streams.in[0] + at);
            for (int s = 1; s < INPUTS; ++s) x = x ^ __ldcs(streams.in[s] + at);
            __stcs(out + at, x);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) three_reads_one_write(
    const uint4 *__restrict__ a, const uint4 *__restrict__ b, const uint4 *__restrict__ c,
    uint4 *__restrict__ out, u64 vectors) {
    move<2>(Streams<3>{{a, b, c}}, out, vectors);
}

extern "C" __global__ void __launch_bounds__(256) one_read_one_write(
    const uint4 *__restrict__ a, uint4 *__restrict__ out, u64 vectors) {
    move<4>(Streams<1>{{a}}, out, vectors);
}
"#;

const THREADS: u64 = 256;
const VECTOR_BYTES: u64 = 16;

/// How many streams are read for each one written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    One,
    Three,
}

impl Reads {
    pub(crate) const fn count(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Three => 3,
        }
    }

    const fn kernel(self) -> &'static str {
        match self {
            Self::One => "one_read_one_write",
            Self::Three => "three_reads_one_write",
        }
    }

    /// Vectors of a thread, as in the kernels.
    const fn vectors(self) -> u64 {
        match self {
            Self::One => 4,
            Self::Three => 2,
        }
    }
}

/// Streams on the device and the kernel that moves them.
pub(crate) struct Limit<T> {
    kernel: Kernel,
    plan: Plan,
    vectors: u64,
    inputs: Vec<CudaSlice<T>>,
    out: CudaSlice<T>,
}

impl<T: Element> Limit<T> {
    /// Streams of `bytes` each, rounded up to whole vectors.
    pub(crate) fn new(device: &Device, reads: Reads, bytes: u64) -> Result<Self, Failure> {
        let vectors = bytes.div_ceil(VECTOR_BYTES);
        let elements = usize::try_from(vectors * VECTOR_BYTES / T::TYPE.bytes())?;
        let kernel = kernel(device.limit_module()?, reads)?;
        let blocks = vectors.div_ceil(THREADS * reads.vectors());
        let request = LaunchRequest::new(Dim3::new(blocks, 1, 1), Dim3::new(THREADS, 1, 1));
        let plan = device.guard().plan(&request, None, kernel.limits(), Choice::AUTOMATIC)?;
        let inputs = (0..reads.count()).map(|seed| device.filled::<T>(elements, seed.into()));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { kernel, plan, vectors, inputs, out: device.zeros(elements)? })
    }

    pub(crate) fn launch(&mut self, device: &Device) -> Result<(), Failure> {
        let guard: &Guard = device.guard();
        let mut args = Args::new(device.stream());
        for input in &self.inputs {
            args.read(input);
        }
        args.write(&mut self.out).value(self.vectors);
        guard.launch(&self.kernel, &self.plan, args)?;
        Ok(())
    }
}

#[allow(unsafe_code, reason = "vouches for the kernels above")]
fn kernel(module: &Module, reads: Reads) -> Result<Kernel, Failure> {
    let streams = usize::from(reads.count()) + 1;
    let mut parameters = vec![Parameter::AlignedMemory { bytes: VECTOR_BYTES }; streams];
    parameters.push(Parameter::of::<u64>());
    // SAFETY: the kernels above take these parameters and touch `vectors` vectors of each memory
    // argument; `Limit::new` allocates as many, and only `Limit::launch` launches them.
    Ok(unsafe { module.kernel(reads.kernel(), &parameters)? })
}
