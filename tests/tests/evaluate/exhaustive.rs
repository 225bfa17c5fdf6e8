//! The exhaustive search and the tuner on a simulated device with known times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use gridguard::profile::Objective;
use gridguard::{Axis, BatchAxis, Dim3, KernelLimits, LaunchLimits, LaunchRequest, catalog};
use gridguard_autotune::{
    Budget, Candidate, FailureKind, LaunchConfig, MeasureFailure, Measurer, Portion, Sample, Space,
};

use crate::program::exhaustive::{
    EvaluateError, Evaluation, EvaluationEffort, ExhaustiveSearch, PairedRatio, SearchRun, evaluate,
};

/// The true times of the candidates in nanoseconds, and those that fail.
#[derive(Clone)]
struct Nature {
    times_ns: BTreeMap<Candidate, f64>,
    failing: BTreeSet<Candidate>,
}

impl Nature {
    fn time_ns(&self, candidate: &Candidate) -> f64 {
        self.times_ns[candidate]
    }

    fn regret(&self, candidate: &Candidate) -> f64 {
        let best = self.times_ns.values().copied().fold(f64::INFINITY, f64::min);
        self.time_ns(candidate) / best - 1.0
    }
}

/// A device whose samples have noise of half a percent.
struct Simulated {
    nature: Nature,
    rng: Rng,
}

impl Simulated {
    fn new(nature: Nature, seed: u64) -> Self {
        Self { nature, rng: Rng::with_seed(seed) }
    }
}

impl Measurer for Simulated {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        match self.nature.failing.contains(candidate) {
            true => Err(MeasureFailure::new(FailureKind::Mismatch, "wrong")),
            false => Ok(()),
        }
    }

    fn sample(&mut self, candidate: &Candidate, _: Portion) -> Result<Sample, MeasureFailure> {
        let noise = 1.0 + 0.005 * (2.0 * self.rng.f64() - 1.0);
        Ok(Sample { time_ns: self.nature.time_ns(candidate) * noise, clock_mhz: None })
    }
}

/// A launch with three block sizes, the default neither the fastest nor the slowest.
fn problem() -> (Space, Nature) {
    let device = catalog::gpu("h200").expect("in the catalogue").limits.clone();
    let items = 80_000;
    let configuration = |threads: u64| LaunchConfig {
        parameters: vec![("block".to_owned(), threads)],
        request: LaunchRequest::new(Dim3::new(1, items, 1), Dim3::new(threads, 1, 1)),
        batch: Some(BatchAxis::new(Axis::Y, items)),
        limits: LaunchLimits::new(device.clone(), KernelLimits::unknown("k")),
    };
    let space = Space::new([128, 64, 256].map(configuration).into());
    let mut rng = Rng::with_seed(3);
    let factors = BTreeMap::from([(64, 1.6), (128, 1.1), (256, 1.0)]);
    let time_ns = |candidate: &Candidate| {
        let launches = u32::try_from(candidate.launches).expect("few");
        let factor = factors[&candidate.parameters[0].1] * (1.0 + 0.02 * rng.f64());
        (candidate.clone(), 500_000.0 * factor + 3000.0 * f64::from(launches))
    };
    let times_ns = space.candidates().iter().map(time_ns).collect();
    (space, Nature { times_ns, failing: BTreeSet::new() })
}

#[test]
fn the_tuner_finds_nearly_the_best_with_a_quarter_of_the_samples() {
    let (space, nature) = problem();
    let mut measurer = Simulated::new(nature.clone(), 7);
    let budget = Budget::default();
    let effort =
        EvaluationEffort { runs: 5, exhaustive_samples: 40, ..EvaluationEffort::default() };
    let objective = Objective::Throughput;
    let evaluation =
        evaluate(&mut measurer, &space, objective, &budget, effort).expect("an evaluation");
    assert_eq!(evaluation.runs.len(), 5);
    assert!(nature.regret(&evaluation.best) < 0.01);
    assert_eq!(evaluation.exhaustive_evaluations, 40 * evaluation.candidates);
    assert_eq!(evaluation.runs_from_others.len(), 4);
    let slow = nature.regret(&evaluation.runs_from_others[0].winner);
    assert!(slow < 0.03, "{slow}");
    for run in evaluation.runs.iter().chain(&evaluation.runs_from_others) {
        assert!((run.regret - nature.regret(&run.winner)).abs() < 0.01, "{run:?}");
        assert!(4 * run.evaluations <= evaluation.exhaustive_evaluations);
    }
    let (_, times) = SearchRun::usual(&evaluation.runs).expect("runs");
    assert_eq!(SearchRun::flips(&evaluation.runs), 5 - times);
}

