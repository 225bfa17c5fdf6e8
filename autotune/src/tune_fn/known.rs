//! The journal of a function, which a search with other values can also use.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gridguard_files::{FileLock, LockError, ReadError};

use crate::candidate::Candidate;
use crate::error::{Error, ErrorKind};
use crate::journal::{Journal, JournalRecord};
use crate::measure::{Portion, Sample};
use crate::search::FINE_FACTOR;
use crate::space::Space;
use crate::stats::Samples;

/// The open journal of a function.
pub(super) struct Kept {
    path: PathBuf,
    lock: FileLock,
    pub(super) journal: Journal,
    known: Known,
}

/// Candidates of earlier searches: their time relative to the default's, measured beside it. `None` if it failed.
type Known = Vec<(Candidate, Option<f64>)>;

impl Kept {
    /// Opens the journal of the `problem`, measured under `conditions`, for the candidates of `space`.
    ///
    /// It resumes a search of the same candidates. Otherwise it starts anew, and keeps what an earlier search with the
    /// same default and the same conditions found.
    pub(super) fn open(
        path: &Path,
        [problem, conditions]: &[String; 2],
        space: &Space,
    ) -> Result<Self, Error> {
        gridguard_files::create_folder(gridguard_files::folder_of(path))
            .map_err(unusable(path, ""))?;
        let lock = FileLock::acquire(&path.with_extension("lock"), Duration::ZERO);
        let lock = lock.map_err(|error| match error {
            LockError::Held { .. } => {
                let message = format!("journal {}: {error}", path.display());
                Error::new(ErrorKind::Busy, message).caused_by(error)
            }
            LockError::Failed(_) => unusable(path, "")(error),
        })?;
        let old = read(path)?;
        let candidates = space.candidates();
        let text = serde_json::to_string(candidates).map_err(|error| unusable(path, "")(error))?;
        let subject = [(PROBLEM, problem), (CONDITIONS, conditions), (CANDIDATES, &text)];
        let mut subject = subject.map(|(name, value)| (name.to_owned(), value.clone()));
        let mut journal = Journal { subject: BTreeMap::from(subject.clone()), records: Vec::new() };
        let mut known = Known::new();
        if let Some(old) = old {
            // A journal of another problem belongs to another function.
            subject[1..].iter_mut().for_each(|(name, value)| {
                *value = old.subject.get(name).cloned().unwrap_or_default();
            });
            let kept = old.subject.get(KNOWN).map(|text| (KNOWN.to_owned(), text.clone()));
            old.check_subject(&subject.into_iter().chain(kept).collect())
                .map_err(unusable(path, FOREIGN))?;
            if old.subject.get(CONDITIONS) == Some(conditions) {
                known = judged(&old, candidates.first());
                if old.subject.get(CANDIDATES) == Some(&text) {
                    known = known_before(&old);
                    journal.records = old.records;
                }
            }
        }
        let text = serde_json::to_string(&known).map_err(|error| unusable(path, "")(error))?;
        journal.subject.insert(KNOWN.to_owned(), text);
        Ok(Self { path: path.to_owned(), lock, journal, known })
    }

    /// Drops the candidates that failed, or are known to be clearly slower than another candidate of the space.
    /// Returns their number.
    pub(super) fn drop_known(&self, space: &mut Space) -> usize {
        let known: BTreeMap<&Candidate, Option<f64>> =
            self.known.iter().map(|(candidate, ratio)| (candidate, *ratio)).collect();
        let ratios = space.candidates().iter().filter_map(|one| known.get(one).copied().flatten());
        let best = ratios.fold(1.0, f64::min);
        let (before, default) = (space.candidates().len(), space.default().cloned());
        space.retain(|one| {
            let keeps =
                |ratio: &Option<f64>| ratio.is_some_and(|ratio| ratio <= best * FINE_FACTOR);
            default.as_ref() == Some(one) || known.get(one).is_none_or(keeps)
        });
        before - space.candidates().len()
    }

