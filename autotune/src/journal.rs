//! A journal of all measurements, so that an interrupted search can resume.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::candidate::Candidate;
use crate::error::{Error, ErrorKind};
use crate::failure::{FailureKind, Measured};
use crate::lines::{read_line, write_line};
use crate::measure::{Measurer, Portion, Sample};
use crate::stats::count;

/// One result of a measurer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum JournalRecord {
    /// A candidate was checked.
    Check {
        /// The candidate.
        candidate: Candidate,
        /// Whether its output is correct.
        result: Measured<()>,
    },
    /// A candidate was timed.
    Sample {
        /// The candidate.
        candidate: Candidate,
        /// Which of its launches.
        portion: Portion,
        /// The time.
        result: Measured<Sample>,
    },
}

/// The results of a measurer for one subject, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    /// Everything that the results depend on, by name: the problem, the candidates, the device, the versions
    /// of driver, compiler and tuner.
    pub subject: BTreeMap<String, String>,
    /// The results.
    pub records: Vec<JournalRecord>,
}

impl Journal {
    /// Reads JSON lines: a header, then one record a line. Ignores an incomplete last line, which was being
    /// written when the tuner was killed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Journal`].
    pub fn read_lines(mut input: impl BufRead) -> Result<Self, Error> {
        let mut next = || match read_line(&mut input, MAX_LINE_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(refused(error.to_string())),
            Ok(line) => Ok(line),
        };
        let no_header = || refused("it does not begin with the header of a journal");
        let header = next()?.and_then(|line| serde_json::from_str::<Value>(&line).ok());
        let header = header.ok_or_else(no_header)?;
        match header["format"].as_u64() {
            Some(JOURNAL_FORMAT) => {}
            Some(found) => {
                return Err(refused(format!(
                    "it has the format {found}, this version reads {JOURNAL_FORMAT}"
                )));
            }
            None => return Err(no_header()),
        }
        let subject = BTreeMap::deserialize(&header["subject"]);
        let subject = subject.map_err(|_| no_header())?;
        let mut records = Vec::new();
        while let Some(text) = next()? {
            let line = count(records.len()).saturating_add(2);
            let record = serde_json::from_str(&text);
            records.push(record.map_err(Error::with(ErrorKind::Journal, &format!("line {line}")))?);
        }
        Ok(Self { subject, records })
    }

    /// Writes the JSON lines that [`Self::read_lines`] reads.
    ///
    /// # Errors
    ///
    /// [`io::Error`] of the output, or if a line would be too long to be read.
    pub fn write_lines(&self, output: &mut impl Write) -> io::Result<()> {
        let header = json!({ "format": JOURNAL_FORMAT, "subject": self.subject });
        write_line(output, &header, MAX_LINE_BYTES)?;
        self.records.iter().try_for_each(|record| record.write_line(output))
    }

    /// Replaces the whole file at `path`, so that a crash loses no earlier records, and opens it for new ones.
    ///
    /// # Errors
    ///
    /// As [`Self::write_lines`], and [`io::Error`] of the file system.
    pub fn rewrite(&self, path: &Path) -> io::Result<File> {
        let mut lines = Vec::new();
        self.write_lines(&mut lines)?;
        gridguard_files::publish(path, &lines)?;
        gridguard_files::append(path)
    }

    /// Checks that a search of subject `now` can resume from these results.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Journal`] with the first difference.
    pub fn check_subject(&self, now: &BTreeMap<String, String>) -> Result<(), Error> {
        let names = self.subject.keys().chain(now.keys());
        let value = |of: &BTreeMap<String, String>, name| of.get(name).cloned().unwrap_or_default();
        for name in names {
            let (journal, now) = (value(&self.subject, name), value(now, name));
            if journal != now {
                return Err(refused(format!("its {name} is {journal:?}, this is {now:?}")));
            }
        }
        Ok(())
    }
}

impl JournalRecord {
    /// Appends the record to the lines of a journal.
    ///
    /// # Errors
    ///
    /// As [`Journal::write_lines`].
    pub fn write_line(&self, output: &mut impl Write) -> io::Result<()> {
        write_line(output, self, MAX_LINE_BYTES)
    }
}

