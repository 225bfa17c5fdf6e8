//! Tests each device: its properties, and a copy to it, a kernel, and a copy back.

use std::collections::HashMap;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use cudarc::driver::CudaStream;
use gridguard::cuda::{
    self, Args, CompileOptions, Compiler, ComputeMode, CudaError, DriverError, Image, Kernel,
    LaunchError, LoadError, Module,
};
use gridguard::diagnose::{Evidence, FailureId};
use gridguard::{ComputeCapability, Dim3, Guard, LaunchRequest, Parameter};

use super::result::{CheckResult, Level, remedy, remedy_of_message, shorten};

/// 64 MiB of words.
const ITEMS: u64 = 8 << 20;
const BYTES: u64 = 8 * ITEMS;
/// Threads in a block; the kernel relies on it.
const THREADS: u64 = 256;
const SOURCE: &str = include_str!("smoke_test.cu");

/// The oldest compute capability that gridguard's own kernels are compiled for.
const OLDEST: ComputeCapability = ComputeCapability::new(7, 5);
/// The oldest compute capability whose tensor cores multiply bf16.
const BF16: ComputeCapability = ComputeCapability::new(8, 0);
/// A warning appears if less than the total memory divided by this is free.
const LOW_MEMORY: u64 = 10;

/// The properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    ordinal: usize,
    name: String,
    capability: ComputeCapability,
    mode: Option<ComputeMode>,
    /// Free and total bytes; `None` without a context.
    memory: Option<(u64, u64)>,
}

/// The outcome of a smoke test.
#[derive(Clone, Debug, PartialEq)]
enum SmokeTest {
    Passed {
        in_bytes_per_s: f64,
        out_bytes_per_s: f64,
        ran_kernel: bool,
    },
    /// The first word that was copied back wrong.
    WrongData {
        item: usize,
    },
    Failed(SmokeTestError),
}

#[derive(Clone, Debug, PartialEq)]
struct SmokeTestError {
    why: String,
    remedy: String,
}

/// The kernel for each compute capability, compiled once while contexts are created.
type Images = HashMap<ComputeCapability, OnceLock<Result<Option<Image>, SmokeTestError>>>;

pub(super) fn subject(ordinal: usize) -> String {
    format!("device {ordinal}")
}

/// Tests all devices concurrently; each is returned as soon as it is done.
pub(super) fn test_devices(count: usize) -> impl Iterator<Item = (usize, Vec<CheckResult>)> {
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
            let results = match test_device(ordinal, &values, &images) {
                Ok((device, test)) => check(&device, &test),
                Err(error) => {
                    let remedy = remedy(error.diagnosis());
                    vec![CheckResult::unknown(subject(ordinal), error.to_string(), remedy)]
                }
            };
            // The receiver may be gone.
            let _ = sender.send((ordinal, results));
        });
    }
    receiver.into_iter()
}

/// The kernel for devices of `capability`; `None` without a compiler.
fn image(images: &Images, capability: ComputeCapability) -> Result<Option<Image>, SmokeTestError> {
    let Some(image) = images.get(&capability) else { return Ok(None) };
    image
        .get_or_init(|| {
            let Ok(compiler) = Compiler::find() else { return Ok(None) };
            let options = CompileOptions::new("smoke_test.cu", capability);
            let compiled = compiler.compile(SOURCE, &options).map_err(CudaError::from)?;
            Ok(Some(compiled.image))
        })
        .clone()
}

fn test_device(
    ordinal: usize,
    values: &OnceLock<Vec<u64>>,
    images: &Images,
) -> Result<(Device, SmokeTest), CudaError> {
    let limits = cuda::device_limits(ordinal)?;
    let (name, capability) = (limits.name.clone(), limits.compute_capability);
    let mode = cuda::compute_mode(ordinal).ok();
    let mut device = Device { ordinal, name, capability, mode, memory: None };
    let test = Guard::cuda(ordinal).map_err(SmokeTestError::from).and_then(|guard| {
        device.memory = guard.free_memory().ok();
        let values =
            values.get_or_init(|| (0..ITEMS).map(|item| item.wrapping_mul(MIXER)).collect());
        run(&guard, values, image(images, capability)?)
    });
    Ok((device, test.unwrap_or_else(SmokeTest::Failed)))
}

/// Copies `values` to the device, inverts them there if there is a kernel, and copies them back.
fn run(guard: &Guard, values: &[u64], image: Option<Image>) -> Result<SmokeTest, SmokeTestError> {
    let no_context = || SmokeTestError::from_message("the guard has no context");
    let stream = guard.context().ok_or_else(no_context)?.default_stream();
    let mut memory = stream.alloc_zeros::<u64>(values.len())?;
    let in_bytes_per_s = fastest(&stream, || stream.memcpy_htod(values, &mut memory))?;
    let ran_kernel = image.is_some();
    if let Some(image) = image {
        let kernel = kernel(&guard.load(&image)?)?;
        let (grid, block) = (Dim3::new(ITEMS.div_ceil(THREADS), 1, 1), Dim3::new(THREADS, 1, 1));
        let mut args = Args::new(&stream);
        args.write(&mut memory).value(ITEMS);
        guard.plan_and_launch(&kernel, &LaunchRequest::new(grid, block), None, args)?;
        guard.synchronize(&stream)?;
    }
    let mut copied = vec![0; values.len()];
    let out_bytes_per_s = fastest(&stream, || stream.memcpy_dtoh(&memory, &mut copied))?;
    let expected = |value: u64| if ran_kernel { !value } else { value };
    let wrong = copied.iter().zip(values).position(|(word, value)| *word != expected(*value));
    Ok(match wrong {
        Some(item) => SmokeTest::WrongData { item },
        None => SmokeTest::Passed { in_bytes_per_s, out_bytes_per_s, ran_kernel },
    })
}

