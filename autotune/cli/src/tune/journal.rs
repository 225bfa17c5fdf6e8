//! Journals of unfinished searches, stored beside the profile so that the next run can resume them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use gridguard::files::{self, publish};
use gridguard::profile::Key;
use gridguard_autotune::{Candidate, Journal, JournalRecord, Shard};

use super::selection::Task;

/// The journal of one search, as JSON lines.
pub(crate) struct JournalFile {
    path: PathBuf,
    /// The results of previous runs.
    pub(crate) journal: Journal,
}

impl JournalFile {
    /// Opens the journal of a search on `device`: of a shard of the candidates, or of `only` some. A
    /// journal of another search, or one that cannot be read, is ignored: a journal saves time and
    /// nothing else.
    pub(crate) fn open(
        profile: &Path,
        device: &str,
        task: &Task,
        key: &Key,
        shard: Shard,
        only: &[Candidate],
    ) -> Self {
        let round = match only {
            [] => shard.to_string().replace('/', "-of-"),
            _ => "finals".to_owned(),
        };
        let problem = format!("{device}; {task}; {key:?}; {round}; {only:?}");
        let path = folder(profile).join(format!("{}.{round}.jsonl", name(task)));
        let file = files::open(&path).ok().map(|file| BufReader::new(file.take(MOST_BYTES)));
        let known = file.and_then(Journal::read_lines).filter(|known| known.problem == problem);
        let journal = known.unwrap_or_else(|| Journal { problem, records: Vec::new() });
        Self { path, journal }
    }

    /// Appends each new record. If that fails, an interrupted search starts over; nothing else is
    /// lost.
    pub(crate) fn into_writer(self) -> impl FnMut(&JournalRecord) + Send + 'static {
        let mut file = self.rewrite().ok();
        move |record| {
            let Some(open) = &mut file else { return };
            let line = serde_json::to_string(record).map_err(io::Error::from);
            if line.and_then(|line| writeln!(open, "{line}")).is_err() {
                file = None;
            }
        }
    }

    /// Rewrites the file without an incomplete last line.
    fn rewrite(&self) -> io::Result<File> {
        // Whole, so that a crash here does not lose what was measured before.
        publish(&self.path, self.journal.to_lines()?.as_bytes())?;
        OpenOptions::new().append(true).open(&self.path)
    }

    /// Removes the journals of a task whose result was published.
    pub(crate) fn remove(profile: &Path, task: &Task) {
        let (folder, prefix) = (folder(profile), format!("{}.", name(task)));
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                // A journal that cannot be removed does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
        // This fails while other journals remain.
        let _ = fs::remove_dir(folder);
    }
}

/// The folder of the journals of a profile: `nvidia-h200.ron.unfinished`.
fn folder(profile: &Path) -> PathBuf {
    let mut name = profile.file_name().unwrap_or_default().to_owned();
    name.push(".unfinished");
    profile.with_file_name(name)
}

/// `rms_norm-f16-32768x4096--cold-eager--throughput`.
fn name(task: &Task) -> String {
    let dash = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    task.to_string().chars().map(dash).take(200).collect()
}

/// The most that is read of a journal; a search takes a few hundred records of less than 1 KB.
const MOST_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use gridguard::profile::{Named, Objective, Policy};
    use gridguard_autotune::{FailureKind, MeasureFailure};
    use gridguard_kernels::bench::Problem;

    use super::*;

    fn task(shape: &str) -> Task {
        let problem = Problem::new("rms_norm", "f16", shape).expect("a problem");
        Task { problem, policy: Policy::default(), objective: Objective::default() }
    }

    fn journal_file(profile: &Path, shape: &str) -> JournalFile {
        let (task, key) = (task(shape), Key::default());
        JournalFile::open(profile, "a device", &task, &key, Shard::ALL, &[])
    }

    fn record(message: &str) -> JournalRecord {
        let candidate = Candidate {
            parameters: Named::new(),
            choice: gridguard::profile::StoredChoice::Whole,
            strategy: gridguard::Strategy::Whole,
            launches: 1,
            largest_chunk: 5,
            block_threads: 128,
        };
        let result = Err(MeasureFailure::new(FailureKind::Mismatch, message));
        JournalRecord::Check { candidate, result }
    }

    #[test]
    fn the_next_run_reads_all_records_but_an_incomplete_last_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        let records = ["one", "two"].map(record);
        records.iter().for_each(journal_file(&profile, "5x8").into_writer());
        let path = journal_file(&profile, "5x8").path;
        let torn = fs::read_to_string(&path).expect("a journal") + r#"{"check":{"cand"#;
        fs::write(&path, torn).expect("written");
        assert_eq!(journal_file(&profile, "5x8").journal.records, records);
        assert!(journal_file(&profile, "6x8").journal.records.is_empty(), "another shape");
    }

    #[test]
    fn publishing_removes_the_journal_and_the_last_one_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        let [one, other] = ["5x8", "6x8"].map(|shape| {
            journal_file(&profile, shape).into_writer()(&record("one"));
            journal_file(&profile, shape).path
        });
        JournalFile::remove(&profile, &task("5x8"));
        assert!(!one.exists() && other.exists());
        JournalFile::remove(&profile, &task("6x8"));
        assert!(!super::folder(&profile).exists());
    }

    #[test]
    fn a_file_that_is_not_a_journal_is_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        let path = journal_file(&profile, "5x8").path;
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        for garbage in [&b""[..], b"\xff\xfe", b"{}\n{}\n", b"\"another\"\n"] {
            fs::write(&path, garbage).expect("written");
            assert!(journal_file(&profile, "5x8").journal.records.is_empty());
        }
    }
}
