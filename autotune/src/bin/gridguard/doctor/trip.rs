//! A round trip: memory to a device, a kernel there, and back.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{self, Args, Compiler, CudaError, Kernel, LaunchError, LoadError, Module};
use gridguard::{Dim3, Guard, LaunchRequest, Parameter};

use super::device::{Device, subject};
use super::finding::Finding;
use super::version;

/// 64 MiB of words.
const ITEMS: u64 = 8 << 20;
const BYTES: f64 = 67_108_864.0;
/// Threads of a block, as the kernel has them.
const THREADS: u64 = 256;
/// A context and the trip take less than a second on a device that is well.
const PATIENCE: Duration = Duration::from_secs(20);
const SOURCE: &str = include_str!("invert.cu");

/// How it went.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Trip {
    Made {
        in_bytes_per_s: f64,
        out_bytes_per_s: f64,
        kernel: bool,
    },
    /// This word came back wrong.
    Wrong {
        item: usize,
    },
    Failed {
        why: String,
        remedy: String,
    },
    Late,
}

/// What a device told, and how the trip there went.
pub(super) type Examined = Result<(Device, Trip), CudaError>;

/// Travels to all devices at the same time.
pub(super) fn examine(count: usize) -> Vec<Examined> {
    if count == 0 {
        return Vec::new();
    }
    let values: Arc<Vec<u64>> = Arc::new((0..ITEMS).map(|item| item.wrapping_mul(MIXER)).collect());
    let begin = |ordinal| {
        let (sender, receiver) = mpsc::channel();
        let values = Arc::clone(&values);
        thread::spawn(move || {
            // Nobody may be waiting any more.
            let _ = sender.send(travel(ordinal, &values));
        });
        receiver
    };
    let begun = Instant::now();
    let trips: Vec<_> = (0..count).map(begin).collect();
    let end = |(ordinal, trip): (usize, mpsc::Receiver<Examined>)| {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        trip.recv_timeout(left).unwrap_or_else(|_| Ok((device(ordinal)?, Trip::Late)))
    };
    trips.into_iter().enumerate().map(end).collect()
}

/// What the driver tells of a device without a context.
fn device(ordinal: usize) -> Result<Device, CudaError> {
    let limits = cuda::device_limits(ordinal)?;
    let (name, capability) = (limits.name.clone(), limits.compute_capability);
    let mode = cuda::compute_mode(ordinal).ok();
    Ok(Device { ordinal, name, capability, mode, memory: None })
}

fn travel(ordinal: usize, values: &[u64]) -> Examined {
    let mut device = device(ordinal)?;
    let trip = match Guard::cuda(ordinal) {
        Ok(guard) => {
            device.memory = cuda::free_memory(ordinal).ok();
            round_trip(&guard, values).unwrap_or_else(Trip::from)
        }
        Err(error) => Stumble::from(error).into(),
    };
    Ok((device, trip))
}

fn round_trip(guard: &Guard, values: &[u64]) -> Result<Trip, Stumble> {
    let context = guard.context().ok_or(Stumble::of(&"the guard has no context"))?;
    let stream = context.default_stream();
    let mut memory = stream.alloc_zeros::<u64>(values.len())?;
    let in_bytes_per_s = fastest(&stream, || stream.memcpy_htod(values, &mut memory))?;
    let kernel = Compiler::find().is_ok();
    if kernel {
        invert(guard, &stream, &mut memory)?;
    }
    let mut back = vec![0; values.len()];
    let out_bytes_per_s = fastest(&stream, || stream.memcpy_dtoh(&memory, &mut back))?;
    let sent = |value: u64| if kernel { !value } else { value };
    let wrong = back.iter().zip(values).position(|(came, went)| *came != sent(*went));
    Ok(match wrong {
        Some(item) => Trip::Wrong { item },
        None => Trip::Made { in_bytes_per_s, out_bytes_per_s, kernel },
    })
}

