//! The exhaustive search and the tuner on a simulated device with known times.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use gridguard::{Axis, BatchAxis, Dim3, KernelLimits, LaunchLimits, LaunchRequest, catalog};
use gridguard_autotune::{
    Candidate, FailureKind, LaunchConfig, MeasureFailure, Measurer, Portion, Sample, Space,
};

use crate::program::exhaustive::{
    EvaluateError, Evaluation, EvaluationEffort, ExhaustiveSearch, PairedRatio, evaluate,
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
        Ok(Sample {
            time_ns: self.nature.time_ns(candidate) * noise,
            clock_mhz: None,
            disturbed: false,
        })
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
fn the_tuner_finds_nearly_the_best_and_each_choice_is_compared_once() {
    let (space, nature) = problem();
    let effort =
        EvaluationEffort { runs: 5, exhaustive_samples: 40, other_starts: 6, paired_rounds: 41 };
    let evaluation = evaluate(&mut Simulated::new(nature.clone(), 7), &space, effort);
    let Evaluation { best, runs, runs_from_others, choices, .. } = &evaluation.expect("figures");
    assert!((runs.len(), runs_from_others.len()) == (5, 6) && nature.regret(best) < 0.01);
    let searches = || runs.iter().chain(runs_from_others);
    for run in searches() {
        assert!((run.regret - nature.regret(&run.winner)).abs() < 0.01, "{run:?}");
    }
    let distinct: BTreeSet<_> = searches().map(|run| &run.winner).collect();
    assert_eq!(choices.len(), distinct.len());
    for choice in choices {
        let of_choice = searches().filter(|run| run.winner == choice.candidate);
        assert!(of_choice.clone().all(|run| run.regret == choice.regret()));
        assert_eq!(of_choice.count(), choice.searches);
        assert_eq!(choice.against_best.is_none(), choice.candidate == *best);
        if let Some(PairedRatio { median, low, high, pairs }) = choice.against_best {
            assert!(pairs == 41 && low <= median && median <= high, "{choice:?}");
        }
    }
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
