use std::collections::BTreeMap;

use gridguard::profile::Objective;

use super::simulation::{Nature, Simulated, configurations};
use crate::{
    Budget, Candidate, CandidateVerdict, FailureKind, MeasureFailure, Measurer, Portion, Sample,
    Space, TuningOutcome, TuningReport, tune,
};

fn latency(space: &Space, nature: &Nature, max_launch_us: u64) -> (Space, TuningOutcome) {
    let mut space = space.clone();
    let outcome = tune(
        &mut Simulated::new(nature.clone(), 5),
        &mut space,
        Objective::Latency { max_launch_us },
        &Budget::default(),
        &mut (),
    )
    .expect("the default runs");
    (space, outcome)
}

/// Each item takes 10 ns and each launch 3 us, whatever the chunk.
fn proportional(items: u64, sets: u64) -> (Space, Nature) {
    let space = Space::new(configurations(items, sets, true));
    let (noise, outliers, drift, first) = (0.003, 0.0, 0.0, 0.2);
    let (times_ns, failing) = (BTreeMap::new(), BTreeMap::new());
    (space, Nature { noise, outliers, drift, first, times_ns, failing })
}

#[test]
fn the_largest_chunk_within_the_limit_is_found() {
    let (space, nature) = proportional(40_000, 1);
    let (_, outcome) = latency(&space, &nature, 105);
    let met = outcome.latency.expect("a bound");
    assert!(met.met && met.launch.high_ns <= 105_000, "{met:?}");
    // 10,200 items would take 105 us; balanced, that is four launches of 10,000.
    let chunk = outcome.winner.largest_chunk;
    assert_eq!(chunk, 10_000);
    assert_eq!(outcome.winner().map(|one| one.verdict), Some(CandidateVerdict::Winner));
    println!("latency: {chunk} items, {} evaluations", outcome.evaluations);
}

#[test]
fn the_largest_listed_candidate_within_the_limit_is_chosen() {
    let (space, nature) = proportional(40_000, 1);
    let listed = Space::listed(space.candidates().to_vec());
    let (after, outcome) = latency(&listed, &nature, 105);
    let meets = listed.candidates().iter().filter(|one| one.largest_chunk <= 10_000);
    let largest = meets.map(|one| one.largest_chunk).max();
    assert_eq!(Some(outcome.winner.largest_chunk), largest);
    assert!(outcome.latency.is_some_and(|met| met.met));
    assert_eq!(after.candidates(), listed.candidates());
}

/// Some candidates fail in a sequence, or give wrong output.
struct Brittle {
    device: Simulated,
    fails: fn(&Candidate) -> bool,
    wrong: fn(&Candidate) -> bool,
}

impl Measurer for Brittle {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        match (self.wrong)(candidate) {
            true => Err(MeasureFailure::new(FailureKind::Mismatch, "wrong")),
            false => self.device.check(candidate),
        }
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
    ) -> Result<Sample, MeasureFailure> {
        match portion {
            Portion::Sequence if (self.fails)(candidate) => {
                Err(MeasureFailure::new(FailureKind::Crash, "it crashed"))
            }
            _ => self.device.sample(candidate, portion),
        }
    }
}

const NONE: fn(&Candidate) -> bool = |_| false;

fn brittle(
    fails: fn(&Candidate) -> bool,
    wrong: fn(&Candidate) -> bool,
) -> (TuningOutcome, String) {
    let (mut space, nature) = proportional(40_000, 1);
    let mut measurer = Brittle { device: Simulated::new(nature, 5), fails, wrong };
    let objective = Objective::Latency { max_launch_us: 105 };
    let outcome = tune(&mut measurer, &mut space, objective, &Budget::default(), &mut ())
        .expect("the default runs");
    let report = TuningReport::new("any", &outcome).to_string();
    (outcome, report)
}

#[test]
fn the_next_best_replaces_a_choice_that_fails_in_the_finals_and_the_report_says_so() {
    let (outcome, report) = brittle(|one| one.launches == 4, NONE);
    let latency = outcome.latency.expect("a bound");
    assert!(latency.met && !latency.kept_default);
    assert_eq!(latency.failed_choices, 1);
    assert_eq!(outcome.failures().next().expect("one").1.message, "it crashed");
    let chunk = outcome.winner.largest_chunk;
    assert!((7000..10_000).contains(&chunk), "{chunk}");
    assert!(outcome.complete && outcome.chosen.samples > 0);
    assert!(report.contains("\n1 better choice failed in the finals\n"), "{report}");
}

#[test]
fn if_no_chunk_runs_the_default_is_kept_and_the_report_says_so() {
    let is_split: fn(&Candidate) -> bool = |one| one.launches > 1;
    for (fails, wrong, failed) in [(is_split, NONE, 3), (NONE, is_split, 0)] {
        let (outcome, report) = brittle(fails, wrong);
        assert_eq!(outcome.winner, outcome.default);
        let latency = outcome.latency.expect("a bound");
        assert!(!latency.met && latency.kept_default && latency.launch.samples > 0);
        assert_eq!(latency.failed_choices, failed);
        assert!(outcome.complete && outcome.baseline.samples > 0);
        let kept = "\nno tried chunk runs, so the default is kept\n";
        let bound = "NOT within the bound of 105.0 us";
        assert!(report.contains(kept) && report.contains(bound), "{report}");
    }
}

#[test]
fn a_default_within_the_limit_is_kept() {
    let (space, nature) = proportional(40_000, 2);
    let (_, outcome) = latency(&space, &nature, 1000);
    assert_eq!(outcome.winner, outcome.default);
    assert!(outcome.latency.is_some_and(|met| met.met));
}

#[test]
fn the_smallest_chunk_is_chosen_if_none_is_within_the_limit() {
    let (space, nature) = proportional(4000, 1);
    let (space, outcome) = latency(&space, &nature, 1);
    let smallest = space.candidates().iter().map(|one| one.largest_chunk).min();
    assert_eq!(Some(outcome.winner.largest_chunk), smallest);
    assert!(outcome.latency.is_some_and(|latency| !latency.met));
}
