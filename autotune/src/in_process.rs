//! The measurer of a workload in this process.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use crate::candidate::{Candidate, LaunchConfig};
use crate::clock::{Clock, WarmUp, WorkId};
use crate::measurer::{FailureKind, MeasureFailure, Measurer};
use crate::remote::ProblemMeasurer;
use crate::sample::{Portion, Sample};
use crate::workload::Workload;

/// Checks and times a workload's candidates here.
///
/// A candidate is prepared at its first use. Device, caches and clocks are warmed up once, before the
/// first samples of all; a candidate's own first sample is its tuner's to drop. A failure that is
/// fatal ([`FailureKind::is_fatal`]) is the answer to all that is asked after it.
#[derive(Debug)]
pub struct InProcess<W, C> {
    workload: W,
    clock: C,
    prepared: HashSet<Candidate>,
    /// What was sampled before.
    sampled: HashMap<(Candidate, Portion), WorkId>,
    is_warm: bool,
    /// The failure that this process did not outlive.
    lost: Option<MeasureFailure>,
}

impl<W: Workload, C: Clock> InProcess<W, C> {
    /// Measures `workload` by `clock`.
    #[must_use]
    pub fn new(workload: W, clock: C) -> Self {
        let (prepared, sampled) = (HashSet::new(), HashMap::new());
        Self { workload, clock, prepared, sampled, is_warm: false, lost: None }
    }

    /// Runs what may fail fatally. What an asynchronous failure leaves behind shows when all is
    /// done, and outweighs the answer that came before.
    fn run<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, MeasureFailure>,
    ) -> Result<T, MeasureFailure> {
        if let Some(MeasureFailure { message, .. }) = &self.lost {
            let message = format!("an earlier candidate took the process with it: {message}");
            return Err(MeasureFailure::new(FailureKind::Crash, message));
        }
        let mut answer = run(self);
        let is_fatal = |answer: &Result<T, MeasureFailure>| {
            answer.as_ref().err().filter(|failure| failure.kind.is_fatal()).cloned()
        };
        if is_fatal(&answer).is_none()
            && let Err(failure) = self.clock.finish()
        {
            answer = Err(failure);
        }
        self.lost = is_fatal(&answer);
        answer
    }

    fn prepare(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        if !self.prepared.contains(candidate) {
            self.workload.prepare(candidate)?;
            self.prepared.insert(candidate.clone());
        }
        Ok(())
    }

    fn id_of(&mut self, candidate: &Candidate, portion: Portion) -> WorkId {
        let next = WorkId(u64::try_from(self.sampled.len()).unwrap_or(u64::MAX));
        *self.sampled.entry((candidate.clone(), portion)).or_insert(next)
    }

    fn warm_up(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure> {
        let id = self.id_of(candidate, portion);
        let (start, mut warm_up) = (Instant::now(), WarmUp::new());
        while !self.is_warm {
            let sample = self.sample_once(id, candidate, portion)?;
            self.is_warm = !warm_up.goes_on(sample.time_ns, start.elapsed());
        }
        Ok(())
    }

    fn sample_once(
        &mut self,
        id: WorkId,
        candidate: &Candidate,
        portion: Portion,
    ) -> Result<Sample, MeasureFailure> {
        let Self { workload, clock, .. } = self;
        let sample = clock.sample(id, &mut || workload.launch(candidate, portion))?;
        if sample.time_ns.is_finite() && sample.time_ns > 0.0 {
            return Ok(sample);
        }
        let message = format!("{} ns are no time: is there anything to launch?", sample.time_ns);
        Err(MeasureFailure::new(FailureKind::Launch, message))
    }
}

impl<W: Workload, C: Clock> Measurer for InProcess<W, C> {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.run(|this| {
            this.prepare(candidate)?;
            this.workload.check(candidate)
        })
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
        count: u32,
    ) -> Result<Vec<Sample>, MeasureFailure> {
        self.run(|this| {
            this.prepare(candidate)?;
            this.warm_up(candidate, portion)?;
            let id = this.id_of(candidate, portion);
            (0..count).map(|_| this.sample_once(id, candidate, portion)).collect()
        })
    }
}

