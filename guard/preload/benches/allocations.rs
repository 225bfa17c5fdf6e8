//! What the library adds to a pair of allocation and release, with the fake driver: by turns without and with
//! it, so that other load of the machine affects both alike.
//!
//! The fake driver is faster than a real one, so that the ratios are larger than on a device.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it stops where a program fails"
)]

#[path = "../tests/preloaded/programs.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod programs;

use programs::{allocates, library, run};

/// Rounds of each case.
const ROUNDS: usize = 15;

fn main() {
    for (name, function) in
        [("cuMemAlloc and cuMemFree", "alloc"), ("cuMemAllocAsync and cuMemFreeAsync", "async")]
    {
        let words = format!("dlsym measure-{function}");
        let measured = |with: bool| -> f64 {
            let mut command = allocates(&words);
            command.envs(with.then(|| ("LD_PRELOAD", library())));
            let ran = run(&mut command);
            ran.out.trim().parse().unwrap_or_else(|_| panic!("{ran:?}"))
        };
        let pairs: Vec<_> = (0..ROUNDS).map(|_| (measured(false), measured(true))).collect();
        let without = median(pairs.iter().map(|(without, _)| *without));
        let ratio = median(pairs.iter().map(|(without, with)| with / without));
        let added = median(pairs.iter().map(|(without, with)| with - without));
        println!(
            "{name}: {without:.0} ns without, {ratio:.3} times as long with it, {added:.0} ns more"
        );
    }
}

fn median(samples: impl Iterator<Item = f64>) -> f64 {
    let mut samples: Vec<_> = samples.collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
