use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use expect_test::expect_file;
use gridguard::profile::{Objective, StopReason};

use super::simulation::{Nature, Simulated, ordinary, problem, throughput};
use crate::stats::{count, real};
use crate::{
    Budget, Candidate, CandidateVerdict, Error, ErrorKind, FailureKind, Journal, MeasureFailure,
    Measurer, Observer, Portion, Resumed, Sample, Samples, SearchProgress, Space, Stage, tune,
};

fn quantile(values: &[f64], fraction: f64) -> f64 {
    Samples::new(values.iter().copied()).expect("finite").quantile(fraction)
}

/// Among candidates within 2 % the simplest wins, so a choice may be that much slower than the best. So may the default,
/// and by what the comparison with it does not resolve.
#[test]
fn regret_and_samples_stay_small_and_the_choice_is_never_worse_than_the_default() {
    let [regrets, shares] = regrets_and_shares(ordinary(0..400));
    assert!(quantile(&regrets, 0.5) <= 0.005);
    assert!(quantile(&regrets, 0.95) <= 0.02);
    assert!(quantile(&regrets, 1.0) <= 0.03);
    assert!(quantile(&shares, 0.5) <= 0.25);
}

/// The regret of each search, and its samples as a share of 40 for each candidate.
fn regrets_and_shares(problems: impl Iterator<Item = (u64, Space, Nature)>) -> [Vec<f64>; 2] {
    let (mut regrets, mut shares) = (Vec::new(), Vec::new());
    for (seed, space, nature) in problems {
        let outcome = throughput(&space, &mut Simulated::new(nature.clone(), seed));
        assert!(outcome.complete);
        regrets.push(nature.regret(&outcome.winner));
        shares.push(real(outcome.evaluations) / real(40 * count(space.candidates().len())));
        let is_worse = nature.regret(&outcome.winner) > nature.regret(&outcome.default);
        assert!(!is_worse, "seed {seed}: {} for {}", outcome.winner, outcome.default);
    }
    let quantiles = |all: &[f64]| [0.5, 0.95, 1.0].map(|fraction| quantile(all, fraction));
    let count = regrets.len();
    println!("{count} spaces: regret {:?}, shares {:?}", quantiles(&regrets), quantiles(&shares));
    [regrets, shares]
}

#[test]
fn a_space_of_a_hundred_thousand_candidates_takes_no_quadratic_time() {
    let one = |x: u64| Candidate::whole(vec![("x".to_owned(), x)], 1);
    let all: Vec<Candidate> = (0..100_000).map(one).collect();
    let time = |one: &Candidate| 1e6 + real(one.parameters[0].1.abs_diff(70_000));
    let times_ns = all.iter().map(|one| (one.clone(), time(one))).collect();
    let nature = Nature {
        noise: 0.0,
        outliers: 0.0,
        drift: 0.0,
        first: 0.0,
        times_ns,
        failing: BTreeMap::new(),
    };
    let mut space = Space::listed([all.clone(), all].concat());
    let outcome = throughput(&space, &mut Simulated::new(nature.clone(), 1));
    assert!(outcome.complete && outcome.candidates.len() == 100_000);
    assert!(nature.regret(&outcome.winner) < nature.regret(&outcome.default));
    let half = space.candidates()[50_000..].to_vec();
    space.keep(&half);
    assert_eq!(space.candidates().len(), 50_001);
}

/// The choice by the rule, for true times and a margin.
fn by_rule(space: &Space, nature: &Nature, margin: f64) -> Candidate {
    let time = |one: &Candidate| nature.time_ns(one, Portion::Sequence);
    let default = space.default().expect("legal");
    let most = nature.best_ns() * margin;
    let wins = |one: &&Candidate| time(one) * margin < time(default) && time(one) <= most;
    let winners = space.candidates().iter().filter(wins);
    winners.min_by(|one, other| one.tie_order(other)).unwrap_or(default).clone()
}

