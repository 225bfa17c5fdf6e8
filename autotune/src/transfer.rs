//! Measures how many bytes a second a device can move, which no candidate exceeds.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel, Module};
use gridguard::profile::{Attainable, L2, Policy, Summary};
use gridguard::{Choice, Dim3, Guard, LaunchRequest, Parameter, Plan};
use rayon::prelude::*;

use crate::candidate::Candidate;
use crate::clock::{DeviceClock, HostClock};
use crate::error::Error;
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::in_process::InProcess;
use crate::measure::{Measurer, Portion, Sample, Workload};
use crate::stats::{Samples, position, real, whole};

/// The traffic of a problem, and what the device can move at this size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Bytes that any implementation must read and write.
    pub bytes: u64,
    /// What the device can move.
    pub attainable: Attainable,
}

impl Roofline {
    /// The least time for the traffic, in nanoseconds.
    #[must_use]
    pub fn least_ns(&self) -> f64 {
        real(self.bytes) * 1e9 / real(self.attainable.bytes_per_second.max(1))
    }

    /// How much of the attainable bandwidth this median time reaches, in percent.
    #[must_use]
    pub fn percent(&self, times: &Summary) -> u64 {
        if times.median_ns == 0 {
            0
        } else {
            whole(self.least_ns() * 100.0 / real(times.median_ns))
        }
    }
}

/// Moves `bytes` on the device of the guard, or on the host.
///
/// # Errors
///
/// [`MeasureFailure`] if the memory cannot be allocated, or the kernel does not compile.
pub fn transfer(guard: &Arc<Guard>, l2: L2, bytes: u64) -> Measured<Box<dyn Measurer>> {
    let policy = Policy { l2, ..Policy::default() };
    let Some(context) = guard.context() else {
        let workload = HostTransfer::new(bytes / 2)?;
        return Ok(Box::new(InProcess::new(workload, HostClock::new(policy))));
    };
    let stream = context.new_stream()?;
    let workload = DeviceTransfer::new(guard, &stream, bytes)?;
    Ok(Box::new(InProcess::new(workload, DeviceClock::new(guard, stream, policy)?)))
}

