//! A search beside another process: it yields, and chooses as if it were alone.

use core::cell::Cell;
use core::ops::Range;
use core::time::Duration;
use std::rc::Rc;

use fastrand::Rng;
use gridguard::profile::Objective;

use super::simulation::{Nature, Simulated, ordinary, throughput};
use crate::{
    Budget, Candidate, FailureKind, MeasureFailure, Measured, Measurer, Portion, Sample, Space,
    TuningOutcome, WhenIdle, tune,
};

const MS: f64 = 1e6;

/// A simulated device whose work another process disturbs, and whose clock yields.
struct Shared {
    alone: Simulated,
    now_ns: Rc<Cell<f64>>,
    /// When the other process uses the device, in order.
    foreign: Rc<[Range<f64>]>,
    longest_wait_ns: f64,
    repeated: u32,
}

impl Shared {
    /// Runs until `end`, and says whether the other process uses the device then.
    fn run_until(&mut self, end: f64) -> Measured<()> {
        let begin = self.now_ns.replace(end);
        for other in self.foreign.iter().filter(|one| one.start < end && one.end > begin) {
            self.longest_wait_ns = self.longest_wait_ns.max(end - other.start);
        }
        if self.foreign.iter().any(|one| one.contains(&end)) {
            self.repeated += 1;
            return Err(MeasureFailure::new(FailureKind::Busy, "in use"));
        }
        Ok(())
    }
}

impl Measurer for Shared {
    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        self.alone.check(candidate)?;
        self.run_until(self.now_ns.get() + 3.0 * MS)
    }

    fn sample(&mut self, candidate: &Candidate, portion: Portion) -> Measured<Sample> {
        let before = self.alone.clone();
        let sample = self.alone.sample(candidate, portion)?;
        let ran = self.run_until(self.now_ns.get() + sample.time_ns + 0.1 * MS);
        if ran.is_err() {
            self.alone = before;
        }
        ran.map(|()| sample)
    }
}

/// Bursts of 1 to 80 ms, 1 to 1.1 s after one another, so that many begin in the search that follows a second of
/// idleness.
fn bursts(seed: u64) -> Rc<[Range<f64>]> {
    let (mut rng, mut now) = (Rng::with_seed(seed), 0.0);
    let burst = |_| {
        now += (1000.0 + 100.0 * rng.f64()) * MS;
        let begin = now;
        now += (1.0 + 79.0 * rng.f64()) * MS;
        begin..now
    };
    (0..50).map(burst).collect()
}

/// Problems whose work is short enough for a clock that yields.
fn short() -> impl Iterator<Item = (u64, Space, Nature)> {
    ordinary(0..60).filter(|(_, space, nature)| {
        let time_ns = |one| nature.time_ns(one, Portion::Sequence);
        space.candidates().iter().all(|one| time_ns(one) < 4.0 * MS)
    })
}

/// Tunes beside `foreign`. Returns the shared device too.
fn beside(
    foreign: &Rc<[Range<f64>]>,
    space: &Space,
    nature: &Nature,
    seed: u64,
) -> (TuningOutcome, Shared, Vec<Duration>) {
    let now_ns = Rc::new(Cell::new(0.0));
    let alone = Simulated::new(nature.clone(), seed);
    let foreign = Rc::clone(foreign);
    let shared = Shared {
        alone,
        now_ns: Rc::clone(&now_ns),
        foreign: Rc::clone(&foreign),
        longest_wait_ns: 0.0,
        repeated: 0,
    };
    let mut waits = Vec::new();
    let wait = |needed: Duration| {
        waits.push(needed);
        let needed = needed.as_secs_f64() * 1e9;
        for other in foreign.iter().filter(|one| one.end > now_ns.get()) {
            if other.start > now_ns.get() + needed {
                break;
            }
            now_ns.set(other.end);
        }
        now_ns.set(now_ns.get() + needed);
        Ok(())
    };
    let mut measurer = WhenIdle::new(shared, wait);
    let budget = Budget::default();
    let outcome = tune(&mut measurer, &mut space.clone(), Objective::Throughput, &budget, &mut ())
        .expect("the default runs");
    let shared = measurer.into_inner();
    (outcome, shared, waits)
}

#[test]
fn a_search_yields_within_ten_milliseconds_and_chooses_as_alone() {
    let (mut problems, mut disturbed) = (0, 0);
    for (seed, space, nature) in short() {
        let undisturbed = throughput(&space, &mut Simulated::new(nature.clone(), seed));
        let (outcome, shared, _) = beside(&bursts(seed), &space, &nature, seed);
        assert!(shared.longest_wait_ns < 10.0 * MS, "{seed}: {} ns", shared.longest_wait_ns);
        assert_eq!(outcome.winner, undisturbed.winner, "{seed}");
        problems += 1;
        disturbed += u32::from(shared.repeated > 0);
    }
    assert!(problems > 10 && disturbed > problems / 2, "{disturbed} of {problems} were disturbed");
}

#[test]
fn the_wait_grows_while_another_process_comes_back() {
    let (seed, space, nature) = short().next().expect("a problem");
    let mut foreign = Vec::new();
    let mut now = 0.0;
    for gap_ms in [1020.0].into_iter().chain([2020.0; 40]) {
        now += gap_ms * MS;
        foreign.push(now..now + 30.0 * MS);
        now += 30.0 * MS;
    }
    let (_, shared, waits) = beside(&foreign.into(), &space, &nature, seed);
    let waits: Vec<u64> = waits.iter().map(Duration::as_secs).collect();
    assert_eq!((shared.repeated, waits), (2, vec![1, 2, 4]));
}