#[test]
fn each_final_choice_is_compared_with_the_best_once_and_counted() {
    let (space, nature) = problem();
    let effort = EvaluationEffort { runs: 3, other_starts: 6, ..EvaluationEffort::default() };
    let mut measurer = Simulated::new(nature, 7);
    let objective = Objective::Throughput;
    let evaluation =
        evaluate(&mut measurer, &space, objective, &Budget::default(), effort).expect("figures");
    let Evaluation { best, runs, runs_from_others, choices, .. } = &evaluation;
    let searches = || runs.iter().chain(runs_from_others);
    let distinct: BTreeSet<_> = searches().map(|run| &run.winner).collect();
    assert_eq!(choices.len(), distinct.len());
    assert_eq!(choices.iter().map(|choice| choice.searches).sum::<usize>(), 3 + 6);
    for choice in choices {
        let of_choice = searches().filter(|run| run.winner == choice.candidate);
        assert!(of_choice.clone().all(|run| run.regret == choice.regret()));
        assert_eq!(of_choice.count(), choice.searches);
        assert_eq!(choice.against_best.is_none(), choice.candidate == *best);
        if let Some(PairedRatio { median, low, high, pairs }) = choice.against_best {
            assert_eq!(pairs, 41);
            assert!(low <= median && median <= high, "{choice:?}");
        }
    }
}

#[test]
fn other_starts_are_spread_over_the_ranking_from_the_slowest() {
    let (space, nature) = problem();
    let mut measurer = Simulated::new(nature.clone(), 7);
    let search = ExhaustiveSearch::new(&mut measurer, &space, 5).expect("figures");
    let starts = search.other_starts(4);
    let times: Vec<f64> = starts.iter().map(|start| nature.time_ns(start)).collect();
    assert!(times.is_sorted_by(|one, other| one > &(other * 0.97)), "{times:?}");
    assert!(!starts.contains(&space.default().expect("a default")));
    assert_eq!(search.other_starts(0), Vec::<&Candidate>::new());
    assert_eq!(search.other_starts(u32::MAX).len(), search.medians.len() - 1);
}

/// Sets the interrupt after `left` samples.
struct Interrupting<'a> {
    device: Simulated,
    left: u32,
    flag: &'a AtomicBool,
}

impl Measurer for Interrupting<'_> {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.device.check(candidate)
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
    ) -> Result<Sample, MeasureFailure> {
        self.left = self.left.saturating_sub(1);
        self.flag.store(self.left == 0, Ordering::Relaxed);
        self.device.sample(candidate, portion)
    }
}

#[test]
fn an_interrupted_evaluation_returns_no_figures() {
    let (space, nature) = problem();
    let all = 25 * u32::try_from(space.candidates().len()).expect("few");
    // In the exhaustive search, and in the tuner's.
    for left in [10, all + 20] {
        let flag = AtomicBool::new(false);
        let device = Simulated::new(nature.clone(), 7);
        let mut measurer = Interrupting { device, left, flag: &flag };
        let budget = Budget { interrupt: Some(&flag), ..Budget::default() };
        let effort = EvaluationEffort::default();
        let ended = evaluate(&mut measurer, &space, Objective::Throughput, &budget, effort);
        assert_eq!(ended, Err(EvaluateError::Ended));
    }
    let budget = Budget { evaluations: Some(20), ..Budget::default() };
    let mut measurer = Simulated::new(nature, 7);
    let effort = EvaluationEffort::default();
    let ended = evaluate(&mut measurer, &space, Objective::Throughput, &budget, effort);
    assert_eq!(ended, Err(EvaluateError::Ended));
}

#[test]
fn failing_candidates_are_left_out_and_a_failing_default_is_an_error() {
    let (space, mut nature) = problem();
    let times = nature.times_ns.iter().skip(1);
    let fast = times.min_by(|one, other| one.1.total_cmp(other.1)).expect("some").0.clone();
    let default = space.default().expect("a default").clone();
    assert_ne!(fast, default);
    nature.failing.insert(fast.clone());
    let oracle = ExhaustiveSearch::new(&mut Simulated::new(nature.clone(), 1), &space, 5);
    let oracle = oracle.expect("the others run");
    assert!(oracle.medians.iter().all(|(candidate, _)| *candidate != fast));
    nature.failing.insert(default);
    let error = ExhaustiveSearch::new(&mut Simulated::new(nature, 1), &space, 5);
    let Err(EvaluateError::Tune(error)) = error else { panic!("{error:?}") };
    assert!(matches!(error.kind(), gridguard_autotune::ErrorKind::Default(_)), "{error}");
}