/// The format of journals. Format 1 had no header, driver or compiler.
const JOURNAL_FORMAT: u64 = 2;
/// The longest line: a header with thousands of candidates, each with some parameters.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// A measurer that replays a journal, then measures.
///
/// A search depends only on the results that it gets, so it resumes where it was interrupted. A candidate
/// that failed is not run again.
pub struct Resumed<M> {
    measurer: M,
    journal: Journal,
    checks: BTreeMap<Candidate, Measured<()>>,
    samples: BTreeMap<(Candidate, Portion), VecDeque<Measured<Sample>>>,
    /// Candidates that this process has checked.
    live: BTreeSet<Candidate>,
    on_record: Box<dyn FnMut(&JournalRecord) + Send>,
}

impl<M: Measurer> Resumed<M> {
    /// Replays `journal` first. An empty journal starts a new search.
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

    /// Calls `on_record` with each new record, for example to write it to disk.
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

    /// Appends a result, unless measuring has ended: the next run can measure that candidate.
    fn record(&mut self, record: JournalRecord) {
        let failure = match &record {
            JournalRecord::Check { result, .. } => result.as_ref().err(),
            JournalRecord::Sample { result, .. } => result.as_ref().err(),
        };
        if failure.is_some_and(|failure| failure.kind == FailureKind::Ended) {
            return;
        }
        (self.on_record)(&record);
        self.journal.records.push(record);
    }

    /// The next sample in the journal, or the failure that comes before it.
    fn replay(&mut self, of: &(Candidate, Portion)) -> Option<Measured<Sample>> {
        let samples = self.samples.get_mut(of)?;
        match samples.front() {
            // It stays in front: a failed candidate never runs again.
            Some(Err(failure)) => Some(Err(failure.clone())),
            _ => samples.pop_front(),
        }
    }
}

