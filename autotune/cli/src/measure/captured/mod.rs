//! Runs a captured launch in the measuring process, and compares the memory that it leaves with the capture.

mod launches;
mod memory;

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::result;
use gridguard::cuda::{CudaError, Kernel, LoadError, Module, RawLaunch};
use gridguard::image::Image;
use gridguard::{Guard, Parameter, Plan, RawArgs};
use gridguard_autotune::{
    Candidate, FailureKind, LaunchConfig, MeasureFailure, Measured, Measurer, Portion, Workload,
};
use gridguard_report::{Capture, CaptureError, CapturedLaunch, CapturedMemory};

use self::launches::{CARVEOUT, configurations, request};
use self::memory::{Allocated, Placed};
use super::workload::LocalBench;
use crate::output::write;

/// Begins the name of the problem; the path of the capture follows.
pub(crate) const PROBLEM: &str = "capture:";

/// A captured launch with its module and memory on a device.
struct Replay {
    capture: Capture,
    guard: Arc<Guard>,
    stream: Arc<CudaStream>,
    kernel: Kernel,
    /// The values of the parameters here.
    arguments: Vec<Vec<u8>>,
    /// The address of each allocation and variable.
    addresses: Vec<u64>,
    _memory: Placed,
    /// The share of shared memory that the function has now; the outer one is none before the first launch.
    carveout: Option<Option<u8>>,
    /// What a launch that updates its memory in place needs again before each run: where, the copy, its bytes. None
    /// before the launch was reproduced.
    updated: Option<Vec<(u64, Allocated, u64)>>,
}

impl LocalBench {
    /// Opens a captured launch.
    pub(crate) fn replay(&self, file: &Path) -> Measured<Box<dyn Measurer>> {
        let no_device = || MeasureFailure::new(FailureKind::Launch, "a replay needs a device");
        let stream = self.stream()?.ok_or_else(no_device)?;
        let workload = Replay::open(self.guard(), Arc::clone(&stream), file)?;
        self.measurer(workload, Some(stream))
    }
}

impl Replay {
    /// Loads the module, and places the memory in the guard's context.
    fn open(guard: &Arc<Guard>, stream: Arc<CudaStream>, path: &Path) -> Measured<Self> {
        let capture = Capture::open(path).map_err(unreadable)?;
        let launch = capture.launch();
        let context = stream.context();
        context.bind_to_thread()?;
        let module = load(&capture, &stream)?;
        let parameters: Vec<_> =
            launch.arguments.iter().map(|value| Parameter::Value { bytes: value.len() }).collect();
        let kernel = declared(&module, launch, &parameters)?;
        let device = i32::try_from(context.ordinal()).unwrap_or(0);
        let memory = Placed::new(&launch.memory, device)?;
        if memory.is_moved && launch.pointers > 0 {
            return Err(illegal(format!(
                "the memory of the launch has {} addresses of memory, and cannot be placed at the addresses that it had: \
                 other memory of this process is there; try again",
                launch.pointers
            )));
        }
        let mut addresses = memory.addresses.clone();
        for (one, address) in launch.memory.iter().zip(&mut addresses) {
            if let Some(name) = &one.variable {
                *address = variable(&module, name, one.bytes)?;
            }
        }
        let relocated = |value: &Vec<u8>| relocated(value, &launch.memory, &addresses);
        let arguments = launch.arguments.iter().map(relocated).collect();
        Ok(Self {
            guard: Arc::clone(guard),
            kernel,
            arguments,
            addresses,
            _memory: memory,
            carveout: None,
            updated: None,
            capture,
            stream,
        })
    }

    fn plan(&self, candidate: &Candidate) -> Measured<Plan> {
        let captured = &self.capture.launch().request;
        let request = request(captured, &candidate.parameters)
            .ok_or_else(|| illegal("the launch cannot have these parameters".to_owned()))?;
        let config = LaunchConfig::new(request, None, self.kernel.limits().clone());
        Ok(config.plan(candidate.choice, gridguard::profile::Objective::default())?)
    }

