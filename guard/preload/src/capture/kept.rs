//! Writes a launch and its memory before it, makes it, and writes the memory that it changed.

use core::ffi::CStr;
use core::hash::Hasher;
use core::ptr;
use std::collections::hash_map::DefaultHasher;
use std::ffi::CString;
use std::io::{self, Read};

use gridguard::abi::{CLUSTER_DIMENSION, COOPERATIVE, DEPENDENT, LaunchAttribute, PRIORITY};
use gridguard::image::ImageFile;
use gridguard_report::{
    Bytes, CAPTURE_FORMAT, CaptureError, CaptureWriter, CapturedLaunch, CapturedMemory, MemoryKind,
};

use super::memory::{Reached, contents};
use crate::driver::abi::{CARVEOUT, Handle, SUCCESS, Status};
use crate::driver::request::Launch;
use crate::driver::{Driver, written};
use crate::fix::arguments::Passed;
use crate::fix::beside::{parameters, relaxed};
use crate::fix::images;
use crate::process::{self, Capture};
use crate::watch::known::Reason;
use crate::watch::table::Entry;

/// A launch whose memory before it was written.
pub(super) struct Begun {
    pub(super) number: u64,
    wanted: &'static Capture,
    driver: &'static Driver,
    memory: Vec<CapturedMemory>,
    /// A hash of each, from before the launch.
    hashes: Vec<u64>,
    writer: CaptureWriter,
}

impl Begun {
    /// Waits for the device, says what will be written, and writes the launch and its memory.
    ///
    /// # Safety
    ///
    /// The program passes the launch of the kernel with this entry to the driver.
    pub(super) unsafe fn new(
        wanted: &'static Capture,
        (launch, number): (&Launch, u64),
        entry: &Entry,
        passed: Passed,
        attributes: &[LaunchAttribute],
    ) -> Result<Self, Reason> {
        let driver = Driver::of(launch.through);
        // SAFETY: by this function's contract.
        let (function, arguments) = unsafe {
            let function = driver.function_of(launch.kernel);
            (function, passed.values(&parameters(driver, function)?)?)
        };
        let image = images::find(entry.image())?;
        let device = driver.device_limits().ok_or("the limits of the device are unknown")?;
        relaxed(driver, || {
            driver.wait_for_all()?;
            let mut reached = Reached::new(driver, wanted.limit);
            arguments.iter().try_for_each(|argument| reached.follow(argument))?;
            let unreadable = |error| Reason::from(format!("its image cannot be read: {error}"));
            let file = ImageFile::parse(&image).map_err(unreadable)?;
            let own = file.images_for(device.compute_capability).next();
            let names = own.map_or(Ok(Vec::new()), |own| own.variables()).map_err(unreadable)?;
            // SAFETY: by this function's contract.
            let variables: Vec<_> = names
                .into_iter()
                .filter_map(|name| unsafe { driver.variable(function, name) })
                .collect();
            for CapturedMemory { address, bytes, .. } in &variables {
                reached.add_variable(*address, *bytes)?;
            }
            reached.follow_memory()?;
            let memory = [reached.memory(), variables].concat();
            let known = [0, COOPERATIVE, CLUSTER_DIMENSION, DEPENDENT, PRIORITY];
            let others = attributes.iter().map(|one| one.id).filter(|id| !known.contains(id));
            // SAFETY: the function is loaded; the pointer is to a live integer.
            let carveout = written(-1, |percent| unsafe {
                Some(driver.function_attribute?(percent, CARVEOUT, function))
            });
            let captured = CapturedLaunch {
                format: CAPTURE_FORMAT,
                program: process::program(),
                kernel: entry.kernel().name(),
                number,
                device: device.clone(),
                request: launch.request(),
                other_attributes: others.collect(),
                carveout: carveout.and_then(|percent| percent.try_into().ok()),
                arguments,
                image_bytes: u64::try_from(image.len()).unwrap_or(u64::MAX),
                memory: memory.clone(),
                pointers: reached.pointers,
            };
            announce(wanted, &captured);
            let mut writer =
                CaptureWriter::new(&wanted.file, &captured, &image).map_err(failed(wanted))?;
            let mut hashes = Vec::new();
            for (place, CapturedMemory { address, bytes, .. }) in memory.iter().enumerate() {
                let mut hashed = Hashed::new(contents(driver, *address, *bytes));
                writer.memory(place, false, *bytes, &mut hashed).map_err(failed(wanted))?;
                hashes.push(hashed.hasher.finish());
            }
            Ok(Self { number, wanted, driver, memory, hashes, writer })
        })
    }