    /// Rewrites the file without an incomplete last line, and appends each new record, but no failure of the default:
    /// it ends the search, and the next one must run the default again. If an append fails later, only the journal is
    /// lost.
    pub(super) fn into_writer(
        self,
        default: Candidate,
    ) -> Result<impl FnMut(&JournalRecord) + Send + 'static, Error> {
        let Self { path, lock, journal, .. } = self;
        let mut open = Some(journal.rewrite(&path).map_err(unusable(&path, ""))?);
        Ok(move |record: &JournalRecord| {
            let _held = &lock;
            let (candidate, failed) = match record {
                JournalRecord::Check { candidate, result } => (candidate, result.is_err()),
                JournalRecord::Sample { candidate, result, .. } => (candidate, result.is_err()),
            };
            if failed && *candidate == default {
                return;
            }
            if open.as_mut().is_some_and(|file| record.write_line(file).is_err()) {
                open = None;
            }
        })
    }
}

fn read(path: &Path) -> Result<Option<Journal>, Error> {
    match gridguard_files::read(path, MAX_BYTES) {
        Ok(None) => Ok(None),
        Ok(Some(text)) => {
            Journal::read_lines(text.as_slice()).map(Some).map_err(unusable(path, FOREIGN))
        }
        Err(ReadError::Io(error)) => Err(unusable(path, "")(error)),
        Err(error) => Err(unusable(path, FOREIGN)(io::Error::from(error))),
    }
}

/// The error of the journal at `path`, with a remedy behind its reason.
fn unusable<E: core::error::Error + Send + Sync + 'static>(
    path: &Path,
    remedy: &'static str,
) -> impl FnOnce(E) -> Error {
    let path = path.to_owned();
    move |reason| {
        let message = format!("journal {}: {reason}{remedy}", path.display());
        Error::new(ErrorKind::Journal, message).caused_by(reason)
    }
}

/// The remedy for a file that is not a journal of this function.
const FOREIGN: &str = ": give another path, or remove it";

fn known_before(journal: &Journal) -> Known {
    let text = journal.subject.get(KNOWN).map_or("[]", String::as_str);
    serde_json::from_str(text).unwrap_or_default()
}

/// What a journal says about candidates, if its default is `default`.
fn judged(journal: &Journal, default: Option<&Candidate>) -> Known {
    let text = journal.subject.get(CANDIDATES).map_or("[]", String::as_str);
    let candidates: Vec<Candidate> = serde_json::from_str(text).unwrap_or_default();
    if default.is_none() || candidates.first() != default {
        return Known::new();
    }
    let mut times: BTreeMap<&Candidate, Option<Vec<f64>>> = BTreeMap::new();
    for record in &journal.records {
        let (candidate, time) = match record {
            JournalRecord::Check { candidate, result } => {
                (candidate, result.is_ok().then_some(None))
            }
            JournalRecord::Sample { portion: Portion::LargestLaunch, .. } => continue,
            JournalRecord::Sample { result: Ok(Sample { disturbed: true, .. }), .. } => continue,
            JournalRecord::Sample { candidate, result, .. } => {
                (candidate, result.as_ref().ok().map(|sample| Some(sample.time_ns)))
            }
        };
        let all = times.entry(candidate).or_insert_with(|| Some(Vec::new()));
        match (all.as_mut(), time) {
            (Some(all), Some(time)) => all.extend(time),
            _ => *all = None,
        }
    }
    let median = |times: &[f64]| Samples::new(times.iter().copied()).map(|all| all.median());
    let base = times.get(&candidates[0]).and_then(Option::as_ref).and_then(|all| median(all));
    let Some(base) = base else { return known_before(journal) };
    let mut known: BTreeMap<Candidate, Option<f64>> = known_before(journal).into_iter().collect();
    for (candidate, times) in times {
        match times.as_deref().map(median) {
            None => known.insert(candidate.clone(), None),
            Some(Some(time)) => known.insert(candidate.clone(), Some(time / base)),
            // Checked, but never timed.
            Some(None) => None,
        };
    }
    known.into_iter().collect()
}

const PROBLEM: &str = "problem";
const CONDITIONS: &str = "conditions";
const CANDIDATES: &str = "candidates";
const KNOWN: &str = "known";
/// The largest journal: some thousand candidates, with some tens of records of less than 1 KB each.
const MAX_BYTES: u64 = 64 << 20;