/// Copies twice, since the first time pays for pages, and gives the better rate.
fn fastest(
    stream: &CudaStream,
    mut copy: impl FnMut() -> Result<(), cudarc::driver::DriverError>,
) -> Result<f64, Stumble> {
    let mut best = 0.0_f64;
    for _ in 0..2 {
        let begun = Instant::now();
        copy()?;
        stream.synchronize()?;
        best = best.max(BYTES / begun.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn invert(guard: &Guard, stream: &CudaStream, memory: &mut CudaSlice<u64>) -> Result<(), Stumble> {
    let kernel = kernel(&guard.compile("invert.cu", SOURCE)?)?;
    let request =
        LaunchRequest::new(Dim3::new(ITEMS.div_ceil(THREADS), 1, 1), Dim3::new(THREADS, 1, 1));
    let mut args = Args::new(stream);
    args.write(memory).value(ITEMS);
    guard.plan_and_launch(&kernel, &request, None, args)?;
    guard.synchronize(stream)?;
    Ok(())
}

#[allow(unsafe_code, reason = "the promise for the kernel above")]
fn kernel(module: &Module) -> Result<Kernel, LoadError> {
    let parameters = [Parameter::Memory, Parameter::of::<u64>()];
    // SAFETY: `gridguard_invert` takes memory and a word, and touches as many words of the memory as
    // that says; it is launched with the memory's own length.
    unsafe { module.kernel("gridguard_invert", &parameters) }
}

/// Why a trip ended early.
struct Stumble {
    why: String,
    remedy: String,
}

impl Stumble {
    fn of(error: &impl ToString) -> Self {
        Self { why: error.to_string(), remedy: version::remedy(None) }
    }
}

impl From<CudaError> for Stumble {
    fn from(error: CudaError) -> Self {
        Self { why: error.to_string(), remedy: version::remedy(error.diagnosis()) }
    }
}

impl From<LoadError> for Stumble {
    fn from(error: LoadError) -> Self {
        CudaError::from(error).into()
    }
}

impl From<LaunchError> for Stumble {
    fn from(error: LaunchError) -> Self {
        Self { why: error.to_string(), remedy: version::remedy(error.diagnosis()) }
    }
}

impl From<cudarc::driver::DriverError> for Stumble {
    fn from(error: cudarc::driver::DriverError) -> Self {
        Self::of(&error)
    }
}

impl From<Stumble> for Trip {
    fn from(Stumble { why, remedy }: Stumble) -> Self {
        Self::Failed { why, remedy }
    }
}

pub(super) fn finding(ordinal: usize, trip: &Trip) -> Finding {
    let subject = subject(ordinal);
    match trip {
        Trip::Made { in_bytes_per_s, out_bytes_per_s, kernel } => {
            let kernel = if *kernel { "a kernel there, " } else { "no kernel without NVRTC, " };
            let [there, back] = [in_bytes_per_s, out_bytes_per_s].map(|rate| rate / 1e9);
            let what =
                format!("64 MiB in at {there:.1} GB/s, {kernel}out at {back:.1} GB/s, equal");
            Finding::good(subject, what)
        }
        Trip::Wrong { item } => Finding::bad(
            subject,
            format!("64 MiB came back wrong from word {item} on"),
            "look for memory errors (nvidia-smi -q -d ECC, dmesg for Xid), and use another device",
        ),
        Trip::Failed { why, remedy } => {
            Finding::bad(subject, format!("no round trip: {why}"), remedy.as_str())
        }
        Trip::Late => Finding::bad(
            subject,
            format!("no round trip within {} s", PATIENCE.as_secs()),
            "look for what hangs (nvidia-smi, dmesg for Xid), and reset or reboot",
        ),
    }
}

/// Spreads the bits of a number: the fraction of the golden ratio.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    #[test]
    fn a_trip_says_what_was_measured_and_a_wrong_word_is_bad() {
        let made = |kernel| Trip::Made { in_bytes_per_s: 6.04e9, out_bytes_per_s: 12e9, kernel };
        let what = "64 MiB in at 6.0 GB/s, a kernel there, out at 12.0 GB/s, equal";
        assert_eq!(finding(1, &made(true)), Finding::good("device 1", what));
        assert!(finding(1, &made(false)).what.contains("no kernel without NVRTC"));
        assert_eq!(finding(0, &Trip::Wrong { item: 7 }).level, Level::Bad);
        assert_eq!(finding(0, &Trip::Late).what, "no round trip within 20 s");
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_kernel_compiles_for_every_architecture() {
        use gridguard::ComputeCapability;
        use gridguard::cuda::CompileOptions;
        for (major, minor) in [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)] {
            let options = CompileOptions::new("invert.cu", ComputeCapability::new(major, minor));
            Compiler::find().expect("NVRTC").compile(SOURCE, &options).expect("compiles");
        }
    }
}