    /// Waits for the launch, writes what it changed, and gives the file its name.
    pub(super) fn end(self, status: Status) -> Result<(), Reason> {
        let Self { number, wanted, driver, memory, hashes, mut writer } = self;
        if status != SUCCESS {
            return Err(format!("it was refused: {}", driver.error(status)).into());
        }
        relaxed(driver, || {
            driver.wait_for_all()?;
            for ((place, one), hash) in memory.iter().enumerate().zip(hashes) {
                let contents = || contents(driver, one.address, one.bytes);
                let mut hashed = Hashed::new(contents());
                let read = io::copy(&mut hashed, &mut io::sink());
                read.map_err(|error| error.to_string())?;
                if hashed.hasher.finish() != hash {
                    writer.memory(place, true, one.bytes, contents()).map_err(failed(wanted))?;
                }
            }
            Ok::<(), Reason>(())
        })?;
        let (kernel, file) = (&wanted.kernel, wanted.file.display());
        if !writer.finish().map_err(failed(wanted))? {
            return Err(format!("{file} exists").into());
        }
        process::say(&format!(
            "gridguard: captured launch {number} of {kernel}: `gridguard tune --replay {file}` measures it\n"
        ));
        Ok(())
    }
}

/// Says what will be written.
fn announce(Capture { file, .. }: &Capture, launch: &CapturedLaunch) {
    let CapturedLaunch { number, kernel, memory, image_bytes, .. } = launch;
    let bytes = memory.iter().fold(0, |sum: u64, one| sum.saturating_add(one.bytes));
    let variables = memory.iter().filter(|one| one.variable.is_some()).count();
    let most = bytes.saturating_mul(2).saturating_add(*image_bytes);
    process::say(&format!(
        "gridguard: capturing launch {number} of {kernel} with {} of memory (allocations: {}, variables: {variables}) in {}, \
         which takes at most {}. Device memory may hold secrets, for example weights, prompts and keys: only you can \
         read the file, share it with care\n",
        Bytes(bytes),
        memory.len() - variables,
        file.display(),
        Bytes(most),
    ));
}

fn failed(Capture { file, .. }: &Capture) -> impl Fn(CaptureError) -> Reason {
    move |error| format!("{}: {error}", file.display()).into()
}

impl Driver {
    /// Waits for all work of the current context.
    fn wait_for_all(&self) -> Result<(), Reason> {
        let wait = self.synchronize_context.ok_or("the driver cannot wait for the device")?;
        // SAFETY: takes no pointer.
        match unsafe { wait() } {
            SUCCESS => Ok(()),
            status => Err(format!("cuCtxSynchronize returned {}", self.error(status)).into()),
        }
    }

    /// A variable of the function's module, if the driver knows it.
    ///
    /// # Safety
    ///
    /// The function is loaded.
    unsafe fn variable(&self, function: Handle, name: String) -> Option<CapturedMemory> {
        let symbol = CString::new(name.as_str()).ok()?;
        let symbol: &CStr = &symbol;
        // SAFETY: by this function's contract; the pointers are to live values and a string.
        let (address, bytes) = unsafe {
            let module =
                written(ptr::null_mut(), |module| Some(self.function_module?(module, function)))?;
            let (mut address, mut bytes) = (0, 0);
            let status =
                self.module_variable?(&raw mut address, &raw mut bytes, module, symbol.as_ptr());
            (status == SUCCESS).then_some((address, u64::try_from(bytes).ok()?))?
        };
        let kind = MemoryKind::Device;
        (bytes > 0).then_some(CapturedMemory { address, bytes, kind, variable: Some(name) })
    }
}

/// Hashes what is read.
struct Hashed<R> {
    contents: R,
    hasher: DefaultHasher,
}

impl<R> Hashed<R> {
    fn new(contents: R) -> Self {
        Self { contents, hasher: DefaultHasher::new() }
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let size = self.contents.read(into)?;
        self.hasher.write(&into[..size]);
        Ok(size)
    }
}
