//! More memory than is available: for a workspace, for the program, for a kernel.
#![allow(unsafe_code, reason = "memory that nobody initialised")]

use std::ffi::OsString;
use std::path::Path;

use gridguard_test_support::Random;

use crate::observed::{Expected, Observed, Seen};
use crate::setup::{POISON, Setup, context, is_iota, kernel, launch, poisoned};

/// Memory of the fake device.
const FAKE_BYTES: u64 = 1 << 30;
/// Freed memory that a driver may keep for itself.
const SLACK: u64 = 512 << 20;

/// What takes too much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consumer {
    /// A workspace that is too large for a single item.
    WorkspaceOfOneItem,
    /// A workspace that fits for some items, so that smaller chunks are tried.
    Workspace,
    /// The same while the program holds memory.
    WorkspaceBesideMemory,
    /// A kernel with more local memory than is left.
    LocalMemory,
}

pub(crate) fn prepare(
    _: &Setup,
    _: &Path,
    _: u64,
    _: &mut Random,
) -> Vec<(&'static str, OsString)> {
    vec![("GRIDGUARD_FAKE_ALLOC_LIMIT", FAKE_BYTES.to_string().into())]
}

pub(crate) fn inject(setup: &Setup, number: u64, random: &mut Random) -> Observed {
    use Consumer::{LocalMemory, Workspace, WorkspaceBesideMemory, WorkspaceOfOneItem};
    let (consumer, outcomes): (_, &[&str]) = match number % 4 {
        0 => (WorkspaceOfOneItem, &["LaunchError::Workspace/WorkspaceError/2 "]),
        1 => (Workspace, &["Ok"]),
        2 => (WorkspaceBesideMemory, &["Ok"]),
        _ => (
            LocalMemory,
            &["LaunchError::Stopped/PartialRun/2 ", "LaunchError::Stopped/PartialRun/701 "],
        ),
    };
    let fitting = 1 + random.below(40);
    let items = 2 * fitting + random.below(200);
    let (percent, held_percent) = (101 + random.below(900), 10 + random.below(80));
    let drawn =
        format!("{consumer:?}, {percent} %, {fitting} of {items} items fit, {held_percent} % held");

    let guard = setup.guard();
    let module = setup.module(&guard);
    let (local, spiller) = (kernel(&module, "local_heavy"), kernel(&module, "spill_y"));
    let stream = context(&guard).default_stream();
    let free = || guard.free_memory().expect("answers").0;
    let before = free();
    let mut out = poisoned(&stream, items);
    let held = match consumer {
        WorkspaceBesideMemory => free() / 100 * held_percent,
        // For all resident threads of a device that is about 4 GiB.
        LocalMemory => free() - (1 << 30).min(free() / 2),
        _ => 0,
    };
    let held = usize::try_from(held).expect("64 bits");
    // SAFETY: the memory is never read.
    let held = (held > 0).then(|| unsafe { stream.alloc::<u8>(held) }.expect("there is as much"));
    let (bytes, least) = match consumer {
        WorkspaceOfOneItem => (free() / 100 * percent / 256 * 256, 0),
        // The driver's granularity takes a third of an item.
        _ => (free() / (3 * fitting + 1) * 3 / 256 * 256, items.div_ceil(fitting)),
    };
    let mut launches = Ok(0);
    let seen = match consumer {
        LocalMemory => match launch(&guard, &local, &stream, &mut out, items, 0) {
            Ok(_) => Seen::of(&guard.synchronize(&stream)),
            Err(error) => Seen::failure(&error),
        },
        _ => {
            launches = launch(&guard, &spiller, &stream, &mut out, items, bytes);
            Seen::of(&launches)
        }
    };
    drop(held);
    let mut observed = Observed::new(drawn, &seen, &Expected { outcomes, ..Expected::default() });
    let waited = guard.synchronize(&stream);
    observed.require(waited.is_ok(), || format!("the context is lost: {waited:?}"));
    if waited.is_err() {
        return observed;
    }
    let written = stream.clone_dtoh(&out).expect("copies back");
    match consumer {
        Workspace | WorkspaceBesideMemory => {
            let enough = launches.as_ref().is_ok_and(|launches| *launches >= least);
            observed.require(enough, || format!("{launches:?} with {bytes} bytes an item"));
            observed.require(is_iota(&written), || "the output is wrong".into());
        }
        WorkspaceOfOneItem => {
            let untouched = written.iter().all(|word| *word == POISON);
            observed.require(untouched, || "something was launched".into());
        }
        LocalMemory => {}
    }
    drop(out);
    let ordinary = setup.check_launch(&guard);
    observed.require(ordinary.is_ok(), || format!("an ordinary launch: {ordinary:?}"));
    let slack = if setup.is_fake { 0 } else { SLACK };
    let after = free();
    let is_returned = after + slack >= before;
    observed.require(is_returned, || format!("{before} bytes were free, {after} are afterwards"));
    observed
}
