//! Tests each device: its properties, copies in both directions, and a kernel.

use std::sync::LazyLock;

use gridguard::cuda::{
    self, Args, CompileOptions, Compiler, ComputeMode, CudaError, CudaErrorKind, DriverError,
    Kernel, Module,
};
use gridguard::{ComputeCapability, Dim3, Guard, LaunchRequest, Parameter};
use gridguard_report::Diagnose;

use super::finding::{Finding, Level, Subject, remedy, remedy_of_message, shorten};

const ITEMS: u64 = 8 << 20;
const BYTES: u64 = 8 * ITEMS;
/// Threads in a block; the kernel relies on it.
const THREADS: u64 = 256;
const SOURCE: &str = include_str!("smoke_test.cu");

/// Warns if less than this part of the memory is free.
const LOW_MEMORY: u64 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Properties {
    ordinal: usize,
    name: String,
    capability: ComputeCapability,
    mode: Option<ComputeMode>,
    /// Free and total bytes; `None` without a context.
    memory: Option<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq)]
struct SmokeTestError {
    why: String,
    remedy: String,
}

/// Checks the properties of a device, then runs the smoke test unless they are bad.
pub(super) fn check(ordinal: usize) -> Vec<Finding> {
    let limits = match cuda::device_limits(ordinal) {
        Ok(limits) => limits,
        Err(error) => {
            let remedy = remedy(error.diagnosis());
            return vec![Subject::numbered("device", ordinal).unknown(error.to_string(), remedy)];
        }
    };
    let guard = Guard::cuda(ordinal);
    let properties = Properties {
        ordinal,
        name: limits.name.clone(),
        capability: limits.compute_capability,
        mode: cuda::compute_mode(ordinal).ok(),
        memory: guard.as_ref().ok().and_then(|guard| guard.free_memory().ok()),
    };
    let mut findings = check_properties(&properties);
    if !findings.iter().any(|finding| finding.level == Level::Bad) {
        let test = guard.map_err(SmokeTestError::from).and_then(|guard| run(&guard));
        findings.push(check_smoke_test(&properties, &test));
    }
    findings
}

/// Copies words to the device, inverts them if there is a compiler, and copies them back. Returns whether a kernel ran.
fn run(guard: &Guard) -> Result<bool, SmokeTestError> {
    static WORDS: LazyLock<Vec<u64>> =
        LazyLock::new(|| (0..ITEMS).map(|item| item.wrapping_mul(MIXER)).collect());
    let no_context = || SmokeTestError::from_message("the guard has no context");
    let stream = guard.context().ok_or_else(no_context)?.default_stream();
    let memory = stream.alloc_zeros::<u64>(WORDS.len());
    let mut memory = memory.map_err(SmokeTestError::from_message)?;
    let copied = stream.memcpy_htod(&*WORDS, &mut memory);
    copied.map_err(SmokeTestError::from_message)?;
    let compiler = Compiler::find().ok();
    if let Some(compiler) = &compiler {
        let options = CompileOptions::new("smoke_test.cu", guard.limits().compute_capability);
        let image = compiler.compile(SOURCE, &options)?.image;
        let kernel = kernel(&guard.load(&image)?)?;
        let (grid, block) = (Dim3::new(ITEMS.div_ceil(THREADS), 1, 1), Dim3::new(THREADS, 1, 1));
        let mut args = Args::new(&stream);
        args.write(&mut memory).value(ITEMS);
        guard.launch(&kernel, &LaunchRequest::new(grid, block), args)?;
        guard.synchronize(&stream)?;
    }
    let ran_kernel = compiler.is_some();
    let mut copied = vec![0; WORDS.len()];
    let read = stream.memcpy_dtoh(&memory, &mut copied).and_then(|()| stream.synchronize());
    read.map_err(SmokeTestError::from_message)?;
    let expected = |word: u64| if ran_kernel { !word } else { word };
    match copied.iter().zip(&*WORDS).position(|(copy, word)| *copy != expected(*word)) {
        Some(item) => Err(SmokeTestError {
            why: format!("wrong data from word {item} of 64 MiB on"),
            remedy: CHECK_MEMORY.to_owned(),
        }),
        None => Ok(ran_kernel),
    }
}

#[allow(unsafe_code, reason = "declares the signature of the kernel above")]
fn kernel(module: &Module) -> Result<Kernel, CudaError> {
    let parameters = [Parameter::Memory, Parameter::of::<u64>()];
    // SAFETY: `gridguard_invert` takes memory and its number of words, which `run` passes, and accesses
    // only these words.
    unsafe { module.kernel("gridguard_invert", &parameters) }
}

