//! The state of one search, and the only code that measures.

use core::time::Duration;
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use fastrand::Rng;
use gridguard::profile::StopReason;

use crate::candidate::Candidate;
use crate::control::{Budget, Observer, SearchProgress, Stage};
use crate::error::Error;
use crate::failure::{FailureKind, MeasureFailure};
use crate::measure::{Measurer, Portion, Sample};
use crate::outcome::LatencyOutcome;
use crate::sampling::{Disturbance, SLOW_SAMPLE_NS, SamplingEffort, Throttle};
use crate::space::Space;
use crate::stats::{Samples, count};

/// The default's place among the series.
pub(crate) const DEFAULT: usize = 0;

#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) candidate: Candidate,
    pub(crate) status: Status,
    is_checked: bool,
    is_warm: bool,
    /// The samples that count although they were disturbed.
    pub(crate) disturbed: u64,
    /// The round and the nanoseconds of each counted sample.
    times: Vec<(u64, f64)>,
    /// The same nanoseconds, sorted.
    samples: Option<Samples>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Open,
    Eliminated(Stage),
    Failed(MeasureFailure),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Halt {
    /// The search was interrupted, or its budget is spent.
    Ended,
    Failed(Error),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SearchResult {
    pub(crate) stopped: Option<StopReason>,
    /// The places in the finals, including the default's.
    pub(crate) finalists: Vec<usize>,
    /// The places whose comparison was still open after the most samples.
    pub(crate) undecided: Vec<usize>,
    /// The choice for an objective of latency.
    pub(crate) bounded: Option<(usize, LatencyOutcome)>,
}

/// A search in progress. Series are never removed, so a place stays valid.
pub(crate) struct Search<'a> {
    measurer: &'a mut dyn Measurer,
    observer: &'a mut dyn Observer,
    budget: Budget<'a>,
    pub(crate) throttle: Throttle,
    disturbance: Disturbance,
    started: Instant,
    pub(crate) evaluations: u64,
    /// Samples that were taken again, because the clock was lowered or other processes held the processor.
    pub(crate) discarded: u64,
    /// Nanoseconds of all samples, also of an earlier process, so that a resumed search ends like a whole one.
    pub(crate) sampled_ns: f64,
    expected: u64,
    round: u64,
    stage: Stage,
    pub(crate) effort: SamplingEffort,
    pub(crate) series: Vec<Series>,
    places: HashMap<Candidate, usize>,
    /// The bits of the median of each open place with samples, which sort like the positive number, and the place.
    ranking: BTreeSet<(u64, usize)>,
    pub(crate) result: SearchResult,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        measurer: &'a mut dyn Measurer,
        observer: &'a mut dyn Observer,
        budget: &Budget<'a>,
        space: &Space,
    ) -> Self {
        let mut search = Self {
            measurer,
            observer,
            budget: *budget,
            throttle: Throttle::default(),
            disturbance: Disturbance::default(),
            started: Instant::now(),
            evaluations: 0,
            discarded: 0,
            sampled_ns: 0.0,
            expected: 0,
            round: 0,
            stage: Stage::Check,
            effort: SamplingEffort::FAST,
            series: Vec::new(),
            places: HashMap::new(),
            ranking: BTreeSet::new(),
            result: SearchResult::default(),
        };
        for candidate in space.candidates() {
            search.track(candidate);
        }
        search
    }

    /// The place of a candidate among the series, added if new.
    pub(crate) fn track(&mut self, candidate: &Candidate) -> usize {
        if let Some(place) = self.places.get(candidate) {
            return *place;
        }
        let place = self.series.len();
        self.places.insert(candidate.clone(), place);
        self.series.push(Series {
            candidate: candidate.clone(),
            status: Status::Open,
            is_checked: false,
            is_warm: false,
            disturbed: 0,
            times: Vec::new(),
            samples: None,
        });
        place
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Enters a stage of about `samples` samples.
    pub(crate) fn enter(&mut self, stage: Stage, samples: u64) {
        self.stage = stage;
        self.expected = self.evaluations.saturating_add(samples);
    }

    pub(crate) fn is_open(&self, place: usize) -> bool {
        self.series[place].status == Status::Open
    }

    pub(crate) fn is_new(&self, place: usize) -> bool {
        !self.series[place].is_checked
    }

    /// The places that neither failed nor were eliminated.
    pub(crate) fn open(&self, places: &[usize]) -> Vec<usize> {
        places.iter().copied().filter(|place| self.is_open(*place)).collect()
    }

    pub(crate) fn eliminate(&mut self, place: usize, stage: Stage) {
        if self.is_open(place) {
            self.close(place, Status::Eliminated(stage));
        }
    }

    pub(crate) fn times(&self, place: usize) -> Vec<f64> {
        self.series[place].times.iter().map(|(_, time)| *time).collect()
    }

    pub(crate) fn samples(&self, place: usize) -> Option<&Samples> {
        self.series[place].samples.as_ref()
    }

    /// The median of a candidate in nanoseconds; infinite without samples.
    pub(crate) fn median(&self, place: usize) -> f64 {
        self.samples(place).map_or(f64::INFINITY, Samples::median)
    }

    /// The least time of a candidate in nanoseconds; infinite without samples.
    pub(crate) fn least(&self, place: usize) -> f64 {
        self.samples(place).map_or(f64::INFINITY, Samples::least)
    }

    /// The places whose medians are within 3 % of the least time of the traffic.
    pub(crate) fn at_limit(&self, places: &[usize]) -> Vec<usize> {
        let most = self.budget.least_ns.map_or(0.0, |least_ns| least_ns * LIMIT_FACTOR);
        places.iter().copied().filter(|place| self.median(*place) <= most).collect()
    }

    pub(crate) fn fastest(&self, places: &[usize]) -> Option<usize> {
        let medians =
            |one: &usize, other: &usize| self.median(*one).total_cmp(&self.median(*other));
        places.iter().copied().min_by(medians)
    }

    /// Times of `place` divided by times of `base`, for the rounds with both.
    pub(crate) fn pairs(&self, place: usize, base: usize) -> Vec<f64> {
        let mut base = self.series[base].times.iter().peekable();
        let times = self.series[place].times.iter();
        let ratio = |(round, time): &(u64, f64)| {
            while base.next_if(|(earlier, _)| earlier < round).is_some() {}
            base.next_if(|(same, _)| same == round).map(|(_, base)| time / base)
        };
        times.filter_map(ratio).collect()
    }

    /// The [`Self::pairs`]; `None` without any.
    pub(crate) fn ratios(&self, place: usize, base: usize) -> Option<Samples> {
        Samples::new(self.pairs(place, base))
    }

    /// Checks new places: no candidate is timed before its output is correct.
    pub(crate) fn check(&mut self, places: &[usize]) -> Result<(), Halt> {
        for place in places.iter().copied() {
            if !self.is_new(place) {
                continue;
            }
            self.ensure_budget()?;
            let candidate = self.series[place].candidate.clone();
            self.series[place].is_checked = true;
            self.notify(&candidate);
            if let Err(failure) = self.measurer.check(&candidate) {
                self.fail(place, failure)?;
            }
        }
        Ok(())
    }

    /// Takes one sample of each place, in a shuffled order, so that no candidate always follows the same one.
    pub(crate) fn round(&mut self, places: &[usize]) -> Result<(), Halt> {
        self.check(places)?;
        self.round += 1;
        let mut order = places.to_vec();
        // The same in every search, so that a search can be resumed.
        Rng::with_seed(self.round).shuffle(&mut order);
        for place in order {
            if !self.is_open(place) {
                continue;
            }
            if !self.series[place].is_warm {
                let Some(first) = self.sample(place, Portion::Sequence)? else { continue };
                if place == DEFAULT && first > SLOW_SAMPLE_NS {
                    self.effort = SamplingEffort::SLOW;
                }
                self.series[place].is_warm = true;
                if self.effort.keeps_first {
                    self.record(place, first);
                    continue;
                }
            }
            if let Some(time) = self.sample(place, Portion::Sequence)? {
                self.record(place, time);
            }
        }
        Ok(())
    }

    /// Whether other processes disturbed too many of the counted samples for a choice.
    pub(crate) fn is_disturbed(&self, place: usize) -> bool {
        let Series { disturbed, times, .. } = &self.series[place];
        *disturbed > count(times.len()) / MOST_DISTURBED
    }

    /// Counts a sample of an open place in this round.
    fn record(&mut self, place: usize, time: f64) {
        self.ranking.remove(&(self.median(place).to_bits(), place));
        let series = &mut self.series[place];
        series.times.push((self.round, time));
        match &mut series.samples {
            Some(samples) => samples.insert(time),
            none => *none = Samples::new([time]),
        }
        self.ranking.insert((self.median(place).to_bits(), place));
    }

    fn close(&mut self, place: usize, status: Status) {
        self.ranking.remove(&(self.median(place).to_bits(), place));
        self.series[place].status = status;
    }

    /// Repeats rounds until each open place has `samples` samples.
    pub(crate) fn rounds_up_to(&mut self, places: &[usize], samples: u64) -> Result<(), Halt> {
        let is_behind = |search: &Self, place: usize| {
            search.is_open(place) && count(search.series[place].times.len()) < samples
        };
        while places.iter().any(|place| is_behind(self, *place)) {
            self.round(places)?;
        }
        Ok(())
    }

    /// One time in nanoseconds at an unthrottled clock, on an undisturbed machine if possible; `None` if the candidate
    /// failed.
    pub(crate) fn sample(&mut self, place: usize, portion: Portion) -> Result<Option<f64>, Halt> {
        let candidate = self.series[place].candidate.clone();
        loop {
            self.ensure_budget()?;
            self.notify(&candidate);
            self.evaluations += 1;
            let sample = self.measurer.sample(&candidate, portion).and_then(Sample::checked);
            let Sample { time_ns, clock_mhz, disturbed } = match sample {
                Ok(sample) => sample,
                Err(failure) => return self.fail(place, failure).map(|()| None),
            };
            self.sampled_ns += time_ns + SAMPLE_NS;
            if let Some(pause) = self.throttle.pause(clock_mhz) {
                self.observer.throttled(pause);
            } else if !self.disturbance.discards(disturbed) {
                self.series[place].disturbed += u64::from(disturbed);
                return Ok(Some(time_ns));
            }
            self.discarded += 1;
        }
    }

    fn fail(&mut self, place: usize, failure: MeasureFailure) -> Result<(), Halt> {
        if failure.kind == FailureKind::Ended {
            self.ensure_budget()?;
            return Err(Halt::Failed(Error::ended(failure)));
        }
        self.close(place, Status::Failed(failure.clone()));
        if place == DEFAULT { Err(Halt::Failed(Error::of_default(failure))) } else { Ok(()) }
    }

    fn ensure_budget(&self) -> Result<(), Halt> {
        let is_over = self.budget.is_over(self.elapsed(), self.evaluations);
        if is_over { Err(Halt::Ended) } else { Ok(()) }
    }

    fn notify(&mut self, candidate: &Candidate) {
        let best = self.ranking.first().map(|(_, place)| (*place, self.median(*place)));
        let progress = SearchProgress {
            stage: self.stage,
            candidate,
            best: best.map(|(place, median)| (&self.series[place].candidate, median)),
            evaluations: self.evaluations,
            expected: self.expected.max(self.evaluations),
        };
        self.observer.progress(&progress);
    }
}

/// At most one disturbed sample in so many is an outlier like others.
const MOST_DISTURBED: u64 = 10;
/// A candidate this close to the limit of the device is good enough: a tie is 2 %.
const LIMIT_FACTOR: f64 = 1.03;
/// The overhead of a sample on a device: the cache is prepared, and the host waits.
const SAMPLE_NS: f64 = 1e6;
