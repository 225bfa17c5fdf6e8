//! The guard, kernels and memory that a child process injects faults with.
#![allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]

use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};
use gridguard::cuda::{Args, CudaError, Image, Kernel, LaunchError, Module};
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, Key, Provenance, StoredChoice, Summary, publish,
};
use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, Guard, LaunchRequest, Parameter};

use crate::environment::RunEnvironment;
use crate::fault::Fault;

/// The value of memory that no kernel wrote.
pub(crate) const POISON: u64 = u64::MAX;

/// What a child process was given.
pub(crate) struct DeviceSetup {
    pub(crate) environment: RunEnvironment,
    /// The process's own folder.
    pub(crate) folder: PathBuf,
}

impl DeviceSetup {
    pub(crate) fn guard(&self) -> Guard {
        Guard::cuda(0).expect("there is a device")
    }

    /// The run's image `name`.
    pub(crate) fn image(&self, name: &str) -> Image {
        Image::new(self.environment.image(name)).expect("it is whole")
    }

    /// The kernels, loaded into the guard's context.
    pub(crate) fn module(&self, guard: &Guard) -> Module {
        guard.load(&self.image("kernels")).expect("it is for this device")
    }

    /// Publishes an entry for `fault` to the profile of its kind.
    pub(crate) fn publish(&self, fault: &Fault) -> bool {
        let name = fault.kind.name();
        publish(&self.environment.profile(name), &document([entry(name, fault.number, 0)])).is_ok()
    }
}

/// An entry of `kernel` for `rows` rows, found so many seconds after midnight.
pub(crate) fn entry(kernel: &str, rows: u64, seconds: u64) -> Entry {
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let date = format!("2026-11-20T{hour:02}:{minute:02}:{second:02}Z");
    Entry {
        key: Key { kernel: kernel.into(), dtypes: "f16".into(), ..Key::default() },
        // Sizes are not 0.
        shape: vec![("rows".into(), rows + 1)],
        choice: StoredChoice::Whole,
        parameters: Vec::new(),
        launches: 1,
        chosen: Summary::default(),
        default: Summary::default(),
        found: Provenance { date, ..Provenance::default() },
    }
}

/// A profile of no device in particular.
pub(crate) fn document(entries: impl IntoIterator<Item = Entry>) -> Document {
    let device = DeviceIdentity::new(&DeviceLimits::any_device());
    let mut document = Document::new(device, Environment::default());
    for entry in entries {
        document.insert(entry).expect("within bounds");
    }
    document
}

/// The kernel `name` of `kernels.cu`.
pub(crate) fn kernel(module: &Module, name: &str) -> Kernel {
    const U64: Parameter = Parameter::of::<u64>();
    let parameters: &[Parameter] = match name {
        "iota_y" | "local_heavy" => &[Parameter::Memory, U64, U64],
        "spill_y" => &[Parameter::Memory, U64, U64, Parameter::AlignedMemory { bytes: 256 }],
        _ => &[Parameter::Memory, U64, U64, U64, U64, U64, U64],
    };
    // SAFETY: the counting kernels keep their contract. The others break it at one item. The device protects all other
    // memory from this access, and the process ends soon after.
    unsafe { module.kernel(name, parameters) }.expect("it is in the image")
}

pub(crate) fn context(guard: &Guard) -> &Arc<CudaContext> {
    guard.context().expect("the guard serves a device")
}

/// One block per item along y.
pub(crate) fn along_y(items: u64) -> (LaunchRequest, BatchAxis) {
    (LaunchRequest::new(Dim3::new(1, items, 1), Dim3::ONE), BatchAxis::new(Axis::Y, items))
}

pub(crate) fn poisoned(stream: &Arc<CudaStream>, items: u64) -> CudaSlice<u64> {
    let items = usize::try_from(items).expect("few items");
    stream.clone_htod(&vec![POISON; items]).expect("memory")
}

/// Launches `iota_y` or `local_heavy` over `out`.
pub(crate) fn count(
    guard: &Guard,
    kernel: &Kernel,
    stream: &CudaStream,
    out: &mut CudaSlice<u64>,
    items: u64,
) -> Result<u64, LaunchError> {
    let (request, batch) = along_y(items);
    let mut args = Args::new(stream);
    args.write_items(out, 1).offset().length();
    guard.plan_and_launch(kernel, &request, Some(&batch), args)
}

/// Launches `spill_y` over `out`, with a workspace of `bytes` per item that the guard allocates.
pub(crate) fn spill(
    guard: &Guard,
    kernel: &Kernel,
    stream: &Arc<CudaStream>,
    out: &mut CudaSlice<u64>,
    items: u64,
    bytes: u64,
) -> Result<u64, LaunchError> {
    let (request, batch) = along_y(items);
    let batch = batch.workspace(bytes, u64::MAX);
    let mut args = Args::new(stream);
    args.write_items(out, 1).offset().length().workspace();
    guard.plan_and_launch(kernel, &request, Some(&batch), args)
}

/// Whether a launch of `iota_y` in the guard's context works, with correct output.
pub(crate) fn counts_right(setup: &DeviceSetup, guard: &Guard) -> Result<(), String> {
    const ITEMS: u64 = 70_000;
    let module = guard.load(&setup.image("kernels")).map_err(|error| error.to_string())?;
    let kernel = kernel(&module, "iota_y");
    let stream = context(guard).default_stream();
    let items = usize::try_from(ITEMS).expect("few items");
    let words = |error: cudarc::driver::DriverError| error.to_string();
    let mut out = stream.clone_htod(&vec![POISON; items]).map_err(words)?;
    count(guard, &kernel, &stream, &mut out, ITEMS).map_err(|error| error.to_string())?;
    guard.synchronize(&stream).map_err(|error: CudaError| error.to_string())?;
    let written = stream.clone_dtoh(&out).map_err(words)?;
    let right = written.iter().zip(0..).all(|(number, place)| *number == place);
    right.then_some(()).ok_or_else(|| "the output is wrong".to_owned())
}

/// The address of device memory.
pub(crate) fn address_of(memory: &mut CudaSlice<u64>, stream: &CudaStream) -> u64 {
    memory.device_ptr_mut(stream).0
}