/// The bandwidth that `measurer`, from [`transfer`], reaches with `bytes`: that of the best way's fastest sample that no
/// other process disturbed.
///
/// # Errors
///
/// A failure if no way has a time, of kind [`FailureKind::Busy`] if other processes disturbed every sample of a way.
pub fn attainable(measurer: &mut dyn Measurer, l2: L2, bytes: u64) -> Result<Attainable, Error> {
    let busy = || MeasureFailure::new(FailureKind::Busy, "other processes disturbed every sample");
    let (mut best, mut failure) = (0, None);
    for way in WAYS {
        let candidate = candidate(way);
        let mut least = || -> Measured<Option<f64>> {
            measurer.check(&candidate)?;
            let mut sample = || measurer.sample(&candidate, Portion::Sequence);
            sample()?;
            let mut times = Vec::new();
            for _ in 0..MOST_SAMPLES {
                let Sample { time_ns, disturbed, .. } = sample()?;
                times.extend(Some(time_ns).filter(|time| !disturbed && *time > 0.0));
                if times.len() == SAMPLES {
                    break;
                }
            }
            Ok(Samples::new(times).map(|samples| samples.least()))
        };
        match least() {
            Ok(Some(least)) => best = best.max(whole(real(bytes) * 1e9 / least)),
            // A quiet machine would give a time, so this outweighs the other way's failure.
            Ok(None) => failure = Some(busy()),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if best == 0 {
        return Err(failure.unwrap_or_else(busy).into());
    }
    Ok(Attainable { l2, bytes, bytes_per_second: best })
}

/// A way to move bytes: copy a half to the other, or read them all.
fn candidate(way: u64) -> Candidate {
    Candidate::whole(vec![(WAY.to_owned(), way)], 1)
}

/// Zeros in memory of the host. The operating system places a page when a thread first writes to it.
fn zeros(bytes: u64) -> Measured<Vec<u8>> {
    let failed = |error| {
        let message = format!("cannot allocate {bytes} bytes on the host: {error}");
        MeasureFailure::new(FailureKind::Launch, message)
    };
    Vec::<u8>::new().try_reserve_exact(position(bytes)).map_err(failed)?;
    Ok(vec![0; position(bytes)])
}

/// Copies only: the host's cores read as fast as they copy in the limit of its memory.
struct HostTransfer {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl HostTransfer {
    fn new(bytes: u64) -> Measured<Self> {
        let (mut from, to) = (zeros(bytes)?, zeros(bytes)?);
        // Until they are written, all pages are the same one, whose reads do not leave the caches.
        from.par_chunks_mut(PART_BYTES).for_each(|part| part.fill(1));
        Ok(Self { from, to })
    }
}

impl Workload for HostTransfer {
    fn prepare(&mut self, candidate: &Candidate) -> Measured<()> {
        match *candidate == self::candidate(COPY) {
            true => Ok(()),
            false => Err(MeasureFailure::new(FailureKind::Illegal, "the host only copies")),
        }
    }

    fn launch(&mut self, _: &Candidate, _: Portion) -> Measured<()> {
        let pairs = self.to.par_chunks_mut(PART_BYTES).zip(self.from.par_chunks(PART_BYTES));
        pairs.for_each(|(to, from)| to.copy_from_slice(from));
        Ok(())
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        self.launch(candidate, Portion::Sequence)
    }
}

struct DeviceTransfer {
    guard: Arc<Guard>,
    stream: Arc<CudaStream>,
    kernel: Kernel,
    plan: Plan,
    /// All bytes for reads; a half of them is copied to `to`.
    from: CudaSlice<u8>,
    to: CudaSlice<u8>,
    sum: CudaSlice<u64>,
}

impl DeviceTransfer {
    fn new(guard: &Arc<Guard>, stream: &Arc<CudaStream>, bytes: u64) -> Measured<Self> {
        let kernel = kernel(&guard.compile("transfer.cu", SOURCE)?)?;
        let blocks = guard.limits().multiprocessors.saturating_mul(BLOCKS_PER_MULTIPROCESSOR);
        let request = LaunchRequest::new(Dim3::new(blocks, 1, 1), Dim3::new(THREADS, 1, 1));
        let plan = guard.plan(&request, None, kernel.limits(), Choice::AUTOMATIC)?;
        let failed = || MeasureFailure::in_call("cuMemAllocAsync");
        Ok(Self {
            from: stream.alloc_zeros(position(bytes)).map_err(failed())?,
            to: stream.alloc_zeros(position(bytes / 2)).map_err(failed())?,
            sum: stream.alloc_zeros(1).map_err(failed())?,
            guard: Arc::clone(guard),
            stream: Arc::clone(stream),
            kernel,
            plan,
        })
    }
}

impl Workload for DeviceTransfer {
    fn prepare(&mut self, _: &Candidate) -> Measured<()> {
        Ok(())
    }

    fn launch(&mut self, candidate: &Candidate, _: Portion) -> Measured<()> {
        let Self { guard, stream, kernel, plan, from, to, sum } = self;
        if *candidate == self::candidate(COPY) {
            let half = from.slice(..to.len());
            return stream
                .memcpy_dtod(&half, to)
                .map_err(MeasureFailure::in_call("cuMemcpyDtoDAsync"));
        }
        let vectors = u64::try_from(from.len() / VECTOR_BYTES).unwrap_or(0);
        let mut args = Args::new(stream);
        args.read(&*from).write(sum).value(vectors);
        guard.launch(kernel, &*plan, args)?;
        Ok(())
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        self.launch(candidate, Portion::Sequence)
    }
}

#[allow(unsafe_code, reason = "the contract of the kernel that reads")]
fn kernel(module: &Module) -> Measured<Kernel> {
    let parameters = [Parameter::Memory, Parameter::Memory, Parameter::of::<u64>()];
    // SAFETY: `transfer` reads `count` vectors of 16 bytes of its first memory, which has as many, and writes at most the
    // first word of its second memory, which has one.
    Ok(unsafe { module.kernel("transfer", &parameters)? })
}

const SOURCE: &str = include_str!("transfer.cu");
const WAY: &str = "way";
const COPY: u64 = 0;
/// A copy, and reads.
const WAYS: [u64; 2] = [COPY, 1];
/// Enough for the fastest one to be within 1 % of the least time.
const SAMPLES: usize = 9;
/// A machine whose other processes disturb more is too busy to say what it moves.
const MOST_SAMPLES: usize = 4 * SAMPLES;
/// What a thread of the host copies at a time.
const PART_BYTES: usize = 1 << 20;
/// The threads of a block that reads, and how many of them fill a multiprocessor.
const THREADS: u64 = 512;
const BLOCKS_PER_MULTIPROCESSOR: u64 = 4;
const VECTOR_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use gridguard::DeviceLimits;

    use super::*;

    #[test]
    fn the_host_moves_bytes_and_a_time_is_judged_by_that() {
        let guard = Arc::new(Guard::host(DeviceLimits::any_device()));
        let mut measurer = transfer(&guard, L2::Hot, 1 << 20).expect("memory");
        let measured = attainable(measurer.as_mut(), L2::Hot, 1 << 20).expect("measured");
        assert!(measured.bytes_per_second > 1 << 20, "{measured:?}");
        let attainable = Attainable { bytes_per_second: 2_000_000_000, ..measured };
        let roofline = Roofline { bytes: 1_000_000, attainable };
        assert_eq!(roofline.least_ns(), 500_000.0);
        let times = Summary { median_ns: 531_915, ..Summary::default() };
        assert_eq!((roofline.percent(&times), roofline.percent(&Summary::default())), (94, 0));
    }

    /// Copies 1,000 bytes a microsecond, or half as many while others disturb it: all but every `quiet`th sample. Like the
    /// host, it refuses the reads.
    struct Disturbed(u32, u32);

    impl Measurer for Disturbed {
        fn check(&mut self, candidate: &Candidate) -> Measured<()> {
            HostTransfer::new(0)?.prepare(candidate)
        }

        fn sample(&mut self, _: &Candidate, _: Portion) -> Measured<Sample> {
            self.0 += 1;
            let disturbed = self.1 == 0 || !self.0.is_multiple_of(self.1);
            let time_ns = if disturbed { 2000.0 } else { 1000.0 };
            Ok(Sample { time_ns, clock_mhz: None, disturbed })
        }
    }

    #[test]
    fn disturbed_samples_state_no_limit_and_absurd_sizes_are_errors() {
        let measured = attainable(&mut Disturbed(0, 5), L2::Hot, 1000).expect("some are quiet");
        assert_eq!(measured.bytes_per_second, 1_000_000_000);
        let error = attainable(&mut Disturbed(0, 0), L2::Hot, 1000).expect_err("none is quiet");
        assert_eq!(error.to_string(), "other processes disturbed every sample");
        let guard = Arc::new(Guard::host(DeviceLimits::any_device()));
        let error = transfer(&guard, L2::Hot, u64::MAX).err().expect("no such memory");
        assert!(error.message.starts_with("cannot allocate 9223372036854775807 bytes"), "{error}");
    }
}
