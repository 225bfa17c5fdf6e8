//! More memory than is available: for a workspace, for the program, for a kernel.
#![allow(unsafe_code, reason = "memory that nobody initialised")]

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};
use gridguard::Guard;
use gridguard_test_support::Random;

use crate::device_setup::{
    DeviceSetup, POISON, context, count, counts_right, kernel, poisoned, spill,
};
use crate::environment::RunEnvironment;
use crate::expected::{Expected, Observed};
use crate::fault::Case;
use crate::observed_error::{Describe, ObservedError, describe};

/// Memory of the fake device.
const FAKE_BYTES: u64 = 1 << 30;
/// Freed memory that a driver may keep for itself.
const SLACK: u64 = 512 << 20;

/// What takes too much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The program itself.
    Program,
    /// A workspace that is too large for a single item.
    Floor,
    /// A workspace that fits for some items, so that smaller chunks are tried.
    Workspace,
    /// The same while the program holds memory.
    BesideAnother,
    /// A kernel with more local memory than is left.
    Local,
}

const WHOS: [Who; 5] = [Who::Program, Who::Floor, Who::Workspace, Who::BesideAnother, Who::Local];

/// A request for too much memory.
#[derive(Debug)]
pub(crate) struct Memory {
    who: Who,
    /// The request in percent of the free memory.
    percent: u64,
    items: u64,
    /// Items whose workspace fits.
    fitting: u64,
    /// Percent of the free memory that the program holds.
    held: u64,
}

pub(crate) fn draw(number: u64, random: &mut Random) -> Memory {
    let count = u64::try_from(WHOS.len()).expect("few");
    let fitting = 1 + random.below(40);
    Memory {
        who: WHOS[usize::try_from(number % count).expect("few")],
        percent: 101 + random.below(900),
        items: 2 * fitting + random.below(200),
        fitting,
        held: 10 + random.below(80),
    }
}

fn take(stream: &Arc<CudaStream>, bytes: u64) -> Result<CudaSlice<u8>, DriverError> {
    let bytes = usize::try_from(bytes).expect("64 bits");
    // SAFETY: the memory is never read.
    unsafe { stream.alloc::<u8>(bytes) }
}

impl Memory {
    fn suffer(
        &self,
        setup: &DeviceSetup,
        guard: &Guard,
        stream: &Arc<CudaStream>,
        observed: &mut Observed,
    ) -> ObservedError {
        let module = setup.module(guard);
        let mut out = poisoned(stream, self.items);
        let free = guard.free_memory().expect("answers").0;
        match self.who {
            Who::Program => describe(&take(stream, free / 100 * self.percent)),
            Who::Floor => {
                let bytes = free / 100 * self.percent / 256 * 256;
                let described = self.spill(setup, guard, stream, bytes, observed);
                let untouched = stream.clone_dtoh(&out).expect("copies back");
                let untouched = untouched.iter().all(|word| *word == POISON);
                observed.require(untouched, || "something was launched".into());
                described
            }
            Who::Workspace => self.spill(setup, guard, stream, self.share_of(free), observed),
            Who::BesideAnother => {
                let held = take(stream, free / 100 * self.held).expect("there is as much");
                let left = guard.free_memory().expect("answers").0;
                let described = self.spill(setup, guard, stream, self.share_of(left), observed);
                drop(held);
                described
            }
            Who::Local => {
                let kernel = kernel(&module, "local_heavy");
                // For all resident threads of a device that is about 4 GiB.
                let left = (1 << 30).min(free / 2);
                let held = take(stream, free - left).expect("there is as much");
                let launched = count(guard, &kernel, stream, &mut out, self.items);
                let described = launched.map_or_else(
                    |error| error.describe(),
                    |_| describe(&guard.synchronize(stream)),
                );
                drop(held);
                described
            }
        }
    }

    /// Bytes per item such that `fitting` items fit.
    fn share_of(&self, free: u64) -> u64 {
        // The driver's granularity takes a third of an item.
        free / (3 * self.fitting + 1) * 3 / 256 * 256
    }

    fn spill(
        &self,
        setup: &DeviceSetup,
        guard: &Guard,
        stream: &Arc<CudaStream>,
        bytes: u64,
        observed: &mut Observed,
    ) -> ObservedError {
        let kernel = kernel(&setup.module(guard), "spill_y");
        let mut out = poisoned(stream, self.items);
        let settled = match spill(guard, &kernel, stream, &mut out, self.items, bytes) {
            Err(error) => return error.describe(),
            Ok(settled) => settled,
        };
        observed.require(settled >= self.items.div_ceil(self.fitting), || {
            format!("{settled} launches with {bytes} bytes an item")
        });
        let written = stream.clone_dtoh(&out).expect("copies back");
        let right = written.iter().zip(0..).all(|(number, place)| *number == place);
        observed.require(right, || "the output is wrong".into());
        ObservedError::outcome("Ok, settled on smaller chunks")
    }
}

impl Case for Memory {
    fn name(&self) -> &'static str {
        match self.who {
            Who::Program => "allocation",
            Who::Floor => "workspace_of_one_item",
            Who::Workspace => "workspace",
            Who::BesideAnother => "workspace_beside_another",
            Who::Local => "local_memory",
        }
    }

    fn needs_a_process(&self) -> bool {
        false
    }

    fn prepare(&self, _ground: &RunEnvironment, _folder: &Path) -> Vec<(&'static str, OsString)> {
        vec![("GRIDGUARD_FAKE_ALLOC_LIMIT", FAKE_BYTES.to_string().into())]
    }

    fn expected(&self, _ground: &RunEnvironment) -> Expected {
        match self.who {
            Who::Program => Expected::one_of(["cudarc::DriverError/2 "]),
            Who::Floor => Expected::one_of(["LaunchError::Workspace/OutOfMemory/2 "]),
            Who::Workspace | Who::BesideAnother => {
                Expected::one_of(["Ok, settled on smaller chunks"])
            }
            Who::Local => {
                Expected::one_of(["LaunchError::Stopped/2 ", "LaunchError::Stopped/701 "])
            }
        }
    }

    fn inject(&self, setup: &DeviceSetup) -> Observed {
        let guard = setup.guard();
        let stream = context(&guard).default_stream();
        stream.synchronize().expect("nothing is wrong yet");
        let before = guard.free_memory().expect("answers").0;
        let mut observed = Observed::default();
        observed.error = self.suffer(setup, &guard, &stream, &mut observed);
        if let Err(error) = guard.synchronize(&stream) {
            observed.complain(format!("the context is lost: {error}"));
            return observed;
        }
        if let Err(error) = counts_right(setup, &guard) {
            observed.complain(format!("an ordinary launch afterwards: {error}"));
        }
        let waited = stream.synchronize();
        observed.require(waited.is_ok(), || format!("an error is left: {waited:?}"));
        let after = guard.free_memory().expect("answers").0;
        let slack = if setup.environment.is_fake() { 0 } else { SLACK };
        observed.require(after + slack >= before, || {
            format!("{before} bytes were free before, {after} are afterwards")
        });
        observed
    }
}
