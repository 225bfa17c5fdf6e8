//! What an unfinished search has measured, beside its profile, for the next run to go on from.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use gridguard::profile::{Key, Named};
use gridguard_autotune::{Candidate, Journal, JournalRecord, Part};

/// The most that a journal holds: a search takes some hundred records of less than 1 KB.
const MOST_BYTES: u64 = 64 << 20;

/// A search's journal: one JSON record a line behind a line that says of what.
pub(crate) struct Kept {
    path: PathBuf,
    subject: String,
    records: Vec<JournalRecord>,
}

impl Kept {
    /// The journal of a search on `device`, with what it has so far. One of another search, or that
    /// cannot be read, is as good as none: it saves time and nothing else.
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

    /// What was measured before.
    pub(crate) fn journal(&self) -> Journal {
        Journal { problem: self.subject.clone(), records: self.records.clone() }
    }

    /// Writes each new record behind the others. Where that fails, an interrupted search begins anew
    /// and nothing else is lost.
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

    /// The file, with whole lines only.
    fn create(&self) -> std::io::Result<File> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file =
            OpenOptions::new().create(true).write(true).truncate(true).open(&self.path)?;
        writeln!(file, "{}", serde_json::to_string(&self.subject)?)?;
        for record in &self.records {
            writeln!(file, "{}", serde_json::to_string(record)?)?;
        }
        Ok(file)
    }

    /// Removes the journals of a search that was published.
    pub(crate) fn forget(profile: &Path, key: &Key, shape: &Named) {
        let (folder, name) = (folder(profile), name(key, shape));
        let Ok(entries) = fs::read_dir(&folder) else { return };
        for entry in entries.flatten() {
            let is_ours = entry.file_name().to_string_lossy().starts_with(&format!("{name}."));
            if is_ours {
                // One that stays is of no use to anybody, and of no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
        // Only an empty one goes.
        let _ = fs::remove_dir(folder);
    }
}

/// The folder of a profile's journals: `nvidia-h200.ron.unfinished`.
fn folder(profile: &Path) -> PathBuf {
    let mut name = profile.file_name().unwrap_or_default().to_owned();
    name.push(".unfinished");
    profile.with_file_name(name)
}

fn name(key: &Key, shape: &Named) -> String {
    let sizes: Vec<String> = shape.iter().map(|(_, size)| size.to_string()).collect();
    let Key { kernel, variant, dtypes, policy, objective, source: _ } = key;
    let words = format!("{kernel} {variant} {dtypes} {} {policy} {objective}", sizes.join("x"));
    let dashed = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    words.chars().map(dashed).take(200).collect()
}

fn read(path: &Path, subject: &str) -> Option<Vec<JournalRecord>> {
    let file = BufReader::new(File::open(path).ok()?.take(MOST_BYTES));
    Journal::read_lines(file).filter(|journal| journal.problem == subject).map(|it| it.records)
}

#[cfg(test)]
mod tests {
    use gridguard_autotune::{FailureKind, MeasureFailure};

    use super::*;

    fn kept(profile: &Path, rows: u64) -> Kept {
        let key = Key { kernel: "rms_norm".into(), ..Key::default() };
        Kept::open(profile, "a device", &key, &vec![("rows".into(), rows)], Part::ALL, &[])
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
    fn what_was_written_is_there_for_the_next_run_but_for_a_torn_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        let mut write = kept(&profile, 5).into_writer();
        let mut journal = Journal::default();
        for message in ["one", "two"] {
            journal.records.push(record(message));
            write(&journal);
        }
        drop(write);
        let path = kept(&profile, 5).path;
        let torn = fs::read_to_string(&path).expect("a journal") + r#"{"check":{"cand"#;
        fs::write(&path, torn).expect("written");
        assert_eq!(kept(&profile, 5).journal().records, journal.records);
        assert!(kept(&profile, 6).journal().records.is_empty(), "of another shape");
    }

    #[test]
    fn a_published_search_leaves_no_journal_and_the_last_one_no_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        let key = Key { kernel: "rms_norm".into(), ..Key::default() };
        for rows in [5, 6] {
            kept(&profile, rows).into_writer()(&Journal::default());
        }
        Kept::forget(&profile, &key, &vec![("rows".into(), 5)]);
        assert!(!kept(&profile, 5).path.exists() && kept(&profile, 6).path.exists());
        Kept::forget(&profile, &key, &vec![("rows".into(), 6)]);
        assert!(!super::folder(&profile).exists());
    }

    #[test]
    fn a_file_that_is_no_journal_is_as_good_as_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        let path = kept(&profile, 5).path;
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        for garbage in [&b""[..], b"\xff\xfe", b"{}\n{}\n", b"\"another\"\n"] {
            fs::write(&path, garbage).expect("written");
            assert!(kept(&profile, 5).journal().records.is_empty());
        }
    }
}
