//! Measures a workload in this process.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::candidate::{Candidate, LaunchConfig};
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::measure::{Clock, Measurer, Portion, Sample, Workload};
use crate::stats::{Samples, count};

/// Checks and times the candidates of a workload in this process.
///
/// Prepares each candidate at its first use. Warms up device, caches and clocks once, before the first
/// sample; a search itself drops the first sample of each candidate. After a
/// [fatal](FailureKind::is_fatal) failure every later request fails.
#[derive(Debug)]
pub struct InProcess<W, C> {
    workload: W,
    clock: C,
    prepared: HashSet<Candidate>,
    /// The ids of work that was sampled before.
    sampled: HashMap<(Candidate, Portion), u64>,
    is_warm: bool,
    /// The failure that made this process unusable.
    fatal: Option<MeasureFailure>,
}

impl<W: Workload, C: Clock> InProcess<W, C> {
    /// Measures `workload` with `clock`.
    #[must_use]
    pub fn new(workload: W, clock: C) -> Self {
        let (prepared, sampled) = (HashSet::new(), HashMap::new());
        Self { workload, clock, prepared, sampled, is_warm: false, fatal: None }
    }

    /// Prepares the candidate and calls `run`, unless an earlier failure was fatal. Asynchronous failures
    /// surface when all work is done, and override the result.
    fn run<T>(
        &mut self,
        candidate: &Candidate,
        run: impl FnOnce(&mut Self) -> Measured<T>,
    ) -> Measured<T> {
        if let Some(MeasureFailure { message, .. }) = &self.fatal {
            let message = format!("an earlier candidate broke the process: {message}");
            return Err(MeasureFailure::new(FailureKind::Crash, message));
        }
        let is_fatal = |failure: &MeasureFailure| failure.kind.is_fatal();
        let mut result = self.prepare(candidate).and_then(|()| run(self));
        if !result.as_ref().is_err_and(is_fatal)
            && let Err(failure) = self.clock.finish()
        {
            result = Err(failure);
        }
        self.fatal = result.as_ref().err().cloned().filter(is_fatal);
        result
    }

    fn prepare(&mut self, candidate: &Candidate) -> Measured<()> {
        if !self.prepared.contains(candidate) {
            self.workload.prepare(candidate)?;
            self.prepared.insert(candidate.clone());
        }
        Ok(())
    }
}

impl<W: Workload, C: Clock> Measurer for InProcess<W, C> {
    fn configurations(&mut self) -> Measured<Vec<LaunchConfig>> {
        self.workload.configurations()
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        self.run(candidate, |this| this.workload.check(candidate))
    }

    fn sample(&mut self, candidate: &Candidate, portion: Portion) -> Measured<Sample> {
        self.run(candidate, |Self { workload, clock, sampled, is_warm, .. }| {
            let next = count(sampled.len());
            let id = *sampled.entry((candidate.clone(), portion)).or_insert(next);
            let mut work = || workload.launch(candidate, portion);
            let mut sample = || {
                let sample = clock.sample(id, &mut work).and_then(Sample::checked)?;
                // A clock that yields to other processes does so after each run.
                clock.finish().map(|()| sample)
            };
            let (start, mut times_ns) = (Instant::now(), Vec::new());
            while !*is_warm {
                times_ns.push(sample()?.time_ns);
                *is_warm = start.elapsed() >= MAX_WARM_UP || is_stable(&times_ns);
            }
            sample()
        })
    }
}

/// Whether the medians of the last three successive groups of three runs differ by less than 2 %.
fn is_stable(times_ns: &[f64]) -> bool {
    let medians: Vec<f64> = times_ns.chunks_exact(GROUP).filter_map(median).collect();
    let Some(last) = medians.last_chunk::<GROUPS>() else { return false };
    let least = last.iter().copied().fold(f64::INFINITY, f64::min);
    last.iter().all(|median| *median < least * (1.0 + MAX_DIFFERENCE))
}

fn median(group: &[f64]) -> Option<f64> {
    Samples::new(group.iter().copied()).map(|samples| samples.median())
}