/// No measurement tells 1.99 % from 2.01 %. So the problems are those whose choice is the same for margins from 1.6 to
/// 2.6 %: three of four. The noise is that of `bench-data/results/nvidia-h200/tune.txt`, whose spreads are 0.2 % in
/// the median and 0.6 % at the 90th percentile.
#[test]
fn the_choice_is_the_same_in_every_run() {
    let margins = [1.016, 1.018, 1.02, 1.022, 1.024, 1.026];
    let (mut problems, mut defaults, mut unclear) = (0, 0, 0);
    for (seed, space, mut nature) in ordinary(0..60) {
        if problems == 25 {
            break;
        }
        nature.noise = 0.001 * 6_f64.powf((nature.noise - 0.003) / 0.007);
        let [first, others @ ..] = margins.map(|margin| by_rule(&space, &nature, margin));
        if others.iter().any(|other| *other != first) {
            unclear += 1;
            continue;
        }
        problems += 1;
        defaults += u32::from(Some(&first) == space.default());
        assert!(
            nature.regret(&first) <= 0.02
                && nature.regret(&first) <= nature.regret(space.default().expect("legal"))
        );
        for run in 0..20 {
            let outcome = throughput(&space, &mut Simulated::new(nature.clone(), seed * 31 + run));
            assert_eq!(
                outcome.winner,
                first,
                "seed {seed}, run {run}: regrets {} and {}",
                nature.regret(&outcome.winner),
                nature.regret(&first)
            );
        }
    }
    println!(
        "{problems} problems, {defaults} of them keep the default; {unclear} others are unclear"
    );
    assert_eq!(problems, 25);
}

/// All candidates of up to 256 get two samples, and ties are measured until they are clear.
#[test]
fn a_large_space_is_searched_with_a_fraction_of_the_samples() {
    let problems = (0..60).map(|seed| (seed, problem(seed, 16)));
    let large = problems.filter(|(_, (space, _))| space.candidates().len() > 64);
    let [regrets, shares] =
        regrets_and_shares(large.map(|(seed, (space, nature))| (seed, space, nature)));
    assert!(quantile(&regrets, 0.95) <= 0.025);
    assert!(quantile(&regrets, 1.0) <= 0.03);
    assert!(quantile(&shares, 0.5) <= 0.2);
    assert!(quantile(&shares, 1.0) <= 1.1);
}

#[test]
fn an_interrupted_search_returns_an_incomplete_outcome() {
    struct Interrupter<'a>(&'a AtomicBool);
    impl Observer for Interrupter<'_> {
        fn progress(&mut self, progress: &SearchProgress<'_>) {
            if progress.stage == Stage::Fine {
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }
    let (space, nature) = problem(3, 3);
    let flag = AtomicBool::new(false);
    let budget = Budget { interrupt: Some(&flag), ..Budget::default() };
    let mut measurer = Simulated::new(nature, 3);
    let outcome = tune(
        &mut measurer,
        &mut space.clone(),
        Objective::Throughput,
        &budget,
        &mut Interrupter(&flag),
    )
    .expect("an outcome");
    assert!(!outcome.complete);
    assert!(outcome.baseline.samples > 0);
    assert_eq!(outcome.stopped, StopReason::Timeout);
}

#[test]
fn failures_are_recorded_and_never_win_or_run_again() {
    for (seed, space, mut nature) in ordinary(0..30) {
        let kinds = [FailureKind::Mismatch, FailureKind::Crash, FailureKind::Timeout];
        let others = space.candidates().iter().skip(1).step_by(3);
        nature.failing = others.cloned().zip(kinds.into_iter().cycle()).collect();
        let failing = nature.failing.clone();
        let mut measurer = Resumed::new(Simulated::new(nature, seed), Journal::default());
        let outcome = throughput(&space, &mut measurer);
        assert!(outcome.complete);
        assert!(!failing.contains_key(&outcome.winner));
        let failed: HashSet<_> =
            outcome.failures().map(|(one, failure)| (one.clone(), failure.kind)).collect();
        let expected: HashSet<_> = failing.clone().into_iter().collect();
        assert_eq!(failed, expected, "seed {seed}");

        // Nothing is left to measure, so a device that knows nothing will do.
        let empty = Nature { times_ns: BTreeMap::new(), ..simulated_nothing() };
        let (_, journal) = measurer.into_parts();
        let again = throughput(&space, &mut Resumed::new(Simulated::new(empty, 0), journal));
        assert_eq!(again.candidates, outcome.candidates);
    }
}