    #[allow(unsafe_code, reason = "the user vouches for the program that made the launch")]
    fn run(&mut self, candidate: &Candidate) -> Measured<()> {
        let plan = self.plan(candidate)?;
        let own = candidate.parameters.iter().find(|(name, _)| name == CARVEOUT);
        let percent = own.and_then(|(_, percent)| u8::try_from(*percent).ok());
        let percent = percent.or(self.capture.launch().carveout);
        if self.carveout != Some(percent) {
            self.kernel.prefer_shared_memory(percent)?;
            self.carveout = Some(percent);
        }
        let mut values = RawArgs::new();
        for value in &self.arguments {
            values.bytes(value);
        }
        let stream = self.stream.cu_stream();
        // SAFETY: the stream is of the guard's context. The values are the arguments of the captured launch, with
        // addresses of memory here, which outlives the work. Another block size may reach beyond it: this process does
        // nothing else, and its results are compared.
        let launch = || unsafe {
            self.guard.launch_raw(&self.kernel, stream.cast(), RawLaunch::Plan(&plan, &values))
        };
        launch()?;
        Ok(())
    }

    /// Writes the memory from before the launch.
    #[allow(unsafe_code, reason = "copies to memory of known size")]
    fn restore(&self) -> Measured<()> {
        self.stream.synchronize()?;
        for (place, address) in self.addresses.iter().enumerate() {
            for part in self.capture.parts(place) {
                let contents = self.capture.read(place, false, &part).map_err(unreadable)?;
                // SAFETY: the memory has as many bytes as the capture states, and nothing uses it now.
                unsafe { result::memcpy_htod_sync(address + part.start, &contents) }?;
            }
        }
        Ok(())
    }

    /// Compares all memory with that after the captured launch.
    #[allow(unsafe_code, reason = "as above")]
    fn compare(&self) -> Measured<()> {
        self.stream.synchronize()?;
        for (place, address) in self.addresses.iter().enumerate() {
            for part in self.capture.parts(place) {
                let expected = self.capture.read(place, true, &part).map_err(unreadable)?;
                let mut found = vec![0; expected.len()];
                // SAFETY: as above.
                unsafe { result::memcpy_dtoh_sync(&mut found, address + part.start) }?;
                let differs = |(one, other): (&u8, &u8)| one != other;
                if let Some(first) = expected.iter().zip(&found).position(differs) {
                    return Err(self.mismatch(place, part.start, first));
                }
            }
        }
        Ok(())
    }

    fn mismatch(&self, place: usize, at: u64, first: usize) -> MeasureFailure {
        let byte = at.saturating_add(u64::try_from(first).unwrap_or(u64::MAX));
        let of = match self.capture.launch().memory.get(place) {
            Some(CapturedMemory { variable: Some(name), .. }) => format!("variable {name}"),
            Some(CapturedMemory { address, .. }) => format!("the allocation at {address:#x}"),
            None => String::new(),
        };
        let message = format!("byte {byte} of {of} differs from the captured launch");
        MeasureFailure::new(FailureKind::Mismatch, message)
    }

    /// Runs the captured launch once, and again on its own output.
    fn reproduce(&mut self) -> Measured<()> {
        if self.updated.is_some() {
            return Ok(());
        }
        let captured = as_captured();
        self.restore()?;
        self.run(&captured)?;
        self.compare().map_err(|failure| match failure.kind {
            FailureKind::Mismatch => MeasureFailure::new(
                failure.kind,
                format!(
                    "the launch itself gives another result here: {failure}; floating-point atomics, random numbers and \
                     memory that was not captured are reasons"
                ),
            ),
            _ => failure,
        })?;
        self.run(&captured)?;
        let mut updated = Vec::new();
        match self.compare() {
            Err(failure) if failure.kind == FailureKind::Mismatch => {
                self.restore()?;
                updated = self.copies()?;
                // The tuner passes it on.
                let _ = write(IN_PLACE);
            }
            compared => compared?,
        }
        self.updated = Some(updated);
        Ok(())
    }

    /// Copies of the memory that the launch changes, from before it.
    #[allow(unsafe_code, reason = "as above")]
    fn copies(&self) -> Measured<Vec<(u64, Allocated, u64)>> {
        let mut copies = Vec::new();
        for (place, address) in self.addresses.iter().enumerate() {
            let changed = self.capture.changed(place).map_err(unreadable)?;
            let bytes = changed.end.saturating_sub(changed.start);
            if bytes > 0 {
                let copy = Allocated::new(bytes)?;
                copies.push((address + changed.start, copy, bytes));
            }
        }
        for (from, copy, bytes) in &copies {
            self.copy(copy.0, *from, *bytes)?;
        }
        Ok(copies)
    }

