//! A thousand faults: each gets its typed error, without a panic, a hang or a lost profile.
//!
//! Each fault is drawn from a seed and injected in a child process, on the fake driver and on a real
//! device from the same list. `PROPTEST_RNG_SEED` repeats a run, `GRIDGUARD_FAULT=KIND:NUMBER` one
//! fault of it, and `GRIDGUARD_RESULTS` names the folder for `faults.json`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod bad_image;
mod bad_library;
mod child;
mod cubin;
mod destroyed_context;
mod device_setup;
mod environment;
mod expected;
mod fault;
mod illegal_access;
mod killed_writer;
mod observed_error;
mod other_device;
mod out_of_memory;
mod raw;
mod report;
mod run;
mod undefined_behaviour;
mod writer_process;

use self::environment::{Platform, RunEnvironment};
use self::report::Report;

/// The seed of a run, unless the environment names another.
const SEED: u64 = 20_250_611;

#[test]
fn every_fault_gets_its_typed_error_from_a_fake_driver() {
    inject_all(Platform::Fake);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn every_fault_gets_its_typed_error_from_a_real_driver() {
    inject_all(Platform::Real);
}

fn inject_all(platform: Platform) {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok();
    let seed = seed.and_then(|text| text.trim().parse().ok()).unwrap_or(SEED);
    let environment = RunEnvironment::prepare(platform);
    let begun = std::time::Instant::now();
    let verdicts = run::run(&environment, seed);
    let report = Report::new(&environment, seed, begun.elapsed(), &verdicts);
    report.publish();
    report::assert_all_correct(&report, &verdicts);
}

/// Not a test but the body of child processes; does nothing if the environment names no fault.
#[test]
fn runs_in_a_child_process() {
    if writer_process::is_requested() {
        writer_process::write();
    } else {
        child::inject_requested();
    }
}
