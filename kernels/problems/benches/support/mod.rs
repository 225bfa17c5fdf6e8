//! What the benches share: which cases run, how they are timed, and where the results go.
//!
//! `GRIDGUARD_BENCH_JSON=FILE` appends one JSON line per case to FILE, in addition to criterion's report.
#![allow(dead_code, reason = "each bench uses a part of it")]

mod device;
mod journal;
mod limit;
mod selection;

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkGroup, Criterion, SamplingMode, Throughput, measurement::WallTime};
use gridguard_kernels::{Deviation, ElementType};
use gridguard_problems::Traffic;

pub(crate) use device::Device;
use journal::{Journal, Sample, median};
use selection::Selection;

/// Chosen so that all cases of attention fit into 100 seconds.
const SAMPLES: usize = 20;
const WARM_UP: Duration = Duration::from_millis(300);
const MEASUREMENT: Duration = Duration::from_millis(800);
/// Criterion's default of 100,000 takes longer than the measurement itself.
const RESAMPLES: usize = 10_000;
/// The time reported to criterion for a failed measurement.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a case cannot be measured.
pub(crate) type Failure = Box<dyn Error>;

/// One figure to measure.
pub(crate) struct Case {
    /// The operation, which is criterion's group.
    pub(crate) operation: &'static str,
    pub(crate) shape: String,
    pub(crate) element: ElementType,
    /// The implementation, such as `ours` or `limit`.
    pub(crate) name: &'static str,
    /// What any implementation must move.
    pub(crate) traffic: Traffic,
}

impl Case {
    fn name_in_group(&self) -> String {
        format!("{}/{}/{}", self.shape, self.element, self.name)
    }

    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.operation, self.name_in_group())
    }
}

/// Repeatable work; times any number of repetitions.
pub(crate) struct Repeated<'a> {
    time: Box<dyn FnMut(u64) -> Result<Duration, Failure> + 'a>,
    error: Option<f64>,
    by: Option<String>,
}

impl<'a> Repeated<'a> {
    pub(crate) fn new(time: impl FnMut(u64) -> Result<Duration, Failure> + 'a) -> Self {
        Self { time: Box::new(time), error: None, by: None }
    }

    /// Work on the host.
    pub(crate) fn on_host<R>(mut work: impl FnMut() -> R + 'a) -> Self {
        Self::new(move |repetitions| {
            let start = Instant::now();
            for _ in 0..repetitions {
                black_box(work());
            }
            Ok(start.elapsed())
        })
    }

    pub(crate) fn time(&mut self, repetitions: u64) -> Result<Duration, Failure> {
        (self.time)(repetitions)
    }

    /// Adds what does the work, or where its memory lies, if that was chosen.
    pub(crate) fn made_by(mut self, name: String) -> Self {
        self.by = Some(name);
        self
    }

    /// Adds the relative error of the result, determined before anything is timed.
    pub(crate) fn with_error(mut self, error: f64) -> Self {
        self.error = Some(error);
        self
    }
}

/// The cases of one executable.
pub(crate) struct Bench {
    criterion: Criterion,
    selection: Selection,
    journal: Journal,
}

impl Bench {
    /// Configured by the command line, in criterion's syntax.
    pub(crate) fn new() -> Self {
        let criterion = Criterion::default()
            .sample_size(SAMPLES)
            .warm_up_time(WARM_UP)
            .measurement_time(MEASUREMENT)
            .nresamples(RESAMPLES)
            .without_plots()
            .configure_from_args();
        Self { criterion, selection: Selection::from_args(), journal: Journal::from_environment() }
    }

    /// Measures a case, unless the arguments exclude it. `prepare` allocates; its result is dropped
    /// before the next case.
    pub(crate) fn measure<'a>(
        &mut self,
        case: &Case,
        prepare: impl FnOnce() -> Result<Repeated<'a>, Failure>,
    ) {
        if self.selection.lists() {
            self.group(case).bench_function(case.name_in_group(), |_| {});
            return;
        }
        if !self.selection.takes(&case.id()) {
            return;
        }
        let mut repeated = match prepare() {
            Ok(repeated) => repeated,
            Err(reason) => return skipped(case, &reason),
        };
        let mut samples: Vec<Sample> = Vec::new();
        let mut failure = None;
        self.group(case).bench_function(case.name_in_group(), |bencher| {
            bencher.iter_custom(|repetitions| match (repeated.time)(repetitions) {
                Ok(total) => {
                    samples.push(Sample { repetitions, total });
                    total
                }
                Err(reason) => {
                    failure = Some(reason);
                    std::thread::sleep(PAUSE);
                    PAUSE
                }
            });
        });
        match failure {
            Some(reason) => eprintln!("{} failed, its figures above are void: {reason}", case.id()),
            None if self.selection.measures() => {
                self.journal.add(case, &samples, repeated.error, repeated.by.as_deref());
            }
            None => {}
        }
    }

    /// Reports the median of the ratios that `prepare` measures, of two alternatives in one run.
    pub(crate) fn compare(
        &mut self,
        case: &Case,
        prepare: impl FnOnce() -> Result<Vec<f64>, Failure>,
    ) {
        if !self.selection.measures() || !self.selection.takes(&case.id()) {
            return;
        }
        match prepare() {
            Ok(ratios) => {
                let (rounds, ratio) = (ratios.len(), median(ratios));
                println!("{}: {ratio:.4}, median of {rounds} rounds\n", case.id());
                self.journal.add_ratio(case, ratio, rounds);
            }
            Err(reason) => skipped(case, &reason),
        }
    }

    /// Prints criterion's summary.
    pub(crate) fn finish(&self) {
        if self.selection.measures() {
            self.criterion.final_summary();
        }
    }

    fn group(&mut self, case: &Case) -> BenchmarkGroup<'_, WallTime> {
        let mut group = self.criterion.benchmark_group(case.operation);
        // Every sample has the same number of launches, so that samples are comparable.
        group.sampling_mode(SamplingMode::Flat);
        group
            .throughput(Throughput::Bytes(u64::try_from(case.traffic.total()).unwrap_or(u64::MAX)));
        group
    }
}

fn skipped(case: &Case, reason: &Failure) {
    eprintln!("{} was skipped: {reason}", case.id());
}

/// The relative error of a result, if it is within the tolerance.
pub(crate) fn within(deviation: &Deviation, tolerance: f64) -> Result<f64, Failure> {
    let error = deviation.relative();
    if deviation.within(tolerance) {
        return Ok(error);
    }
    Err(format!("the relative error is {error:e}, the tolerance {tolerance:e}").into())
}
