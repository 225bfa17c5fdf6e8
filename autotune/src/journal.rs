//! A journal of all measurements, from which an unfinished search can resume.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::BufRead;

use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::failure::MeasureFailure;
use crate::measure::{Measurer, Portion, Sample};
use crate::stats::position;

/// One result of a measurer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum JournalRecord {
    /// A candidate was checked.
    Check {
        /// The candidate.
        candidate: Candidate,
        /// Why it is out, if it is.
        failure: Option<MeasureFailure>,
    },
    /// A candidate was timed.
    Samples {
        /// The candidate.
        candidate: Candidate,
        /// Which of its launches.
        portion: Portion,
        /// The times.
        samples: Vec<Sample>,
    },
    /// A candidate could not be timed.
    Failure {
        /// The candidate.
        candidate: Candidate,
        /// Which of its launches.
        portion: Portion,
        /// Why.
        failure: MeasureFailure,
    },
}

/// The results of a measurer for one problem on one device, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// What was measured, and where; a journal of another problem must not be used.
    pub problem: String,
    /// The results.
    pub records: Vec<JournalRecord>,
}

impl Journal {
    /// Reads JSON lines: the problem, then one record a line, up to the first invalid line, such as
    /// one that was cut off. `None` if the first line is invalid.
    pub fn read_lines(input: impl BufRead) -> Option<Self> {
        let mut lines = input.lines();
        let problem = serde_json::from_str(&lines.next()?.ok()?).ok()?;
        let record = |line: std::io::Result<String>| serde_json::from_str(&line.ok()?).ok();
        Some(Self { problem, records: lines.map_while(record).collect() })
    }
}

/// A measurer that replays a journal as far as it goes, then measures.
///
/// A search depends only on the results that it gets, so it resumes where it was interrupted. A
/// candidate that failed, perhaps together with its process, is not run again.
pub struct Resumed<M> {
    measurer: M,
    journal: Journal,
    checks: BTreeMap<Candidate, Result<(), MeasureFailure>>,
    times: BTreeMap<(Candidate, Portion), VecDeque<Result<Sample, MeasureFailure>>>,
    /// Candidates that this measurer has checked itself.
    live: BTreeSet<Candidate>,
    on_record: Box<dyn FnMut(&Journal) + Send>,
}

impl<M: Measurer> Resumed<M> {
    /// Replays `journal` first; an empty one starts a new search.
    #[must_use]
    pub fn new(measurer: M, journal: Journal) -> Self {
        let mut checks = BTreeMap::new();
        let mut times: BTreeMap<_, VecDeque<_>> = BTreeMap::new();
        for record in journal.records.iter().cloned() {
            match record {
                JournalRecord::Check { candidate, failure } => {
                    checks.insert(candidate, failure.map_or(Ok(()), Err));
                }
                JournalRecord::Samples { candidate, portion, samples } => {
                    let taken = times.entry((candidate, portion)).or_default();
                    taken.extend(samples.into_iter().map(Ok));
                }
                JournalRecord::Failure { candidate, portion, failure } => {
                    times.entry((candidate, portion)).or_default().push_back(Err(failure));
                }
            }
        }
        let live = BTreeSet::new();
        Self { measurer, journal, checks, times, live, on_record: Box::new(|_| {}) }
    }

    /// Calls `on_record` after each new record, which is the journal's last: to write it to disk.
    #[must_use]
    pub fn on_record(mut self, on_record: impl FnMut(&Journal) + Send + 'static) -> Self {
        self.on_record = Box::new(on_record);
        self
    }

    /// All results so far.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The measurer and all results.
    #[must_use]
    pub fn into_parts(self) -> (M, Journal) {
        (self.measurer, self.journal)
    }

    fn record(&mut self, record: JournalRecord) {
        self.journal.records.push(record);
        (self.on_record)(&self.journal);
    }

    /// Up to `count` samples from the journal; the failure that comes before them.
    fn replay(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
        count: u32,
    ) -> Result<Vec<Sample>, MeasureFailure> {
        let mut samples = Vec::new();
        if let Some(times) = self.times.get_mut(&(candidate.clone(), portion)) {
            while samples.len() < position(count.into()) {
                match times.front() {
                    None => break,
                    // It stays in front: a candidate that failed once is never run again.
                    Some(Err(failure)) => return Err(failure.clone()),
                    Some(Ok(sample)) => samples.push(*sample),
                }
                times.pop_front();
            }
        }
        Ok(samples)
    }
}

impl<M: Measurer> Measurer for Resumed<M> {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        if let Some(known) = self.checks.get(candidate) {
            return known.clone();
        }
        let result = self.measurer.check(candidate);
        self.live.insert(candidate.clone());
        let failure = result.as_ref().err().cloned();
        self.record(JournalRecord::Check { candidate: candidate.clone(), failure });
        result
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
        count: u32,
    ) -> Result<Vec<Sample>, MeasureFailure> {
        let mut samples = self.replay(candidate, portion, count)?;
        let left = count.saturating_sub(u32::try_from(samples.len()).unwrap_or(u32::MAX));
        if left == 0 {
            return Ok(samples);
        }
        let candidate = candidate.clone();
        // A check that was replayed is repeated before the first new sample: the candidate has to
        // be prepared, and its output must still be correct.
        let checked = match self.live.insert(candidate.clone()) {
            true => self.measurer.check(&candidate),
            false => Ok(()),
        };
        match checked.and_then(|()| self.measurer.sample(&candidate, portion, left)) {
            Ok(live) => {
                self.record(JournalRecord::Samples { candidate, portion, samples: live.clone() });
                samples.extend(live);
                Ok(samples)
            }
            Err(failure) => {
                let recorded = failure.clone();
                self.record(JournalRecord::Failure { candidate, portion, failure: recorded });
                Err(failure)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::simulation::{Simulated, ordinary, throughput};
    use crate::{Budget, tune};
    use gridguard::profile::Objective;

    #[test]
    fn an_interrupted_search_resumes_where_it_was() {
        for (seed, space, nature) in ordinary(0..12) {
            let simulated = Simulated::new(nature, seed);
            let mut whole = Resumed::new(simulated.clone(), Journal::default());
            let expected = throughput(&space, &mut whole);
            let all = whole.journal().clone();

            let stop_after = 1 + seed * 13 % expected.evaluations;
            let budget = Budget { evaluations: Some(stop_after), ..Budget::default() };
            let mut first = Resumed::new(simulated, Journal::default());
            let cut = tune(&mut first, &mut space.clone(), Objective::Throughput, &budget, &mut ())
                .expect("an outcome");
            assert!(!cut.complete);
            assert_eq!(cut.evaluations, stop_after);

            let (simulated, journal) = first.into_parts();
            let written = ron::to_string(&journal).expect("serialises");
            let read: Journal = ron::from_str(&written).expect("reads");
            let mut second = Resumed::new(simulated, read);
            let resumed = throughput(&space, &mut second);
            assert_eq!(resumed.winner, expected.winner);
            assert_eq!(resumed.candidates, expected.candidates);
            assert_eq!(second.journal(), &all);
        }
    }
}