fn simulated_nothing() -> Nature {
    problem(0, 1).1
}

#[test]
fn a_default_that_fails_is_an_error() {
    let (space, mut nature) = problem(1, 2);
    let default = space.default().expect("legal").clone();
    for kind in [FailureKind::Mismatch, FailureKind::Crash] {
        nature.failing = BTreeMap::from([(default.clone(), kind)]);
        let error = tune(
            &mut Simulated::new(nature.clone(), 1),
            &mut space.clone(),
            Objective::Throughput,
            &Budget::default(),
            &mut (),
        )
        .expect_err("there is nothing to compare with");
        assert!(matches!(error.kind(), ErrorKind::Default(failure) if failure.kind == kind));
    }
    let mut nothing = Space::new(Vec::new());
    let error = tune(
        &mut Simulated::new(nature, 1),
        &mut nothing,
        Objective::Throughput,
        &Budget::default(),
        &mut (),
    );
    assert_eq!(error, Err(Error::no_candidate()));
}

#[test]
fn slow_samples_are_few() {
    let (space, mut nature) = problem(4, 1);
    for time in nature.times_ns.values_mut() {
        *time *= 1e5;
    }
    let outcome = throughput(&space, &mut Simulated::new(nature, 4));
    let candidates = count(space.candidates().len());
    assert!(outcome.evaluations <= 5 * candidates + 20, "{}", outcome.evaluations);
    assert!(outcome.baseline.samples >= 3);
}

#[test]
fn without_time_the_default_is_chosen_unmeasured() {
    let (mut space, nature) = problem(7, 2);
    let budget = Budget { wall_time: Some(Duration::ZERO), ..Budget::default() };
    let mut measurer = Simulated::new(nature, 7);
    let outcome = tune(&mut measurer, &mut space, Objective::Throughput, &budget, &mut ())
        .expect("an outcome");
    assert_eq!((outcome.complete, outcome.evaluations), (false, 0));
    assert_eq!(outcome.winner, outcome.default);
    assert!(
        outcome.candidates.iter().skip(1).all(|one| one.verdict == CandidateVerdict::Unmeasured)
    );
}

/// A device on which something goes wrong: `change` gets the number of each sample and whether it has several launches.
struct Changed<F> {
    device: Simulated,
    taken: u32,
    change: F,
}

impl<F: Fn(u32, bool, Sample) -> Sample> Changed<F> {
    const fn new(device: Simulated, change: F) -> Self {
        Self { device, taken: 0, change }
    }
}

impl<F: Fn(u32, bool, Sample) -> Sample> Measurer for Changed<F> {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.device.check(candidate)
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
    ) -> Result<Sample, MeasureFailure> {
        self.taken += 1;
        let sample = self.device.sample(candidate, portion)?;
        Ok((self.change)(self.taken, candidate.launches > 1, sample))
    }
}

/// The clock falls for some samples, and times with it.
fn throttled(taken: u32, _: bool, sample: Sample) -> Sample {
    let clock_mhz = if (30..34).contains(&taken) { 1200.0 } else { 1980.0 };
    let time_ns = sample.time_ns * 1980.0 / clock_mhz;
    Sample { time_ns, clock_mhz: Some(clock_mhz), ..sample }
}

#[test]
fn throttled_samples_are_discarded_after_a_pause() {
    #[derive(Default)]
    struct Pauses(u32);
    impl Observer for Pauses {
        fn throttled(&mut self, _: Duration) {
            self.0 += 1;
        }
    }
    let (space, nature) = problem(8, 2);
    let steady = throughput(&space, &mut Simulated::new(nature.clone(), 8));
    let (budget, mut pauses) = (Budget::default(), Pauses::default());
    let mut measurer = Changed::new(Simulated::new(nature, 8), throttled);
    let mut space = space.clone();
    let outcome = tune(&mut measurer, &mut space, Objective::Throughput, &budget, &mut pauses)
        .expect("the default runs");
    assert_eq!(pauses.0, 4);
    assert!(!outcome.throttled);
    assert_eq!(outcome.winner, steady.winner);
}