impl<W: Workload, C: Clock> ProblemMeasurer for InProcess<W, C> {
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
        self.workload.configurations()
    }
}

#[cfg(test)]
mod tests {
    use gridguard::Strategy;
    use gridguard::profile::StoredChoice;

    use super::*;

    /// Counts what is asked of it, and fails as it is told.
    #[derive(Default)]
    struct Counting {
        prepared: u32,
        launched: u32,
        failure: Option<MeasureFailure>,
    }

    impl Workload for Counting {
        fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
            Ok(Vec::new())
        }

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

    /// A clock that gives the same time always, and of which work ends as it is told.
    struct Scripted {
        time_ns: f64,
        end: Result<(), MeasureFailure>,
    }

    impl Clock for Scripted {
        fn sample(
            &mut self,
            _: WorkId,
            work: &mut dyn FnMut() -> Result<(), MeasureFailure>,
        ) -> Result<Sample, MeasureFailure> {
            work()?;
            Ok(Sample { time_ns: self.time_ns, clock_mhz: None })
        }

        fn finish(&mut self) -> Result<(), MeasureFailure> {
            self.end.clone()
        }
    }

    fn candidate(block_threads: u64) -> Candidate {
        Candidate {
            parameters: Vec::new(),
            choice: StoredChoice::Automatic,
            strategy: Strategy::Whole,
            launches: 1,
            largest_chunk: 1,
            block_threads,
        }
    }

    fn measurer() -> InProcess<Counting, Scripted> {
        InProcess::new(Counting::default(), Scripted { time_ns: 10.0, end: Ok(()) })
    }

    #[test]
    fn a_candidate_is_prepared_once_and_the_first_one_warms_up_for_all() {
        let mut measurer = measurer();
        let (one, other) = (candidate(32), candidate(64));
        measurer.check(&one).expect("right");
        assert_eq!((measurer.workload.prepared, measurer.workload.launched), (1, 1));
        for _ in 0..2 {
            let samples = measurer.sample(&one, Portion::Sequence, 5).expect("samples");
            assert_eq!(samples.len(), 5);
        }
        assert_eq!((measurer.workload.prepared, measurer.workload.launched), (1, 1 + 9 + 10));
        measurer.sample(&one, Portion::LargestLaunch, 1).expect("samples");
        measurer.sample(&other, Portion::Sequence, 1).expect("samples, without a check before");
        assert_eq!((measurer.workload.prepared, measurer.workload.launched), (2, 20 + 1 + 1));
    }

    #[test]
    fn what_shows_when_all_is_done_outweighs_the_answer() {
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
    fn after_a_fatal_failure_nothing_is_run_any_more() {
        let mut measurer = measurer();
        measurer.workload.failure = Some(MeasureFailure::new(FailureKind::Timeout, "endless"));
        let failure = measurer.sample(&candidate(32), Portion::Sequence, 3).expect_err("endless");
        assert_eq!((failure.kind, measurer.workload.launched), (FailureKind::Timeout, 1));
        measurer.workload.failure = None;
        let failure = measurer.check(&candidate(64)).expect_err("lost");
        assert_eq!((failure.kind, measurer.workload.launched), (FailureKind::Crash, 1));
        assert!(failure.message.ends_with("endless"), "{failure}");
    }

    #[test]
    fn a_failure_that_is_not_fatal_leaves_the_others_alone() {
        let mut measurer = measurer();
        measurer.workload.failure = Some(MeasureFailure::new(FailureKind::Mismatch, "wrong"));
        measurer.check(&candidate(32)).expect_err("wrong");
        measurer.workload.failure = None;
        measurer.check(&candidate(64)).expect("right");
    }

    #[test]
    fn work_that_takes_no_time_has_no_samples() {
        for time_ns in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let mut measurer = measurer();
            measurer.clock.time_ns = time_ns;
            let failure = measurer.sample(&candidate(32), Portion::Sequence, 1).expect_err("none");
            assert_eq!(failure.kind, FailureKind::Launch, "{time_ns}");
        }
    }
}
