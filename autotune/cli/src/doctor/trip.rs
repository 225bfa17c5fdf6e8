//! A round trip: memory to a device, a kernel there, and back.

use std::collections::HashMap;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{
    self, Args, CompileOptions, Compiler, CudaError, DriverError, Image, Kernel, LaunchError,
    LoadError, Module,
};
use gridguard::diagnose::{Evidence, FailureId};
use gridguard::{ComputeCapability, Dim3, Guard, LaunchRequest, Parameter};

use super::device::{Device, subject};
use super::finding::Finding;
use super::python::short;
use super::version;

/// 64 MiB of words.
const ITEMS: u64 = 8 << 20;
const BYTES: u64 = 8 * ITEMS;
/// Threads of a block, as the kernel has them.
const THREADS: u64 = 256;
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
}

/// What a device told, and how the trip there went.
pub(super) type Examined = Result<(Device, Trip), CudaError>;

/// The kernel for each capability, compiled once while contexts are made.
type Images = HashMap<ComputeCapability, OnceLock<Result<Option<Image>, Stumble>>>;

/// Travels to all devices at the same time; each comes when it is back.
pub(super) fn examine(count: usize) -> impl Iterator<Item = (usize, Examined)> {
    let (sender, receiver) = mpsc::channel();
    let capability = |ordinal| Some(cuda::device_limits(ordinal).ok()?.compute_capability);
    let capabilities = (0..count).filter_map(capability);
    let images: Arc<Images> = Arc::new(capabilities.map(|it| (it, OnceLock::new())).collect());
    for capability in images.keys().copied() {
        let images = Arc::clone(&images);
        thread::spawn(move || drop(image(&images, capability)));
    }
    let values: Arc<OnceLock<Vec<u64>>> = Arc::default();
    for ordinal in 0..count {
        let (sender, images, values) = (sender.clone(), Arc::clone(&images), Arc::clone(&values));
        thread::spawn(move || {
            // Nobody may be waiting any more.
            let _ = sender.send((ordinal, travel(ordinal, &values, &images)));
        });
    }
    receiver.into_iter()
}

/// The kernel for devices of `capability`; none where there is no compiler.
fn image(images: &Images, capability: ComputeCapability) -> Result<Option<Image>, Stumble> {
    let Some(place) = images.get(&capability) else { return Ok(None) };
    place
        .get_or_init(|| {
            let Ok(compiler) = Compiler::find() else { return Ok(None) };
            let options = CompileOptions::new("invert.cu", capability);
            let compiled = compiler.compile(SOURCE, &options).map_err(CudaError::from)?;
            Ok(Some(compiled.image))
        })
        .clone()
}

/// What the driver tells of a device without a context.
fn device(ordinal: usize) -> Result<Device, CudaError> {
    let limits = cuda::device_limits(ordinal)?;
    let (name, capability) = (limits.name.clone(), limits.compute_capability);
    let mode = cuda::compute_mode(ordinal).ok();
    Ok(Device { ordinal, name, capability, mode, memory: None })
}

fn travel(ordinal: usize, values: &OnceLock<Vec<u64>>, images: &Images) -> Examined {
    let mut device = device(ordinal)?;
    let trip = match Guard::cuda(ordinal) {
        Ok(guard) => {
            device.memory = guard.free_memory().ok();
            let values =
                values.get_or_init(|| (0..ITEMS).map(|item| item.wrapping_mul(MIXER)).collect());
            let image = image(images, device.capability);
            image.and_then(|image| round_trip(&guard, values, image)).unwrap_or_else(Trip::from)
        }
        Err(error) => Stumble::from(error).into(),
    };
    Ok((device, trip))
}

fn round_trip(guard: &Guard, values: &[u64], image: Option<Image>) -> Result<Trip, Stumble> {
    let context = guard.context().ok_or_else(|| Stumble::of(&"the guard has no context"))?;
    let stream = context.default_stream();
    let mut memory = stream.alloc_zeros::<u64>(values.len())?;
    let in_bytes_per_s = fastest(&stream, || stream.memcpy_htod(values, &mut memory))?;
    let kernel = image.is_some();
    if let Some(image) = image {
        invert(guard, &stream, &mut memory, &image)?;
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
        let bytes = f64::from(u32::try_from(BYTES).unwrap_or(u32::MAX));
        best = best.max(bytes / begun.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn invert(
    guard: &Guard,
    stream: &CudaStream,
    memory: &mut CudaSlice<u64>,
    image: &Image,
) -> Result<(), Stumble> {
    let kernel = kernel(&guard.load(image)?)?;
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
#[derive(Clone)]
struct Stumble {
    why: String,
    remedy: String,
}

impl Stumble {
    fn of(error: &impl ToString) -> Self {
        let why = error.to_string();
        let remedy = version::meaning(&why).unwrap_or_else(|| version::remedy(None));
        Self { why, remedy }
    }

    /// Of the kernel above, which is not to blame: it touches its own memory alone.
    fn of_kernel(error: &DriverError) -> Self {
        let DriverError { call, code, name, .. } = error;
        let remedy = match FailureId::from_code(*code).entry().name {
            ECC => version::remedy(Some(error.diagnosis(&Evidence::default()))),
            _ => LOOK_AT_MEMORY.to_owned(),
        };
        Self { why: format!("after a kernel {call} answered {name} ({code})"), remedy }
    }
}

impl From<CudaError> for Stumble {
    fn from(error: CudaError) -> Self {
        if let CudaError::Driver(error) = &error
            && error.suspects().is_some()
        {
            return Self::of_kernel(error);
        }
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

pub(super) fn finding(device: &Device, trip: &Trip) -> Finding {
    let subject = subject(device.ordinal);
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
            LOOK_AT_MEMORY,
        ),
        Trip::Failed { why, remedy } => match device.memory {
            Some((free, _)) if free < BYTES => Finding::bad(
                subject,
                format!("no round trip: {} MiB are free, {} are needed", free >> 20, BYTES >> 20),
                "nvidia-smi names the processes that hold the memory: end them, or use another device",
            ),
            _ => Finding::bad(subject, format!("no round trip: {}", short(why)), remedy.as_str()),
        },
    }
}

const LOOK_AT_MEMORY: &str = "look for memory errors (nvidia-smi -q -d ECC, dmesg for Xid), and use \
                              another device";
const ECC: &str = "CUDA_ERROR_ECC_UNCORRECTABLE";
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
        let mut device = Device {
            ordinal: 1,
            name: "NVIDIA L4".into(),
            capability: ComputeCapability::new(8, 9),
            mode: None,
            memory: Some((1 << 30, 1 << 34)),
        };
        assert_eq!(finding(&device, &made(true)), Finding::good("device 1", what));
        assert!(finding(&device, &made(false)).what.contains("no kernel without NVRTC"));
        assert_eq!(finding(&device, &Trip::Wrong { item: 7 }).level, Level::Bad);
        let failed = Trip::Failed { why: "refused".into(), remedy: "ask".into() };
        assert_eq!(
            finding(&device, &failed),
            Finding::bad("device 1", "no round trip: refused", "ask")
        );
        device.memory = Some((1 << 20, 1 << 34));
        let full = "no round trip: 1 MiB are free, 64 are needed";
        assert_eq!(finding(&device, &failed).what, full);
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
