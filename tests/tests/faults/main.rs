//! A thousand faults: each gets its typed error, none a panic or a hang, and no profile is lost.
//!
//! Each fault is drawn from a seed and injected in a child process, on the fake driver and on a real
//! device from the same list. `PROPTEST_RNG_SEED` repeats a run, `GRIDGUARD_FAULT=KIND:NUMBER` one
//! fault of it, and `GRIDGUARD_RESULTS` names the folder for `faults.json`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod access;
mod bench;
mod child;
mod cubin;
mod destroyed;
mod device;
mod fault;
mod ground;
mod image;
mod judge;
mod library;
mod memory;
mod naming;
mod raw;
mod report;
mod run;
mod undefined;
mod writer;
mod writing;

use self::ground::{Ground, Platform};
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
    let ground = Ground::prepare(platform);
    let begun = std::time::Instant::now();
    let verdicts = run::run(&ground, seed);
    let report = Report::new(&ground, seed, begun.elapsed(), &verdicts);
    report.publish();
    report::assert_all_well(&report, &verdicts);
}

/// Not a test but what child processes run: nothing where the environment names no fault.
#[test]
fn plays_its_role() {
    if writing::is_asked_for() {
        writing::write();
    } else {
        child::inject_what_is_asked_for();
    }
}