impl SmokeTestError {
    fn from_message(error: impl ToString) -> Self {
        let why = error.to_string();
        let remedy = remedy_of_message(&why).unwrap_or_else(|| remedy(None));
        Self { why, remedy }
    }
}

impl<E: Into<gridguard::Error>> From<E> for SmokeTestError {
    fn from(error: E) -> Self {
        let error = error.into();
        if let gridguard::Error::Cuda(error) = &error
            && let CudaErrorKind::Driver(error) = error.kind()
            && error.suspects().is_some()
        {
            // The kernel accesses only its own memory, so the device is at fault.
            let DriverError { call, code, name, .. } = error;
            let remedy = match *code {
                ECC => remedy(error.diagnosis()),
                _ => CHECK_MEMORY.to_owned(),
            };
            return Self { why: format!("{call} returned {name} ({code}) after a kernel"), remedy };
        }
        Self { why: error.to_string(), remedy: remedy(error.diagnosis()) }
    }
}

fn check_properties(device: &Properties) -> Vec<Finding> {
    let Properties { ordinal, name, capability, mode, memory } = device;
    let subject = Subject::numbered("device", ordinal);
    let mut what = format!("{name}, compute capability {capability}");
    if let Some((free, total)) = memory {
        what += &format!(", {} GiB free of {} GiB", gib(*free), gib(*total));
    }
    let mut findings = vec![subject.good(what)];
    let reset_mode =
        format!("nvidia-smi -i {ordinal} --compute-mode=DEFAULT (nvidia-smi's index), as root");
    match mode {
        Some(ComputeMode::Exclusive) => {
            let what = "compute mode exclusive: one process at a time";
            findings.push(subject.warning(what, reset_mode));
        }
        Some(ComputeMode::Prohibited) => {
            let what = "compute mode prohibited: no process may use it";
            findings.push(subject.bad(what, reset_mode));
        }
        _ => {}
    }
    if let Some((free, total)) = memory.filter(|(free, total)| *free < total / LOW_MEMORY) {
        let what = format!("only {} GiB of {} GiB are free", gib(free), gib(total));
        findings.push(subject.warning(what, "nvidia-smi lists the processes that use the rest"));
    }
    findings
}

fn check_smoke_test(device: &Properties, test: &Result<bool, SmokeTestError>) -> Finding {
    let subject = Subject::numbered("device", device.ordinal);
    match (test, device.memory) {
        (Ok(ran_kernel), _) => {
            let kernel = if *ran_kernel { "kernel run" } else { "no kernel without NVRTC" };
            subject.good(format!("smoke test passed: 64 MiB in, {kernel}, 64 MiB out"))
        }
        (Err(_), Some((free, _))) if free < BYTES => subject.bad(
            format!("smoke test failed: {} MiB free, {} MiB needed", free >> 20, BYTES >> 20),
            "nvidia-smi lists the processes that use the memory: end them, or use another device",
        ),
        (Err(SmokeTestError { why, remedy }), _) => {
            subject.bad(format!("smoke test failed: {}", shorten(why)), remedy)
        }
    }
}

fn gib(bytes: u64) -> String {
    let tenths = bytes / ((1 << 30) / 10);
    format!("{}.{}", tenths / 10, tenths % 10)
}

const CHECK_MEMORY: &str =
    "look for memory errors (nvidia-smi -q -d ECC, dmesg for Xid), and use another device";
const ECC: i32 = 214;
/// Spreads consecutive numbers over all bits: 2^64 divided by the golden ratio.
const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    fn device(capability: (u32, u32), mode: ComputeMode, free_gib: u64) -> Properties {
        Properties {
            ordinal: 0,
            name: "NVIDIA L4".into(),
            capability: ComputeCapability::new(capability.0, capability.1),
            mode: Some(mode),
            memory: Some((free_gib << 30, 24 << 30)),
        }
    }

    #[test]
    fn compute_mode_memory_and_capability_are_checked() {
        let second =
            |capability, mode, free| check_properties(&device(capability, mode, free)).remove(1);
        assert_eq!(second((8, 9), ComputeMode::Exclusive, 23).level, Level::Warning);
        assert_eq!(second((8, 9), ComputeMode::Prohibited, 23).level, Level::Bad);
        let low = second((8, 9), ComputeMode::Default, 2);
        assert_eq!(low.what, "only 2.0 GiB of 24.0 GiB are free");
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
