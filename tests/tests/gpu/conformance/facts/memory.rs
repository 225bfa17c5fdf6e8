//! Local memory: how much a launch reserves, the driver's error where this memory is not free, and the largest size
//! that it accepts.

use gridguard::{Dim3, LaunchRequest, cuda};
use gridguard_test_support::conformance::raw::{LaunchCall, RawDriver};

use super::super::kernels::{LOCAL_WORDS, Opened};
use super::features::debug;
use super::{Facts, Loaded, blocks_of, loaded};
use crate::support::guard;

/// Sizes above the documented limit, which the compiler may reject: 512 KiB and 16 bytes, and 1 MiB.
const MORE_WORDS: [&str; 2] = ["131076", "262144"];
/// At most so much is left free of the device's memory.
const LEFT: u64 = 2 << 30;
/// Local memory is a multiple of this, in bytes.
const STEP: u64 = 16;

pub(super) fn measure(driver: &RawDriver, facts: &mut Facts) {
    let sizes = LOCAL_WORDS.iter().rev().chain(&MORE_WORDS);
    let mut kernels = Vec::new();
    for words in sizes {
        match with_local(driver, words) {
            Ok(kernel) => kernels.push((format!("{words} words of local memory"), kernel)),
            Err(error) => facts.note(format!("{words} words of local memory: loading"), error),
        }
    }
    // The driver keeps reserved memory: little free memory comes first, then the smallest size.
    for (what, kernel) in &kernels {
        let local = kernel.kernel.limits.kernel().local_bytes_per_thread;
        facts.note(format!("{what}: bytes a thread"), local);
        let left = LEFT.min(local * guard().limits().resident_threads() / 2);
        let (free, _) = cuda::free_memory(0).expect("memory");
        let taken = usize::try_from(free.saturating_sub(left)).expect("bytes");
        let answer = driver.with_memory_taken(taken, || {
            kernel.answer(driver, &blocks_of(32, 1), LaunchCall::Oldest)
        });
        let answer = debug(&answer);
        facts.note(format!("{what}: launch and synchronize, {left} bytes free"), answer);
    }
    // Then the largest first, so that no size uses memory that a smaller one reserved.
    for (what, kernel) in kernels.iter().rev() {
        let (free, _) = cuda::free_memory(0).expect("memory");
        let answer = debug(&kernel.answer(driver, &blocks_of(32, 1), LaunchCall::Oldest));
        facts.note(format!("{what}: launch and synchronize, {free} bytes free"), answer);
        let (after, _) = cuda::free_memory(0).expect("memory");
        facts.note(format!("{what}: bytes that the device lost"), free.saturating_sub(after));
    }
    order_of_checks(driver, facts);
    largest(driver, facts);
}

fn with_local(driver: &RawDriver, words: &str) -> Result<Loaded, String> {
    loaded(driver, &[("LOCAL_WORDS", words)], Opened::No)
}

/// Launches of a kernel with 512 KiB a thread that break another rule as well.
fn order_of_checks(driver: &RawDriver, facts: &mut Facts) {
    let macros = |live| [("LOCAL_WORDS", "131072"), ("LIVE", live)];
    let kernel = with_local(driver, "131072").expect("it loads");
    let wide = loaded(driver, &macros("200"), Opened::No).expect("it loads");
    for (what, kernel, request) in [
        ("grid y", &kernel, LaunchRequest::new(Dim3::new(1, 65_536, 1), Dim3::ONE)),
        ("cluster", &kernel, blocks_of(32, 9).cluster(Dim3::new(2, 1, 1))),
        ("shared memory", &kernel, blocks_of(32, 1).dynamic_shared_bytes(60_000)),
        ("registers", &wide, blocks_of(512, 1)),
        ("a cooperative launch that fits", &kernel, blocks_of(32, 1).cooperative()),
        ("a cooperative launch that does not fit", &kernel, blocks_of(32, 9999).cooperative()),
        ("a legal cluster", &kernel, blocks_of(32, 8).cluster(Dim3::new(2, 1, 1))),
        ("a dependent launch", &kernel, blocks_of(32, 8).dependent()),
    ] {
        for call in [LaunchCall::Oldest, LaunchCall::Extended] {
            let answers = kernel.answer(driver, &request, call);
            facts.note(format!("512 KiB of local memory, {what}, {call:?}"), debug(&answers));
        }
    }
}

/// The largest local memory that the driver does not reject as invalid, by bisection between 64 KiB and
/// 512 KiB.
fn largest(driver: &RawDriver, facts: &mut Facts) {
    let answer = |steps: u64| {
        let kernel = with_local(driver, &(steps * STEP / 4).to_string()).expect("it loads");
        let bytes = kernel.kernel.limits.kernel().local_bytes_per_thread;
        (bytes, kernel.answer(driver, &blocks_of(32, 1), LaunchCall::Oldest).0)
    };
    let (mut most, mut too_many) = ((64 << 10) / STEP, (512 << 10) / STEP);
    while too_many - most > 1 {
        let middle = most.midpoint(too_many);
        if answer(middle).1 == 1 { too_many = middle } else { most = middle }
    }
    facts.note("the largest local memory: bytes a thread, launch", debug(&answer(most)));
    facts.note("16 bytes more: bytes a thread, launch", debug(&answer(too_many)));
}