#[test]
fn an_observer_sees_every_sample_and_the_expected_total() {
    #[derive(Default)]
    struct Counter(u64, BTreeSet<String>);
    impl Observer for Counter {
        fn progress(&mut self, progress: &SearchProgress<'_>) {
            assert!(progress.evaluations <= progress.expected);
            self.0 = self.0.max(progress.evaluations);
            self.1.insert(progress.stage.to_string());
        }
    }
    let (mut space, nature) = problem(9, 3);
    let mut counter = Counter::default();
    let budget = Budget::default();
    let mut measurer = Simulated::new(nature, 9);
    let outcome = tune(&mut measurer, &mut space, Objective::Throughput, &budget, &mut counter)
        .expect("the default runs");
    assert_eq!(counter.0 + 1, outcome.evaluations);
    assert_eq!(counter.1, ["check", "coarse", "fine", "finals"].map(str::to_owned).into());
}

#[test]
fn disturbed_samples_are_taken_again_and_never_decide() {
    let mut undecided = 0;
    for (seed, space, nature) in ordinary(0..12) {
        // Other processes disturb every so many samples, which then take three times as long. Chunks suffer most.
        let busy = |every| {
            let change = |taken: u32, is_chunked, sample: Sample| {
                let disturbed = taken.is_multiple_of(every);
                let factor = if disturbed && is_chunked { 3.0 } else { 1.0 };
                Sample { time_ns: sample.time_ns * factor, disturbed, ..sample }
            };
            let device = Simulated::new(nature.clone(), seed);
            throughput(&space, &mut Changed::new(device, change))
        };
        let (quiet, some, all) = (busy(u32::MAX), busy(3), busy(1));
        assert_eq!((quiet.discarded, some.winner, some.undecided), (0, quiet.winner, false));
        assert!(3 * some.discarded > some.evaluations - 3, "{} discarded", some.discarded);
        assert!(all.complete && all.winner == all.default);
        let report = crate::TuningReport::new("any", &all).to_string();
        let end = "undecided: too noisy to tell whether a candidate is faster than the default\n\
                   nothing is stored: tune again when the machine is idle\n";
        let is_narrow = report.lines().all(|line| line.len() <= 80);
        assert!(report.contains("\nnoise: ") && is_narrow, "{report}");
        assert_eq!((report.ends_with(end), all.is_decided()), (all.undecided, !all.undecided));
        undecided += u32::from(all.undecided);
    }
    assert!(undecided > 3, "{undecided} of 12");
}

#[test]
fn a_report_is_a_table_and_json() {
    let (space, mut nature) = problem(10, 9);
    let wrong = space.candidates().last().expect("some").clone();
    nature.failing.insert(wrong, FailureKind::Mismatch);
    let mut outcome = throughput(&space, &mut Simulated::new(nature, 10));
    outcome.wall_time_s = 0.25;
    let report = crate::TuningReport::new("attention on NVIDIA H200", &outcome);
    let (short, whole) = (report.to_string(), format!("{report:#}"));
    expect_file!["report.txt"].assert_eq(&whole);
    assert!(whole.lines().all(|line| line.len() <= 80), "{whole}");
    let rows = |text: &str| text.lines().take_while(|line| !line.starts_with("choice: ")).count();
    assert!(rows(&short) < rows(&whole) && report.left_out() > 0);
    assert!(short.contains(&format!("... {} more candidates\n", report.left_out())), "{short}");
    let json = serde_json::to_string(&report).expect("serialises");
    let read: crate::TuningReport = serde_json::from_str(&json).expect("reads");
    assert_eq!(read.to_string(), short);
}
