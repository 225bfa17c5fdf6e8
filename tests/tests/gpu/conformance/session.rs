//! Draws, judges and launches, and looks now and then whether the device is still well.

use std::time::Instant;

use gridguard::LaunchRequest;
use serde::Serialize;

use super::compare::Tally;
use super::draw::{Generator, attributes};
use super::random::Random;
use super::raw::{RawDriver, RawLaunch, Way};
use super::subject::Subject;

/// Launches between two looks at the device.
const BETWEEN_LOOKS: usize = 256;
/// Launches that are told of where the device is found broken.
const TOLD: usize = 16;

/// What came of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Outcome {
    pub(crate) seconds: f64,
    /// What synchronizing answered where it was no success, with the launches before it.
    pub(crate) sticky: Option<String>,
    #[serde(flatten)]
    pub(crate) tally: Tally,
}

/// Gives the driver so many `launches` of the `subjects`, whose context is current, in turn.
pub(crate) fn run(driver: &RawDriver, subjects: &[Subject], launches: u64, seed: u64) -> Outcome {
    let begun = Instant::now();
    let mut outcome = Outcome::default();
    let (mut random, mut apart) = (Random::new(seed), Random::new(!seed));
    let mut accepted = Vec::with_capacity(BETWEEN_LOOKS);
    let drawn = subjects.iter().map(|s| (s, Generator::new(&s.limits, s.parameter_bytes)));
    let drawn: Vec<(&Subject, Generator)> = drawn.collect();
    for (subject, generator) in drawn.iter().cycle() {
        if outcome.tally.launches >= launches || outcome.sticky.is_some() {
            break;
        }
        let request = generator.draw(&mut random, |request| subject.occupancy(request).blocks);
        let request = attributes(request, &subject.limits, &mut apart);
        let way = random.pick(&[Way::Oldest, Way::Extended]);
        // The driver has no word for the bytes of parameters.
        let raw =
            RawLaunch::new(&request).filter(|_| request.parameter_bytes == subject.parameter_bytes);
        let answer = raw.map(|launch| driver.launch(subject.function, &launch, way));
        outcome.tally.judge(subject, &request, way, answer);
        if answer == Some(0) {
            accepted.push((*subject, request));
        }
        if accepted.len() == BETWEEN_LOOKS {
            outcome.sticky = look(driver, &accepted);
            accepted.clear();
        }
    }
    if outcome.sticky.is_none() {
        outcome.sticky = look(driver, &accepted);
    }
    outcome.seconds = begun.elapsed().as_secs_f64();
    outcome
}

/// What is wrong with the device, if anything.
fn look(driver: &RawDriver, accepted: &[(&Subject, LaunchRequest)]) -> Option<String> {
    let answer = driver.synchronize();
    if answer == 0 {
        return None;
    }
    let told: Vec<String> = accepted
        .iter()
        .rev()
        .take(TOLD)
        .map(|(subject, request)| format!("{}: {request:?}", subject.name))
        .collect();
    Some(format!("synchronizing answered {answer} after, latest first,\n{}", told.join("\n")))
}
