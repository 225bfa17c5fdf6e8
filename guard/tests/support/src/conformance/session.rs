//! Runs a comparison: draws and launches, and synchronizes now and then to find sticky errors.

use std::time::Instant;

use gridguard::LaunchRequest;
use serde::Serialize;

use crate::Random;

use super::compare::Tally;
use super::draw::{Generator, attributes};
use super::kernel::KernelUnderTest;
use super::raw::{LaunchCall, RawDriver, RawLaunch};

/// Accepted launches between two synchronizations.
const BETWEEN_SYNCHRONIZATIONS: usize = 256;
/// Launches that the report of a sticky error lists.
const LISTED: usize = 16;

/// The result of a run.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// Wall time.
    pub seconds: f64,
    /// The first error of a synchronization, with the launches before it.
    pub sticky: Option<String>,
    #[serde(flatten)]
    /// All comparisons.
    pub tally: Tally,
}

/// Gives the driver `launches` launches of the `kernels` in turn, in the current context.
pub fn run(driver: &RawDriver, kernels: &[KernelUnderTest], launches: u64, seed: u64) -> Outcome {
    let begun = Instant::now();
    let mut outcome = Outcome::default();
    let (mut random, mut apart) = (Random::new(seed), Random::new(!seed));
    let mut accepted = Vec::with_capacity(BETWEEN_SYNCHRONIZATIONS);
    let drawn = kernels.iter().map(|s| (s, Generator::new(&s.limits, s.parameter_bytes)));
    let drawn: Vec<(&KernelUnderTest, Generator)> = drawn.collect();
    for (kernel, generator) in drawn.iter().cycle() {
        if outcome.tally.launches >= launches || outcome.sticky.is_some() {
            break;
        }
        let request = generator.draw(&mut random, |request| kernel.occupancy(request).blocks);
        let request = attributes(request, &kernel.limits, &mut apart);
        let call = random.pick(&[LaunchCall::Oldest, LaunchCall::Extended]);
        // No driver call takes the bytes of parameters.
        let raw =
            RawLaunch::new(&request).filter(|_| request.parameter_bytes == kernel.parameter_bytes);
        let result = raw.map(|launch| driver.launch(kernel.function, &launch, call));
        outcome.tally.record(kernel, &request, call, result);
        if result == Some(0) {
            accepted.push((*kernel, request));
        }
        if accepted.len() == BETWEEN_SYNCHRONIZATIONS {
            outcome.sticky = sticky_error(driver, &accepted);
            accepted.clear();
        }
    }
    if outcome.sticky.is_none() {
        outcome.sticky = sticky_error(driver, &accepted);
    }
    outcome.seconds = begun.elapsed().as_secs_f64();
    outcome
}

/// The sticky error of the device, if it has one.
fn sticky_error(
    driver: &RawDriver,
    accepted: &[(&KernelUnderTest, LaunchRequest)],
) -> Option<String> {
    let result = driver.synchronize();
    if result == 0 {
        return None;
    }
    let listed: Vec<String> = accepted
        .iter()
        .rev()
        .take(LISTED)
        .map(|(kernel, request)| format!("{}: {request:?}", kernel.name))
        .collect();
    Some(format!("synchronizing returned {result} after, latest first,\n{}", listed.join("\n")))
}
