//! More memory than there is: what the guard brings, what the program takes, what a kernel needs.
#![allow(unsafe_code, reason = "memory that nobody initialised")]

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError};
use gridguard::{Guard, WorkspaceUse};
use gridguard_test_support::Random;

use crate::bench::{Bench, POISON, context, count, counts_right, kernel, poisoned, spill};
use crate::fault::Case;
use crate::ground::Ground;
use crate::judge::{Expected, Observed};
use crate::naming::{Tell, Told, told};

/// Memory of the fake device.
const FAKE_BYTES: u64 = 1 << 30;
/// What a driver may keep for itself of what was let go of.
const SLACK: u64 = 512 << 20;

/// Who takes too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The program, for itself.
    Program,
    /// A workspace of which not even one item fits.
    Floor,
    /// A workspace of which some items fit, so that smaller chunks are tried.
    Workspace,
    /// The same beside memory that the program holds.
    BesideAnother,
    /// A kernel with more local memory than is left.
    Local,
}

const WHOS: [Who; 5] = [Who::Program, Who::Floor, Who::Workspace, Who::BesideAnother, Who::Local];

/// A wish for too much memory.
#[derive(Debug)]
pub(crate) struct Memory {
    who: Who,
    /// How much too much, in percent of what is free.
    percent: u64,
    items: u64,
    /// Items of which the workspace fits at once.
    fitting: u64,
    usage: WorkspaceUse,
    /// Percent of what is free that the program holds meanwhile.
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
        usage: random.pick(&[WorkspaceUse::Shared, WorkspaceUse::PerChunk]),
        held: 10 + random.below(80),
    }
}

fn take(stream: &Arc<CudaStream>, bytes: u64) -> Result<CudaSlice<u8>, DriverError> {
    let bytes = usize::try_from(bytes).expect("64 bits");
    // SAFETY: nobody reads it.
    unsafe { stream.alloc::<u8>(bytes) }
}

impl Memory {
    fn suffer(
        &self,
        bench: &Bench,
        guard: &Guard,
        stream: &Arc<CudaStream>,
        observed: &mut Observed,
    ) -> Told {
        let module = bench.module(guard);
        let mut out = poisoned(stream, self.items);
        let free = guard.free_memory().expect("answers").0;
        match self.who {
            Who::Program => told(&take(stream, free / 100 * self.percent)),
            Who::Floor => {
                let bytes = free / 100 * self.percent / 256 * 256;
                let told = self.spill(bench, guard, stream, bytes, observed);
                let untouched = stream.clone_dtoh(&out).expect("copies back");
                let untouched = untouched.iter().all(|word| *word == POISON);
                observed.require(untouched, || "something was launched".into());
                told
            }
            Who::Workspace => self.spill(bench, guard, stream, self.share_of(free), observed),
            Who::BesideAnother => {
                let held = take(stream, free / 100 * self.held).expect("there is as much");
                let left = guard.free_memory().expect("answers").0;
                let told = self.spill(bench, guard, stream, self.share_of(left), observed);
                drop(held);
                told
            }
            Who::Local => {
                let kernel = kernel(&module, "local_heavy");
                // All threads that a device runs at once take some 4 GiB.
                let left = (1 << 30).min(free / 2);
                let held = take(stream, free - left).expect("there is as much");
                let launched = count(guard, &kernel, stream, &mut out, self.items);
                let told = launched
                    .map_or_else(|error| error.told(), |_| told(&guard.synchronize(stream)));
                drop(held);
                told
            }
        }
    }

    /// Bytes an item, of which just so many fit.
    fn share_of(&self, free: u64) -> u64 {
        // A third of an item is lost to the granularity of the driver.
        free / (3 * self.fitting + 1) * 3 / 256 * 256
    }

    fn spill(
        &self,
        bench: &Bench,
        guard: &Guard,
        stream: &Arc<CudaStream>,
        bytes: u64,
        observed: &mut Observed,
    ) -> Told {
        let kernel = kernel(&bench.module(guard), "spill_y");
        let mut out = poisoned(stream, self.items);
        let settled = match spill(guard, &kernel, stream, &mut out, self.items, bytes, self.usage) {
            Err(error) => return error.told(),
            Ok(settled) => settled,
        };
        let tried = &settled.tried;
        observed.require(
            tried.len() > 1 && settled.chunk() <= self.fitting && settled.items_done == self.items,
            || format!("{bytes} bytes an item settled so: {settled:?}"),
        );
        let written = stream.clone_dtoh(&out).expect("copies back");
        let right = written.iter().zip(0..).all(|(number, place)| *number == place);
        observed.require(right, || "the output is wrong".into());
        Told::outcome("Ok, settled on smaller chunks")
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

    fn prepare(&self, _ground: &Ground, _folder: &Path) -> Vec<(&'static str, OsString)> {
        vec![("GRIDGUARD_FAKE_ALLOC_LIMIT", FAKE_BYTES.to_string().into())]
    }

    fn expected(&self, _ground: &Ground) -> Expected {
        match self.who {
            Who::Program => Expected::one_of(["cudarc::DriverError/2 "]),
            Who::Floor => Expected::one_of(["LaunchError::Backoff/OutOfWorkspace/2 "]),
            Who::Workspace | Who::BesideAnother => {
                Expected::one_of(["Ok, settled on smaller chunks"])
            }
            Who::Local => {
                Expected::one_of(["LaunchError::Stopped/2 ", "LaunchError::Stopped/701 "])
            }
        }
    }

    fn inject(&self, bench: &Bench) -> Observed {
        let guard = bench.guard();
        let stream = context(&guard).default_stream();
        stream.synchronize().expect("nothing is wrong yet");
        let before = guard.free_memory().expect("answers").0;
        let mut observed = Observed::default();
        observed.told = self.suffer(bench, &guard, &stream, &mut observed);
        if let Err(error) = guard.synchronize(&stream) {
            observed.complain(format!("the context is lost: {error}"));
            return observed;
        }
        if let Err(error) = counts_right(bench, &guard) {
            observed.complain(format!("an ordinary launch afterwards: {error}"));
        }
        let waited = stream.synchronize();
        observed.require(waited.is_ok(), || format!("an error is left: {waited:?}"));
        let after = guard.free_memory().expect("answers").0;
        let slack = if bench.ground.is_fake() { 0 } else { SLACK };
        observed.require(after + slack >= before, || {
            format!("{before} bytes were free before, {after} are afterwards")
        });
        observed
    }
}