/// Runs per group: the median ignores a disturbed run.
const GROUP: usize = 3;
/// Successive medians that must agree, so that nine runs reveal a slow drift.
const GROUPS: usize = 3;
/// How far the medians may differ, relative to the least.
const MAX_DIFFERENCE: f64 = 0.02;
/// The longest warm-up. A device leaves its idle clocks within some tens of milliseconds.
const MAX_WARM_UP: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Work;

    /// Counts calls, and fails with the given failure.
    #[derive(Default)]
    struct Counting {
        prepared: u32,
        launched: u32,
        failure: Option<MeasureFailure>,
    }

    impl Workload for Counting {
        fn prepare(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
            self.prepared += 1;
            Ok(())
        }

        fn launch(&mut self, _: &Candidate, _: Portion) -> Result<(), MeasureFailure> {
            self.launched += 1;
            self.failure.clone().map_or(Ok(()), Err)
        }

        fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
            self.launch(candidate, Portion::Sequence)
        }
    }

    /// A clock that always measures the same time, and whose work ends with the given result.
    struct Scripted {
        time_ns: f64,
        end: Result<(), MeasureFailure>,
    }

    impl Clock for Scripted {
        fn sample(&mut self, _: u64, work: &mut Work<'_>) -> Result<Sample, MeasureFailure> {
            work()?;
            Ok(Sample { time_ns: self.time_ns, clock_mhz: None, disturbed: false })
        }

        fn finish(&mut self) -> Result<(), MeasureFailure> {
            self.end.clone()
        }
    }

    fn candidate(block_threads: u64) -> Candidate {
        Candidate { block_threads, ..Candidate::whole(Vec::new(), 1) }
    }

    fn measurer() -> InProcess<Counting, Scripted> {
        InProcess::new(Counting::default(), Scripted { time_ns: 10.0, end: Ok(()) })
    }

    #[test]
    fn each_candidate_is_prepared_once_and_the_warm_up_runs_once() {
        let mut measurer = measurer();
        let (one, other) = (candidate(32), candidate(64));
        measurer.check(&one).expect("correct");
        assert_eq!((measurer.workload.prepared, measurer.workload.launched), (1, 1));
        for _ in 0..2 {
            measurer.sample(&one, Portion::Sequence).expect("a sample");
        }
        assert_eq!((measurer.workload.prepared, measurer.workload.launched), (1, 1 + 9 + 2));
        measurer.sample(&one, Portion::LargestLaunch).expect("a sample");
        measurer.sample(&other, Portion::Sequence).expect("a sample, without a check before");
        assert_eq!((measurer.workload.prepared, measurer.workload.launched), (2, 12 + 1 + 1));
    }

    #[test]
    fn a_failure_at_the_end_of_the_work_overrides_the_result() {
        let mut measurer = measurer();
        measurer.workload.failure = Some(MeasureFailure::new(FailureKind::Mismatch, "wrong"));
        measurer.clock.end = Err(MeasureFailure::new(FailureKind::Crash, "illegal address"));
        let failure = measurer.check(&candidate(32)).expect_err("a crash");
        assert_eq!(
            (failure.kind, failure.message.as_str()),
            (FailureKind::Crash, "illegal address")
        );
    }

    #[test]
    fn nothing_runs_after_a_fatal_failure() {
        let mut measurer = measurer();
        measurer.workload.failure = Some(MeasureFailure::new(FailureKind::Timeout, "endless"));
        let failure = measurer.sample(&candidate(32), Portion::Sequence).expect_err("endless");
        assert_eq!((failure.kind, measurer.workload.launched), (FailureKind::Timeout, 1));
        measurer.workload.failure = None;
        let failure = measurer.check(&candidate(64)).expect_err("lost");
        assert_eq!((failure.kind, measurer.workload.launched), (FailureKind::Crash, 1));
        assert!(failure.message.ends_with("endless"), "{failure}");
    }

    fn warm_up_runs(times: impl IntoIterator<Item = f64>) -> usize {
        let mut taken = Vec::new();
        let goes_on = |time: &f64| {
            taken.push(*time);
            !is_stable(&taken)
        };
        times.into_iter().take_while(goes_on).count() + 1
    }

    #[test]
    fn stable_times_end_the_warm_up_after_nine_runs_and_a_drift_prolongs_it() {
        assert_eq!(warm_up_runs([10.0; 100]), 9);
        // One disturbed run of three.
        assert_eq!(warm_up_runs([10.0, 10.1, 90.0].into_iter().cycle().take(100)), 9);
        let falling = (0..20).map(|run| 300.0 - 10.0 * f64::from(run));
        let runs = warm_up_runs(falling.chain([100.0; 50]));
        assert!((27..=32).contains(&runs), "{runs}");
        assert!((0..50).all(|runs| !is_stable(&vec![f64::NAN; runs])));
    }
}