/// Copies twice, because the first copy also maps pages, and returns the higher rate.
fn fastest(
    stream: &CudaStream,
    mut copy: impl FnMut() -> Result<(), cudarc::driver::DriverError>,
) -> Result<f64, SmokeTestError> {
    let mut best = 0.0_f64;
    for _ in 0..2 {
        let start = Instant::now();
        copy()?;
        stream.synchronize()?;
        let bytes = f64::from(u32::try_from(BYTES).unwrap_or(u32::MAX));
        best = best.max(bytes / start.elapsed().as_secs_f64());
    }
    Ok(best)
}

#[allow(unsafe_code, reason = "declares the signature of the kernel above")]
fn kernel(module: &Module) -> Result<Kernel, LoadError> {
    let parameters = [Parameter::Memory, Parameter::of::<u64>()];
    // SAFETY: `gridguard_invert` takes memory and a number of words, and accesses that many words of
    // the memory; `run` passes the memory's own length.
    unsafe { module.kernel("gridguard_invert", &parameters) }
}

impl SmokeTestError {
    fn from_message(error: &(impl ToString + ?Sized)) -> Self {
        let why = error.to_string();
        let remedy = remedy_of_message(&why).unwrap_or_else(|| remedy(None));
        Self { why, remedy }
    }
}

impl From<CudaError> for SmokeTestError {
    fn from(error: CudaError) -> Self {
        if let CudaError::Driver(error) = &error
            && error.suspects().is_some()
        {
            // The kernel above accesses only its own memory, so the device is at fault.
            let DriverError { call, code, name, .. } = error;
            let remedy = match FailureId::from_code(*code).entry().name {
                ECC => remedy(Some(error.diagnosis(&Evidence::default()))),
                _ => CHECK_MEMORY.to_owned(),
            };
            return Self { why: format!("{call} returned {name} ({code}) after a kernel"), remedy };
        }
        Self { why: error.to_string(), remedy: remedy(error.diagnosis()) }
    }
}

impl From<LoadError> for SmokeTestError {
    fn from(error: LoadError) -> Self {
        CudaError::from(error).into()
    }
}

impl From<LaunchError> for SmokeTestError {
    fn from(error: LaunchError) -> Self {
        Self { why: error.to_string(), remedy: remedy(error.diagnosis()) }
    }
}

impl From<cudarc::driver::DriverError> for SmokeTestError {
    fn from(error: cudarc::driver::DriverError) -> Self {
        Self::from_message(&error)
    }
}

fn check(device: &Device, test: &SmokeTest) -> Vec<CheckResult> {
    let mut results = check_properties(device);
    // A device that is known not to be usable fails the smoke test too.
    if !results.iter().any(|result| result.level == Level::Bad) {
        results.push(check_smoke_test(device, test));
    }
    results
}

fn check_properties(device: &Device) -> Vec<CheckResult> {
    let Device { ordinal, name, capability, mode, memory } = device;
    let subject = subject(*ordinal);
    let mut what = format!("{name}, compute capability {capability}");
    if let Some((free, total)) = memory {
        what += &format!(", {} GiB free of {} GiB", gib(*free), gib(*total));
    }
    let mut results = vec![CheckResult::good(&subject, what)];
    let reset_mode =
        format!("nvidia-smi -i {ordinal} --compute-mode=DEFAULT (nvidia-smi's index), as root");
    match mode {
        Some(ComputeMode::Exclusive) => {
            let what = "compute mode exclusive: one process at a time";
            results.push(CheckResult::warning(&subject, what, reset_mode));
        }
        Some(ComputeMode::Prohibited) => {
            let what = "compute mode prohibited: no process may use it";
            results.push(CheckResult::bad(&subject, what, reset_mode));
        }
        _ => {}
    }
    if let Some((free, total)) = memory
        && *free < total / LOW_MEMORY
    {
        let what = format!("only {} GiB of {} GiB are free", gib(*free), gib(*total));
        let remedy = "nvidia-smi lists the processes that use the rest";
        results.push(CheckResult::warning(&subject, what, remedy));
    }
    if *capability < OLDEST {
        let what = format!("gridguard's own kernels need compute capability {OLDEST} or later");
        let remedy = "guard your own kernels, which works on this device";
        results.push(CheckResult::warning(&subject, what, remedy));
    } else if *capability < BF16 {
        let what = format!("no bf16 in tensor cores before compute capability {BF16}");
        let remedy = "use f16 or f32 for fast attention";
        results.push(CheckResult::warning(&subject, what, remedy));
    }
    results
}