impl<M: Measurer> Measurer for Resumed<M> {
    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        if let Some(known) = self.checks.get(candidate) {
            return known.clone();
        }
        let (candidate, result) = (candidate.clone(), self.measurer.check(candidate));
        self.live.insert(candidate.clone());
        self.record(JournalRecord::Check { candidate, result: result.clone() });
        result
    }

    fn sample(&mut self, candidate: &Candidate, portion: Portion) -> Measured<Sample> {
        if let Some(known) = self.replay(&(candidate.clone(), portion)) {
            return known;
        }
        let candidate = candidate.clone();
        // Repeats a replayed check before the first new sample: the candidate must be prepared, and its
        // output must still be correct.
        let checked = match self.live.insert(candidate.clone()) {
            true => self.measurer.check(&candidate),
            false => Ok(()),
        };
        let result = checked.and_then(|()| self.measurer.sample(&candidate, portion));
        self.record(JournalRecord::Sample { candidate, portion, result: result.clone() });
        result
    }
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Journal, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::failure::MeasureFailure;
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
            let mut written = Vec::new();
            journal.write_lines(&mut written).expect("finite");
            let read = Journal::read_lines(written.as_slice()).expect("a journal");
            let mut second = Resumed::new(simulated, read);
            let resumed = throughput(&space, &mut second);
            assert_eq!(resumed.winner, expected.winner);
            assert_eq!(resumed.candidates, expected.candidates);
            assert_eq!(second.into_parts().1, all);
        }
    }

    /// Measures nothing once `left` requests were made.
    struct Ending {
        simulated: Simulated,
        left: u64,
    }

    impl Ending {
        fn request(&mut self) -> Result<(), MeasureFailure> {
            let ended = || MeasureFailure::new(FailureKind::Ended, "no memory is left");
            self.left = self.left.checked_sub(1).ok_or_else(ended)?;
            Ok(())
        }
    }

    impl Measurer for Ending {
        fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
            self.request()?;
            self.simulated.check(candidate)
        }

        fn sample(
            &mut self,
            candidate: &Candidate,
            portion: Portion,
        ) -> Result<Sample, MeasureFailure> {
            self.request()?;
            self.simulated.sample(candidate, portion)
        }
    }

    #[test]
    fn a_search_stops_when_measuring_ends_and_blames_no_candidate() {
        let (seed, all, nature) = ordinary(0..20).next().expect("some");
        let simulated = Simulated::new(nature, seed);
        let expected = throughput(&all, &mut simulated.clone());
        for left in [0, 1, 2, 5, 20] {
            let ending = Ending { simulated: simulated.clone(), left };
            let mut first = Resumed::new(ending, Journal::default());
            let (budget, mut space) = (Budget::default(), all.clone());
            let error = tune(&mut first, &mut space, Objective::Throughput, &budget, &mut ());
            let error = error.expect_err("ended");
            assert!(matches!(error.kind(), ErrorKind::Ended(_)), "{error:?}");
            let (Ending { simulated, .. }, journal) = first.into_parts();
            assert_eq!(count(journal.records.len()), left);
            let mut second = Resumed::new(simulated, journal);
            assert_eq!(throughput(&all, &mut second).winner, expected.winner);
        }
    }

    fn subject(driver: &str) -> BTreeMap<String, String> {
        let pairs = [("problem", "softmax 8x8"), ("device", "H200"), ("driver", driver)];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn results_of_another_subject_are_not_resumed() {
        let journal = Journal { subject: subject("12.8"), records: Vec::new() };
        journal.check_subject(&subject("12.8")).expect("the same");
        let error = journal.check_subject(&subject("13.0")).expect_err("another driver");
        assert_eq!(error.to_string(), r#"its driver is "12.8", this is "13.0""#);
        let mut more = subject("12.8");
        more.insert("compiler".into(), "12.9".into());
        let error = journal.check_subject(&more).expect_err("another compiler");
        assert_eq!(error.to_string(), r#"its compiler is "", this is "12.9""#);
        let more = Journal { subject: more, records: Vec::new() };
        more.check_subject(&subject("12.8")).expect_err("another compiler");
    }

    fn lines() -> Vec<u8> {
        let mut lines = Vec::new();
        let result = Err(MeasureFailure::new(FailureKind::Mismatch, "wrong"));
        let (_, space, _) = ordinary(0..20).next().expect("some");
        let candidate = space.default().expect("a default").clone();
        let record = JournalRecord::Check { candidate, result };
        let records = vec![record.clone(), record];
        Journal { subject: subject("13.0"), records }.write_lines(&mut lines).expect("written");
        lines
    }

    #[test]
    fn a_truncated_journal_keeps_its_complete_lines() {
        let whole = lines();
        let header = whole.iter().position(|byte| *byte == b'\n').expect("a header") + 1;
        for end in header..whole.len() {
            let cut = &whole[..end];
            let records = cut.iter().filter(|byte| **byte == b'\n').count() - 1;
            assert_eq!(Journal::read_lines(cut).expect("a journal").records.len(), records);
        }
        for end in 0..header {
            let error = Journal::read_lines(&whole[..end]).expect_err("no header");
            assert_eq!(error.to_string(), NO_HEADER);
        }
    }

    #[test]
    fn other_formats_broken_lines_and_overlong_ones_are_typed_errors() {
        let error = |text: Vec<u8>| {
            let error = Journal::read_lines(text.as_slice()).expect_err("no journal");
            assert_eq!(*error.kind(), ErrorKind::Journal);
            error.to_string()
        };
        assert_eq!(error(b"\"a problem\"\n".into()), NO_HEADER);
        assert_eq!(error(b"{\"format\":2}\n".into()), NO_HEADER);
        let newer = error(b"{\"format\":3,\"subject\":7}\n".into());
        assert_eq!(newer, "it has the format 3, this version reads 2");
        let broken = error([lines(), b"{}\n".to_vec(), lines()].concat());
        assert!(broken.starts_with("line 4: "), "{broken}");
        let overlong = error([lines(), vec![b' '; 17 << 20]].concat());
        assert!(overlong.contains("long"), "{overlong}");
    }

    const NO_HEADER: &str = "it does not begin with the header of a journal";
}
