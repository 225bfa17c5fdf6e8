//! Everything a measurer answered, in order, so that an unfinished search can go on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::BufRead;

use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::measurer::{MeasureFailure, Measurer};
use crate::number::position;
use crate::sample::{Portion, Sample};

/// One answer of a measurer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum JournalRecord {
    /// A candidate was checked.
    Check {
        /// Which.
        candidate: Candidate,
        /// Why it is out, if it is.
        failure: Option<MeasureFailure>,
    },
    /// A candidate was timed.
    Samples {
        /// Which.
        candidate: Candidate,
        /// What of it.
        portion: Portion,
        /// The times.
        samples: Vec<Sample>,
    },
    /// A candidate could not be timed.
    Failure {
        /// Which.
        candidate: Candidate,
        /// What of it.
        portion: Portion,
        /// Why.
        failure: MeasureFailure,
    },
}

/// What a measurer answered for one problem on one device, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// What was measured, and where: answers for something else are worth nothing.
    pub problem: String,
    /// The answers.
    pub records: Vec<JournalRecord>,
}

impl Journal {
    /// Reads JSON lines: what was measured, then a record each, up to the line that was being written
    /// when all ended. `None` where the first line is none.
    pub fn read_lines(input: impl BufRead) -> Option<Self> {
        let mut lines = input.lines();
        let problem = serde_json::from_str(&lines.next()?.ok()?).ok()?;
        let record = |line: std::io::Result<String>| serde_json::from_str(&line.ok()?).ok();
        Some(Self { problem, records: lines.map_while(record).collect() })
    }
}

/// A measurer that answers from a journal as long as it can, then goes on by itself.
///
/// A search is a function of the answers it gets, so it resumes where it was interrupted. A candidate
/// that failed, perhaps together with its process, is not run again.
pub struct Resumed<M> {
    measurer: M,
    journal: Journal,
    checks: BTreeMap<Candidate, Result<(), MeasureFailure>>,
    times: BTreeMap<(Candidate, Portion), VecDeque<Result<Sample, MeasureFailure>>>,
    /// Candidates that the measurer itself has checked.
    live: BTreeSet<Candidate>,
    on_record: Box<dyn FnMut(&Journal) + Send>,
}

impl<M: Measurer> Resumed<M> {
    /// Answers from `journal` first; an empty one is a new search.
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
                    times
                        .entry((candidate, portion))
                        .or_default()
                        .extend(samples.into_iter().map(Ok));
                }
                JournalRecord::Failure { candidate, portion, failure } => {
                    times.entry((candidate, portion)).or_default().push_back(Err(failure));
                }
            }
        }
        let live = BTreeSet::new();
        Self { measurer, journal, checks, times, live, on_record: Box::new(|_| {}) }
    }

    /// Calls `on_record` after each new answer, the last record of the journal: to keep it on disk.
    #[must_use]
    pub fn on_record(mut self, on_record: impl FnMut(&Journal) + Send + 'static) -> Self {
        self.on_record = Box::new(on_record);
        self
    }

    /// All answers so far.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// All answers, and the measurer.
    #[must_use]
    pub fn into_parts(self) -> (M, Journal) {
        (self.measurer, self.journal)
    }

    fn record(&mut self, record: JournalRecord) {
        self.journal.records.push(record);
        (self.on_record)(&self.journal);
    }

    fn recorded(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
        count: u32,
    ) -> Result<Vec<Sample>, MeasureFailure> {
        let mut answers = Vec::new();
        if let Some(times) = self.times.get_mut(&(candidate.clone(), portion)) {
            while answers.len() < position(count.into()) {
                match times.front() {
                    None => break,
                    // Whoever failed once fails ever after.
                    Some(Err(failure)) => return Err(failure.clone()),
                    Some(Ok(sample)) => answers.push(*sample),
                }
                times.pop_front();
            }
        }
        Ok(answers)
    }
}

impl<M: Measurer> Measurer for Resumed<M> {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        if let Some(known) = self.checks.get(candidate) {
            return known.clone();
        }
        let answer = self.measurer.check(candidate);
        self.live.insert(candidate.clone());
        let failure = answer.as_ref().err().cloned();
        self.record(JournalRecord::Check { candidate: candidate.clone(), failure });
        answer
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
        count: u32,
    ) -> Result<Vec<Sample>, MeasureFailure> {
        let mut samples = self.recorded(candidate, portion, count)?;
        let left = position(count.into()).saturating_sub(samples.len());
        let Some(left) = u32::try_from(left).ok().filter(|left| *left > 0) else {
            return Ok(samples);
        };
        let candidate = candidate.clone();
        // One that passed before is checked again before it is timed: it has to be prepared, and a
        // kernel that was right then has to be right now.
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
                let record =
                    JournalRecord::Failure { candidate, portion, failure: failure.clone() };
                self.record(record);
                Err(failure)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::{Simulated, ordinary, throughput};
    use crate::{Budget, tune};
    use gridguard::profile::Objective;

    #[test]
    fn an_interrupted_search_goes_on_where_it_was() {
        for (seed, space, nature) in ordinary(0..12) {
            let simulated = Simulated::new(nature, seed);
            let mut whole = Resumed::new(simulated.clone(), Journal::default());
            let expected = throughput(&space, &mut whole);
            let all = whole.journal().clone();

            let stop_after = 1 + seed * 13 % expected.evaluations;
            let budget = Budget { evaluations: Some(stop_after), ..Budget::default() };
            let mut first = Resumed::new(simulated, Journal::default());
            let cut = tune(&mut first, &mut space.clone(), Objective::Throughput, &budget, &mut ())
                .expect("what is known");
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
