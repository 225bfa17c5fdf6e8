//! One search under way: what was measured so far, and the only place that measures more.

use core::time::Duration;
use std::time::Instant;

use crate::budget::Budget;
use crate::candidate::Candidate;
use crate::measurer::{FailureKind, MeasureFailure, Measurer};
use crate::number::count;
use crate::observer::{Observer, SearchProgress, Stage};
use crate::sample::Portion;
use crate::search::effort::Effort;
use crate::search::turns::order;
use crate::space::Space;
use crate::stats::{PairedRatio, Samples};
use crate::stop::SLOW_SAMPLE_NS;
use crate::throttle::{Clocked, Throttle};

/// The default's place among the series.
pub(crate) const DEFAULT: usize = 0;

/// What is known of one candidate.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) candidate: Candidate,
    pub(crate) standing: Standing,
    checked: bool,
    warm: bool,
    /// The round and the time of each sample that counts, in nanoseconds.
    times: Vec<(u64, f64)>,
}

/// How far a candidate came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Open,
    Eliminated(Stage),
    Failed(MeasureFailure),
}

/// Why a search ends before it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Halt {
    /// Interrupted, or out of budget.
    Ended,
    /// There is nothing to compare with.
    DefaultFailed(MeasureFailure),
}

pub(crate) struct Search<'a> {
    measurer: &'a mut dyn Measurer,
    observer: &'a mut dyn Observer,
    budget: Budget<'a>,
    pub(crate) throttle: Throttle,
    started: Instant,
    pub(crate) evaluations: u64,
    expected: u64,
    round: u64,
    stage: Stage,
    pub(crate) effort: Effort,
    pub(crate) series: Vec<Series>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        measurer: &'a mut dyn Measurer,
        observer: &'a mut dyn Observer,
        budget: &Budget<'a>,
        space: &Space,
    ) -> Self {
        let mut run = Self {
            measurer,
            observer,
            budget: *budget,
            throttle: Throttle::new(budget.nominal_clock_mhz),
            started: Instant::now(),
            evaluations: 0,
            expected: 0,
            round: 0,
            stage: Stage::Check,
            effort: Effort::FAST,
            series: Vec::new(),
        };
        for candidate in space.candidates() {
            run.track(candidate);
        }
        run
    }

    /// The place of a candidate among the series, new if need be.
    pub(crate) fn track(&mut self, candidate: &Candidate) -> usize {
        let known = self.series.iter().position(|series| series.candidate == *candidate);
        known.unwrap_or_else(|| {
            self.series.push(Series {
                candidate: candidate.clone(),
                standing: Standing::Open,
                checked: false,
                warm: false,
                times: Vec::new(),
            });
            self.series.len() - 1
        })
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Enters a stage that is expected to take so many samples more.
    pub(crate) fn enter(&mut self, stage: Stage, samples: u64) {
        self.stage = stage;
        self.expected = self.evaluations.saturating_add(samples);
    }

    pub(crate) fn is_open(&self, place: usize) -> bool {
        self.series.get(place).is_some_and(|series| series.standing == Standing::Open)
    }

    /// Whether nothing was asked of this candidate yet.
    pub(crate) fn is_new(&self, place: usize) -> bool {
        self.series.get(place).is_some_and(|series| !series.checked)
    }

    /// Those of `places` that are still in.
    pub(crate) fn open(&self, places: &[usize]) -> Vec<usize> {
        places.iter().copied().filter(|place| self.is_open(*place)).collect()
    }

    /// Puts a candidate out.
    pub(crate) fn eliminate(&mut self, place: usize, stage: Stage) {
        if let Some(series) = self.series.get_mut(place)
            && series.standing == Standing::Open
        {
            series.standing = Standing::Eliminated(stage);
        }
    }

    pub(crate) fn times(&self, place: usize) -> Vec<f64> {
        let times = self.series.get(place).map(|series| series.times.as_slice());
        times.unwrap_or_default().iter().map(|(_, time)| *time).collect()
    }

    pub(crate) fn samples(&self, place: usize) -> Option<Samples> {
        Samples::new(self.times(place))
    }

    /// The median of a candidate in nanoseconds; infinite where it has no samples.
    pub(crate) fn median(&self, place: usize) -> f64 {
        self.samples(place).map_or(f64::INFINITY, |samples| samples.median())
    }

    /// The least time of a candidate in nanoseconds; infinite where it has no samples.
    pub(crate) fn least(&self, place: usize) -> f64 {
        self.samples(place).map_or(f64::INFINITY, |samples| samples.least())
    }

    /// The fastest of `places` by its median.
    pub(crate) fn fastest(&self, places: &[usize]) -> Option<usize> {
        let medians =
            |one: &&usize, other: &&usize| self.median(**one).total_cmp(&self.median(**other));
        places.iter().min_by(medians).copied()
    }

    /// Times of one candidate over those of another, from the rounds that have both.
    pub(crate) fn ratio(&self, place: usize, base: usize) -> Option<PairedRatio> {
        let (one, other) = (self.series.get(place)?, self.series.get(base)?);
        let at = |round: u64| other.times.iter().find(|(taken, _)| *taken == round);
        let pairs = one.times.iter().filter_map(|(round, time)| Some((*time, at(*round)?.1)));
        PairedRatio::new(pairs)
    }

    /// Checks those of `places` that were not: no candidate has a time before its output was right.
    pub(crate) fn check(&mut self, places: &[usize]) -> Result<(), Halt> {
        for place in places.iter().copied() {
            let Some(series) = self.series.get(place).filter(|series| !series.checked) else {
                continue;
            };
            let candidate = series.candidate.clone();
            self.go_on()?;
            self.checked(place);
            self.report(&candidate);
            if let Err(failure) = self.measurer.check(&candidate) {
                self.fail(place, failure)?;
            }
        }
        Ok(())
    }

    /// One sample of each of `places`, each time in another order, so that nobody always follows the
    /// same one.
    pub(crate) fn round(&mut self, places: &[usize]) -> Result<(), Halt> {
        self.check(places)?;
        self.round += 1;
        for turn in order(places.len(), self.round) {
            let Some(place) = places.get(turn).copied().filter(|place| self.is_open(*place)) else {
                continue;
            };
            let warm = self.series.get(place).is_some_and(|series| series.warm);
            if !warm {
                let Some(first) = self.sample(place, Portion::Sequence)? else { continue };
                if place == DEFAULT && first > SLOW_SAMPLE_NS {
                    self.effort = Effort::SLOW;
                }
                self.warmed(place);
                if self.effort.keeps_first {
                    self.keep(place, first);
                    continue;
                }
            }
            if let Some(time) = self.sample(place, Portion::Sequence)? {
                self.keep(place, time);
            }
        }
        Ok(())
    }

    /// Rounds until each of `places` that is still in has so many samples.
    pub(crate) fn rounds_up_to(&mut self, places: &[usize], samples: u64) -> Result<(), Halt> {
        loop {
            let behind =
                |place: &usize| self.is_open(*place) && count(self.times(*place).len()) < samples;
            if !places.iter().any(behind) {
                return Ok(());
            }
            self.round(places)?;
        }
    }

    /// One time in nanoseconds at a steady clock; `None` where the candidate failed.
    pub(crate) fn sample(&mut self, place: usize, portion: Portion) -> Result<Option<f64>, Halt> {
        let Some(candidate) = self.series.get(place).map(|series| series.candidate.clone()) else {
            return Ok(None);
        };
        loop {
            self.go_on()?;
            self.report(&candidate);
            self.evaluations += 1;
            let taken = self.measurer.sample(&candidate, portion, 1);
            let sample = match taken.map(|samples| samples.first().copied()) {
                Ok(Some(sample)) if sample.time_ns.is_finite() && sample.time_ns > 0.0 => sample,
                Ok(sample) => {
                    self.fail(place, not_a_time(sample.map(|sample| sample.time_ns)))?;
                    return Ok(None);
                }
                Err(failure) => {
                    self.fail(place, failure)?;
                    return Ok(None);
                }
            };
            match self.throttle.judge(sample.clock_mhz) {
                Clocked::Steady => return Ok(Some(sample.time_ns)),
                Clocked::Throttled { pause } => {
                    self.observer.throttled(pause);
                    (self.budget.pause)(pause);
                }
            }
        }
    }

    fn checked(&mut self, place: usize) {
        if let Some(series) = self.series.get_mut(place) {
            series.checked = true;
        }
    }

    fn warmed(&mut self, place: usize) {
        if let Some(series) = self.series.get_mut(place) {
            series.warm = true;
        }
    }

    fn keep(&mut self, place: usize, time_ns: f64) {
        let round = self.round;
        if let Some(series) = self.series.get_mut(place) {
            series.times.push((round, time_ns));
        }
    }

    fn fail(&mut self, place: usize, failure: MeasureFailure) -> Result<(), Halt> {
        if let Some(series) = self.series.get_mut(place) {
            series.standing = Standing::Failed(failure.clone());
        }
        if place == DEFAULT { Err(Halt::DefaultFailed(failure)) } else { Ok(()) }
    }

    fn go_on(&self) -> Result<(), Halt> {
        let ends = self.budget.is_interrupted()
            || self.budget.is_spent(self.started.elapsed(), self.evaluations);
        if ends { Err(Halt::Ended) } else { Ok(()) }
    }

    fn report(&mut self, candidate: &Candidate) {
        let timed = self.series.iter().enumerate().filter(|(_, series)| !series.times.is_empty());
        let timed: Vec<usize> = timed.map(|(place, _)| place).collect();
        let fastest = self.fastest(&self.open(&timed));
        let median = fastest.map_or(f64::INFINITY, |place| self.median(place));
        let best = fastest.and_then(|place| self.series.get(place));
        let best = best.map(|series| (&series.candidate, median));
        let progress = SearchProgress {
            stage: self.stage,
            candidate,
            best,
            evaluations: self.evaluations,
            expected: self.expected.max(self.evaluations),
        };
        self.observer.progress(&progress);
    }
}

fn not_a_time(time_ns: Option<f64>) -> MeasureFailure {
    let message = match time_ns {
        Some(time) => format!("its time was {time} ns"),
        None => "it was not timed".to_owned(),
    };
    MeasureFailure { kind: FailureKind::Launch, message }
}