    #[allow(unsafe_code, reason = "as above")]
    fn copy(&self, to: u64, from: u64, bytes: u64) -> Measured<()> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: both have as many bytes, and all work is on this stream.
        Ok(unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) }?)
    }
}

impl Workload for Replay {
    fn configurations(&mut self) -> Measured<Vec<LaunchConfig>> {
        Ok(configurations(self.capture.launch(), &self.kernel))
    }

    fn prepare(&mut self, candidate: &Candidate) -> Measured<()> {
        self.reproduce()?;
        self.plan(candidate).map(drop)
    }

    fn launch(&mut self, candidate: &Candidate, _: Portion) -> Measured<()> {
        for (to, copy, bytes) in self.updated.iter().flatten() {
            self.copy(*to, copy.0, *bytes)?;
        }
        self.run(candidate)
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        self.restore()?;
        self.run(candidate)?;
        self.compare()
    }
}

/// The captured launch itself.
fn as_captured() -> Candidate {
    Candidate {
        parameters: Vec::new(),
        choice: gridguard::profile::StoredChoice::Automatic,
        strategy: gridguard::Strategy::Whole,
        launches: 1,
        largest_chunk: 1,
        block_threads: 0,
        scratch_bytes: 0,
    }
}

/// Loads the image; PTX with the forms that parts of a launch need, if it can have them.
fn load(capture: &Capture, stream: &CudaStream) -> Measured<Module> {
    let image = capture.image().map_err(unreadable)?;
    let context = stream.context();
    let checked = Image::new(&*image).map_err(LoadError::from)?;
    if checked.ptx().is_some() {
        match Module::load_ptx(context, &image) {
            Err(CudaError::Load(LoadError::Rewrite(_) | LoadError::Refused { .. })) => {}
            loaded => return Ok(loaded?),
        }
    }
    Ok(Module::load(context, &checked)?)
}

#[allow(unsafe_code, reason = "launched by raw launches only")]
fn declared(
    module: &Module,
    launch: &CapturedLaunch,
    parameters: &[Parameter],
) -> Measured<Kernel> {
    let blocks = launch.request.named_cluster().map_or(1, |cluster| cluster.volume());
    // SAFETY: the kernel is launched by `launch_raw` only, whose contract holds there.
    Ok(unsafe {
        match blocks > PORTABLE {
            true => module.kernel_in_wide_clusters(&launch.kernel, parameters)?,
            false => module.kernel(&launch.kernel, parameters)?,
        }
    })
}

/// The address of a variable, which must have its captured size.
fn variable(module: &Module, name: &str, bytes: u64) -> Measured<u64> {
    let symbol = CString::new(name).map_err(|error| illegal(error.to_string()))?;
    match module.variable(&symbol)? {
        (address, found) if found == bytes => Ok(address),
        (_, found) => Err(illegal(format!("variable {name} has {found} bytes, not {bytes}"))),
    }
}

/// The value of a parameter with the addresses of memory here.
fn relocated(value: &[u8], memory: &[CapturedMemory], addresses: &[u64]) -> Vec<u8> {
    let mut value = value.to_owned();
    for word in value.as_chunks_mut().0 {
        let old = u64::from_le_bytes(*word);
        let holds = |(one, _): &(&CapturedMemory, &u64)| {
            one.variable.is_none() && old >= one.address && old - one.address < one.bytes
        };
        if let Some((one, address)) = memory.iter().zip(addresses).find(holds) {
            *word = address.wrapping_add(old - one.address).to_le_bytes();
        }
    }
    value
}

fn unreadable(error: CaptureError) -> MeasureFailure {
    MeasureFailure::new(FailureKind::Launch, format!("the capture cannot be read: {error}"))
}

fn illegal(message: String) -> MeasureFailure {
    MeasureFailure::new(FailureKind::Illegal, message)
}

const IN_PLACE: &str = "the launch updates its memory in place: all times include restoring that\n";
/// Blocks of the largest cluster that every device with clusters has.
const PORTABLE: u128 = 8;