fn check_smoke_test(device: &Device, test: &SmokeTest) -> CheckResult {
    let subject = subject(device.ordinal);
    match (test, device.memory) {
        (SmokeTest::Passed { in_bytes_per_s, out_bytes_per_s, ran_kernel }, _) => {
            let kernel = if *ran_kernel { "kernel run" } else { "no kernel without NVRTC" };
            let [input, output] = [in_bytes_per_s, out_bytes_per_s].map(|rate| rate / 1e9);
            let what = format!(
                "smoke test passed: 64 MiB in at {input:.1} GB/s, {kernel}, out at {output:.1} GB/s"
            );
            CheckResult::good(subject, what)
        }
        (SmokeTest::WrongData { item }, _) => {
            let what = format!("smoke test failed: wrong data from word {item} of 64 MiB on");
            CheckResult::bad(subject, what, CHECK_MEMORY)
        }
        (SmokeTest::Failed(_), Some((free, _))) if free < BYTES => CheckResult::bad(
            subject,
            format!("smoke test failed: {} MiB free, {} MiB needed", free >> 20, BYTES >> 20),
            "nvidia-smi lists the processes that use the memory: end them, or use another device",
        ),
        (SmokeTest::Failed(SmokeTestError { why, remedy }), _) => {
            CheckResult::bad(subject, format!("smoke test failed: {}", shorten(why)), remedy)
        }
    }
}

/// GiB with one decimal.
fn gib(bytes: u64) -> String {
    let tenths = bytes / ((1 << 30) / 10);
    format!("{}.{}", tenths / 10, tenths % 10)
}

const CHECK_MEMORY: &str =
    "look for memory errors (nvidia-smi -q -d ECC, dmesg for Xid), and use another device";
const ECC: &str = "CUDA_ERROR_ECC_UNCORRECTABLE";
/// Spreads consecutive numbers over all bits: 2^64 divided by the golden ratio.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    fn device(capability: (u32, u32), mode: ComputeMode, free_gib: u64) -> Device {
        Device {
            ordinal: 0,
            name: "NVIDIA L4".into(),
            capability: ComputeCapability::new(capability.0, capability.1),
            mode: Some(mode),
            memory: Some((free_gib << 30, 24 << 30)),
        }
    }

    #[test]
    fn a_healthy_device_is_one_line() {
        let what = "NVIDIA L4, compute capability 8.9, 23.0 GiB free of 24.0 GiB";
        let healthy = check_properties(&device((8, 9), ComputeMode::Default, 23));
        assert_eq!(healthy, [CheckResult::good("device 0", what)]);
    }

    #[test]
    fn compute_mode_memory_and_capability_are_checked() {
        let second =
            |capability, mode, free| check_properties(&device(capability, mode, free)).remove(1);
        assert_eq!(second((8, 9), ComputeMode::Exclusive, 23).level, Level::Warning);
        assert_eq!(second((8, 9), ComputeMode::Prohibited, 23).level, Level::Bad);
        let low = second((8, 9), ComputeMode::Default, 2);
        assert_eq!(low.what, "only 2.0 GiB of 24.0 GiB are free");
        let turing = second((7, 5), ComputeMode::Default, 23);
        assert_eq!(turing.what, "no bf16 in tensor cores before compute capability 8.0");
        let volta = second((7, 0), ComputeMode::Default, 23);
        assert_eq!(volta.what, "gridguard's own kernels need compute capability 7.5 or later");
    }

    #[test]
    fn a_smoke_test_reports_its_rates_and_wrong_data_is_bad() {
        let passed = |ran_kernel| SmokeTest::Passed {
            in_bytes_per_s: 6.04e9,
            out_bytes_per_s: 12e9,
            ran_kernel,
        };
        let what = "smoke test passed: 64 MiB in at 6.0 GB/s, kernel run, out at 12.0 GB/s";
        let mut device = device((8, 9), ComputeMode::Default, 23);
        let check = check_smoke_test;
        assert_eq!(check(&device, &passed(true)), CheckResult::good("device 0", what));
        assert!(check(&device, &passed(false)).what.contains("no kernel without NVRTC"));
        assert_eq!(check(&device, &SmokeTest::WrongData { item: 7 }).level, Level::Bad);
        let failed =
            SmokeTest::Failed(SmokeTestError { why: "refused".into(), remedy: "ask".into() });
        let refused = CheckResult::bad("device 0", "smoke test failed: refused", "ask");
        assert_eq!(check(&device, &failed), refused);
        device.memory = Some((1 << 20, 1 << 34));
        let full = "smoke test failed: 1 MiB free, 64 MiB needed";
        assert_eq!(check(&device, &failed).what, full);
    }

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_kernel_compiles_for_every_architecture() {
        for (major, minor) in [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0)] {
            let capability = ComputeCapability::new(major, minor);
            let options = CompileOptions::new("smoke_test.cu", capability);
            Compiler::find().expect("NVRTC").compile(SOURCE, &options).expect("compiles");
        }
    }
}
