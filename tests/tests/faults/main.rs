//! A thousand faults: each ends in its typed error, without a panic, a hang or a lost profile.
//!
//! Each fault is drawn from a seed and injected in a child process, on the fake driver and on a real device. At least a
//! thousand are different. The number of a fault cycles through the variants of its kind.
//! `PROPTEST_RNG_SEED` repeats a run, `GRIDGUARD_FAULT=KIND:NUMBER` one fault of it, and `GRIDGUARD_RESULTS` names the
//! folder for `faults.json`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod access;
mod context;
mod device;
mod image;
mod library;
mod memory;
mod observed;
mod run;
mod setup;

use std::ffi::OsString;
use std::path::Path;

use gridguard_test_support::Random;

use self::observed::Observed;
use self::setup::Setup;

/// Prepares the folder of a process, and returns its environment.
type Prepare = fn(&Setup, &Path, u64, &mut Random) -> Vec<(&'static str, OsString)>;
/// Injects the fault of a number, and compares what comes of it with what must.
type Inject = fn(&Setup, u64, &mut Random) -> Observed;

/// A kind of fault.
struct Kind {
    name: &'static str,
    /// How many there are in a run.
    faults: u64,
    device: Share,
    prepare: Prepare,
    inject: Inject,
}

/// What a fault needs of a real device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    /// Nothing that other faults would miss.
    Shared,
    /// The device recovers from one such fault at a time: with eight at once, about one in a thousand surfaced late or
    /// never (H200, 580.159.04).
    OneByOne,
    /// The memory that other faults need.
    Alone,
}

const fn kind(
    name: &'static str,
    faults: u64,
    device: Share,
    prepare: Prepare,
    inject: Inject,
) -> Kind {
    Kind { name, faults, device, prepare, inject }
}

const KINDS: [Kind; 6] = [
    kind("out_of_memory", 80, Share::Alone, memory::prepare, memory::inject),
    kind("illegal_access", 260, Share::OneByOne, nothing, access::inject),
    kind("context_destroyed", 200, Share::Shared, nothing, context::inject),
    kind("bad_image", 330, Share::Shared, nothing, image::inject),
    kind("wrong_device", 90, Share::Shared, device::prepare, device::inject),
    kind("missing_library", 110, Share::Shared, library::prepare, library::inject),
];

fn nothing(_: &Setup, _: &Path, _: u64, _: &mut Random) -> Vec<(&'static str, OsString)> {
    Vec::new()
}

#[test]
fn every_fault_gets_its_typed_error_from_a_fake_driver() {
    run::inject_all(true);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn every_fault_gets_its_typed_error_from_a_real_driver() {
    run::inject_all(false);
}

/// Not a test but the body of child processes; does nothing if the environment names no fault.
#[test]
fn runs_in_a_child_process() {
    run::inject_requested();
}
