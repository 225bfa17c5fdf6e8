//! A journal of all measurements, from which an unfinished search can resume.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufRead};

use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::failure::MeasureFailure;
use crate::measure::{Measurer, Portion, Sample};

/// One result of a measurer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum JournalRecord {
    /// A candidate was checked.
    Check {
        /// The candidate.
        candidate: Candidate,
        /// Whether its output is correct.
        result: Result<(), MeasureFailure>,
    },
    /// A candidate was timed.
    Sample {
        /// The candidate.
        candidate: Candidate,
        /// Which of its launches.
        portion: Portion,
        /// The time.
        result: Result<Sample, MeasureFailure>,
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
        let record = |line: io::Result<String>| serde_json::from_str(&line.ok()?).ok();
        Some(Self { problem, records: lines.map_while(record).collect() })
    }

    /// The JSON lines that [`Self::read_lines`] reads.
    ///
    /// # Errors
    ///
    /// [`serde_json::Error`], which no content of a journal causes.
    pub fn to_lines(&self) -> serde_json::Result<String> {
        let mut lines = serde_json::to_string(&self.problem)? + "\n";
        for record in &self.records {
            lines += &(serde_json::to_string(record)? + "\n");
        }
        Ok(lines)
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
    samples: BTreeMap<(Candidate, Portion), VecDeque<Result<Sample, MeasureFailure>>>,
    /// Candidates that this measurer has checked itself.
    live: BTreeSet<Candidate>,
    on_record: Box<dyn FnMut(&JournalRecord) + Send>,
}

impl<M: Measurer> Resumed<M> {
    /// Replays `journal` first; an empty one starts a new search.
    #[must_use]
    pub fn new(measurer: M, journal: Journal) -> Self {
        let mut checks = BTreeMap::new();
        let mut samples: BTreeMap<_, VecDeque<_>> = BTreeMap::new();
        for record in journal.records.iter().cloned() {
            match record {
                JournalRecord::Check { candidate, result } => {
                    checks.insert(candidate, result);
                }
                JournalRecord::Sample { candidate, portion, result } => {
                    samples.entry((candidate, portion)).or_default().push_back(result);
                }
            }
        }
        let live = BTreeSet::new();
        Self { measurer, journal, checks, samples, live, on_record: Box::new(|_| {}) }
    }

    /// Calls `on_record` with each new record: to write it to disk.
    #[must_use]
    pub fn on_record(mut self, on_record: impl FnMut(&JournalRecord) + Send + 'static) -> Self {
        self.on_record = Box::new(on_record);
        self
    }

    /// The measurer and all results.
    #[must_use]
    pub fn into_parts(self) -> (M, Journal) {
        (self.measurer, self.journal)
    }

    fn record(&mut self, record: JournalRecord) {
        (self.on_record)(&record);
        self.journal.records.push(record);
    }

    /// The next sample in the journal, or the failure that comes before it.
    fn replay(&mut self, of: &(Candidate, Portion)) -> Option<Result<Sample, MeasureFailure>> {
        let samples = self.samples.get_mut(of)?;
        match samples.front() {
            // It stays in front: a candidate that failed once is never run again.
            Some(Err(failure)) => Some(Err(failure.clone())),
            _ => samples.pop_front(),
        }
    }
}

impl<M: Measurer> Measurer for Resumed<M> {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        if let Some(known) = self.checks.get(candidate) {
            return known.clone();
        }
        let (candidate, result) = (candidate.clone(), self.measurer.check(candidate));
        self.live.insert(candidate.clone());
        self.record(JournalRecord::Check { candidate, result: result.clone() });
        result
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
    ) -> Result<Sample, MeasureFailure> {
        if let Some(known) = self.replay(&(candidate.clone(), portion)) {
            return known;
        }
        let candidate = candidate.clone();
        // A check that was replayed is repeated before the first new sample: the candidate has to
        // be prepared, and its output must still be correct.
        let checked = match self.live.insert(candidate.clone()) {
            true => self.measurer.check(&candidate),
            false => Ok(()),
        };
        let result = checked.and_then(|()| self.measurer.sample(&candidate, portion));
        self.record(JournalRecord::Sample { candidate, portion, result: result.clone() });
        result
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
            let (_, all) = whole.into_parts();

            let stop_after = 1 + seed * 13 % expected.evaluations;
            let budget = Budget { evaluations: Some(stop_after), ..Budget::default() };
            let mut first = Resumed::new(simulated, Journal::default());
            let cut = tune(&mut first, &mut space.clone(), Objective::Throughput, &budget, &mut ())
                .expect("an outcome");
            assert!(!cut.complete);
            assert_eq!(cut.evaluations, stop_after);

            let (simulated, journal) = first.into_parts();
            let written = journal.to_lines().expect("finite");
            let read = Journal::read_lines(written.as_bytes()).expect("a journal");
            let mut second = Resumed::new(simulated, read);
            let resumed = throughput(&space, &mut second);
            assert_eq!(resumed.winner, expected.winner);
            assert_eq!(resumed.candidates, expected.candidates);
            assert_eq!(second.into_parts().1, all);
        }
    }
}
