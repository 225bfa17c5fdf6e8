//! Journals of unfinished searches, stored beside the profile so that the next run can resume them.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use gridguard::files::publish;
use gridguard::profile::{Key, Named};
use gridguard_autotune::{Candidate, Journal, JournalRecord, Part};

/// The most that is read of a journal; a search takes a few hundred records of less than 1 KB.
const MOST_BYTES: u64 = 64 << 20;

/// The journal of one search: a line that identifies the search, then one JSON record a line.
pub(crate) struct JournalFile {
    path: PathBuf,
    subject: String,
    records: Vec<JournalRecord>,
}

impl JournalFile {
    /// Opens the journal of a search on `device`. A journal of another search, or one that cannot be
    /// read, is ignored: a journal saves time and nothing else.
    pub(crate) fn open(
        profile: &Path,
        device: &str,
        key: &Key,
        shape: &Named,
        part: Part,
        only: &[Candidate],
    ) -> Self {
        let only = if only.is_empty() { "all".into() } else { format!("{only:?}") };
        let subject =
            format!("{device}; {key:?}; {shape:?}; {}/{}; {only}", part.index, part.count);
        let round = if only == "all" { part.index.to_string() } else { "finals".into() };
        let path = folder(profile).join(format!("{}.{round}.jsonl", name(key, shape)));
        let records = read(&path, &subject).unwrap_or_default();
        Self { path, subject, records }
    }

    /// The records of previous runs.
    pub(crate) fn journal(&self) -> Journal {
        Journal { problem: self.subject.clone(), records: self.records.clone() }
    }

    /// Appends each new record. If that fails, an interrupted search starts over; nothing else is
    /// lost.
    pub(crate) fn into_writer(self) -> impl FnMut(&Journal) + Send + 'static {
        let mut file = self.create().ok();
        move |journal| {
            let Some(open) = &mut file else { return };
            let line = journal.records.last().and_then(|record| serde_json::to_string(record).ok());
            if line.is_none_or(|line| writeln!(open, "{line}").is_err()) {
                file = None;
            }
        }
    }

    /// Rewrites the file without an incomplete last line.
    fn create(&self) -> std::io::Result<File> {
        let mut lines = serde_json::to_string(&self.subject)? + "\n";
        for record in &self.records {
            lines += &serde_json::to_string(record)?;
            lines.push('\n');
        }
        // Whole, so that a crash here does not lose what was measured before.
        publish(&self.path, lines.as_bytes())?;
        OpenOptions::new().append(true).open(&self.path)
    }

    /// Removes the journals of a search whose result was published.
    pub(crate) fn remove(profile: &Path, key: &Key, shape: &Named) {
        let (folder, name) = (folder(profile), name(key, shape));
        let Ok(entries) = fs::read_dir(&folder) else { return };
        for entry in entries.flatten() {
            let is_of_search = entry.file_name().to_string_lossy().starts_with(&format!("{name}."));
            if is_of_search {
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

fn name(key: &Key, shape: &Named) -> String {
    let sizes: Vec<String> = shape.iter().map(|(_, size)| size.to_string()).collect();
    let Key { kernel, variant, dtypes, policy, objective, source: _ } = key;
    let text = format!("{kernel} {variant} {dtypes} {} {policy} {objective}", sizes.join("x"));
    let dash = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    text.chars().map(dash).take(200).collect()
}

fn read(path: &Path, subject: &str) -> Option<Vec<JournalRecord>> {
    let file = BufReader::new(File::open(path).ok()?.take(MOST_BYTES));
    Journal::read_lines(file).filter(|journal| journal.problem == subject).map(|it| it.records)
}

#[cfg(test)]
mod tests {
    use gridguard_autotune::{FailureKind, MeasureFailure};

    use super::*;

    fn journal_file(profile: &Path, rows: u64) -> JournalFile {
        let key = Key { kernel: "rms_norm".into(), ..Key::default() };
        JournalFile::open(profile, "a device", &key, &vec![("rows".into(), rows)], Part::ALL, &[])
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
        let failure = Some(MeasureFailure { kind: FailureKind::Mismatch, message: message.into() });
        JournalRecord::Check { candidate, failure }
    }

    #[test]
    fn the_next_run_reads_all_records_but_an_incomplete_last_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        let mut write = journal_file(&profile, 5).into_writer();
        let mut journal = Journal::default();
        for message in ["one", "two"] {
            journal.records.push(record(message));
            write(&journal);
        }
        drop(write);
        let path = journal_file(&profile, 5).path;
        let torn = fs::read_to_string(&path).expect("a journal") + r#"{"check":{"cand"#;
        fs::write(&path, torn).expect("written");
        assert_eq!(journal_file(&profile, 5).journal().records, journal.records);
        assert!(journal_file(&profile, 6).journal().records.is_empty(), "another shape");
    }

    #[test]
    fn publishing_removes_the_journal_and_the_last_one_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        let key = Key { kernel: "rms_norm".into(), ..Key::default() };
        for rows in [5, 6] {
            journal_file(&profile, rows).into_writer()(&Journal::default());
        }
        JournalFile::remove(&profile, &key, &vec![("rows".into(), 5)]);
        assert!(
            !journal_file(&profile, 5).path.exists() && journal_file(&profile, 6).path.exists()
        );
        JournalFile::remove(&profile, &key, &vec![("rows".into(), 6)]);
        assert!(!super::folder(&profile).exists());
    }

    #[test]
    fn a_file_that_is_not_a_journal_is_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        let path = journal_file(&profile, 5).path;
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        for garbage in [&b""[..], b"\xff\xfe", b"{}\n{}\n", b"\"another\"\n"] {
            fs::write(&path, garbage).expect("written");
            assert!(journal_file(&profile, 5).journal().records.is_empty());
        }
    }
}
