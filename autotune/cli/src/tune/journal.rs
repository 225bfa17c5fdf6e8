//! Stores the journals of unfinished searches beside the profile, for the next run.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gridguard_autotune::{Journal, JournalRecord};
use gridguard_files::{FileLock, LockError, PublishError, ReadError, create_folder};

use super::task::Task;

/// The journal of one search, as JSON lines. Only one process can open it.
pub(crate) struct JournalFile {
    path: PathBuf,
    lock: FileLock,
    pub(crate) journal: Journal,
}

impl JournalFile {
    /// Opens the journal of a task on a device. Renames a journal that cannot be resumed, starts a new
    /// one, and returns a note about that.
    ///
    /// # Errors
    ///
    /// [`LockError`] if another process has it open, or it cannot be read or renamed.
    pub(crate) fn open(
        profile: &Path,
        task: &Task,
        device: &str,
        subject: BTreeMap<String, String>,
    ) -> Result<(Self, Option<String>), LockError> {
        let path = folder(profile).join(format!("{}.{device}.{JOURNAL}", name(task)));
        let lock = lock(&path)?;
        let new = Journal { subject: subject.clone(), records: Vec::new() };
        let (journal, refused) = match read(&path, &subject).map_err(failed("reading it"))? {
            None => (new, None),
            Some(Ok(journal)) => (journal, None),
            Some(Err(reason)) => {
                let kept = keep(&path).map_err(failed("renaming it"))?;
                let kept = kept.display();
                let note = format!("a journal cannot be resumed and is kept as {kept}: {reason}");
                (new, Some(note))
            }
        };
        Ok((Self { path, lock, journal }, refused))
    }

    /// Appends each new record, and holds the lock. If writing fails, only the journal is lost.
    pub(crate) fn into_writer(self) -> impl FnMut(&JournalRecord) + Send + 'static {
        let Self { path, lock, journal } = self;
        // Without an incomplete last line.
        let mut file = journal.rewrite(&path).ok();
        move |record| {
            let _held = &lock;
            if let Some(open) = &mut file
                && record.write_line(open).is_err()
            {
                file = None;
            }
        }
    }

    /// Removes the journals of a finished task. Keeps refused journals, and journals that another process has open.
    pub(crate) fn remove(profile: &Path, task: &Task) {
        let (folder, prefix) = (folder(profile), format!("{}.", name(task)));
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let is_own = name.to_string_lossy().starts_with(&prefix)
                && path.extension().is_some_and(|kind| kind == JOURNAL || kind == LOCK);
            let lock = path.with_extension(LOCK);
            if is_own && let Ok(_held) = FileLock::acquire(&lock, Duration::ZERO) {
                // A remaining journal does no harm.
                let _ = fs::remove_file(path.with_extension(JOURNAL));
            }
        }
        // This fails while other journals remain.
        let _ = fs::remove_dir(folder);
    }
}

fn lock(path: &Path) -> Result<FileLock, LockError> {
    let attempt = || {
        create_folder(path.parent().unwrap_or(path)).map_err(failed("creating its folder"))?;
        // Does not wait, because the other search may take minutes.
        FileLock::acquire(&path.with_extension(LOCK), Duration::ZERO)
    };
    for _ in 1..MOST_ATTEMPTS {
        match attempt() {
            // Another search may just have removed the empty folder.
            Err(LockError::Failed(PublishError { error, .. }))
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {}
            other => return other,
        }
    }
    attempt()
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> LockError {
    move |error| LockError::Failed(PublishError { step, error })
}

/// The journal at `path`, or why a search of `subject` cannot resume it; `None` without a file.
fn read(
    path: &Path,
    subject: &BTreeMap<String, String>,
) -> io::Result<Option<Result<Journal, String>>> {
    let text = match gridguard_files::read(path, MOST_BYTES) {
        Ok(None) => return Ok(None),
        Ok(Some(text)) => Ok(text),
        Err(ReadError::Io(error)) => return Err(error),
        // The file is too large, or not a regular file.
        Err(other) => Err(io::Error::from(other).to_string()),
    };
    let resumable = |text: Vec<u8>| {
        let journal = Journal::read_lines(text.as_slice())?;
        journal.check_subject(subject).map(|()| journal)
    };
    Ok(Some(text.and_then(|text| resumable(text).map_err(|error| error.to_string()))))
}

/// Renames a journal, in place of one that was kept before, and returns its name.
fn keep(path: &Path) -> io::Result<PathBuf> {
    let mut kept = path.as_os_str().to_owned();
    kept.push(".kept");
    fs::rename(path, &kept).map(|()| kept.into())
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

const JOURNAL: &str = "jsonl";
const LOCK: &str = "lock";
/// The largest journal. A search takes a few hundred records of less than 1 KB.
const MOST_BYTES: u64 = 16 << 20;
/// The most attempts to create the folder and lock a journal in it.
const MOST_ATTEMPTS: u32 = 100;

#[cfg(test)]
mod tests {
    use gridguard::profile::{Named, Objective, Policy};
    use gridguard_autotune::{Candidate, FailureKind, MeasureFailure};
    use gridguard_problems::Problem;

    use super::*;
    use crate::tune::task::TaskProblem;

    fn task(shape: &str) -> Task {
        let problem = Problem::new("rms_norm", "f16", shape).expect("a problem");
        let problem = TaskProblem::Kernel(problem);
        Task { problem, policy: Policy::default(), objective: Objective::default() }
    }

    fn subject(driver: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("driver".to_owned(), driver.to_owned())])
    }

    fn open(profile: &Path, shape: &str, driver: &str) -> (JournalFile, Option<String>) {
        JournalFile::open(profile, &task(shape), "host", subject(driver)).expect("opened")
    }

    fn journal_file(profile: &Path, shape: &str) -> JournalFile {
        let (file, refused) = open(profile, shape, "13.0");
        assert!(refused.is_none(), "{refused:?}");
        file
    }

    fn record(message: &str) -> JournalRecord {
        let candidate = Candidate {
            parameters: Named::new(),
            choice: gridguard::profile::StoredChoice::Whole,
            strategy: gridguard::Strategy::Whole,
            launches: 1,
            largest_chunk: 5,
            block_threads: 128,
            scratch_bytes: 0,
        };
        let result = Err(MeasureFailure::new(FailureKind::Mismatch, message));
        JournalRecord::Check { candidate, result }
    }

    #[test]
    fn the_next_run_ignores_an_incomplete_last_line() {
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
    fn a_journal_of_another_driver_is_kept_and_not_resumed() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        journal_file(&profile, "5x8").into_writer()(&record("one"));
        let path = journal_file(&profile, "5x8").path;
        let written = fs::read(&path).expect("a journal");
        let (file, refused) = open(&profile, "5x8", "13.1");
        assert!(file.journal.records.is_empty());
        let refused = refused.expect("refused");
        let expected = ".jsonl.kept: its driver is ";
        assert!(refused.contains(expected) && refused.contains("13.1"), "{refused}");
        file.into_writer()(&record("two"));
        JournalFile::remove(&profile, &task("5x8"));
        assert!(!path.exists());
        let kept = path.with_extension("jsonl.kept");
        assert_eq!(fs::read(kept).expect("kept"), written);
    }

    #[test]
    fn a_file_that_is_not_a_journal_is_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        let path = journal_file(&profile, "5x8").path;
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        let all = [&b""[..], b"\xff\xfe", b"{}\n{}\n", b"\"another\"\n"];
        for garbage in all {
            fs::write(&path, garbage).expect("written");
            let (file, refused) = open(&profile, "5x8", "13.0");
            assert!(file.journal.records.is_empty());
            let kept = path.with_extension("jsonl.kept");
            let refused = refused.expect("refused");
            let expected = format!("is kept as {}: it does not begin with", kept.display());
            assert!(refused.contains(&expected), "{refused}");
            assert_eq!(fs::read(kept).expect("kept"), garbage);
        }
        fs::File::create(&path).and_then(|file| file.set_len(1 << 40)).expect("a sparse file");
        let (_, refused) = open(&profile, "5x8", "13.0");
        let refused = refused.expect("refused");
        assert!(
            refused.contains(&format!(": it has {} bytes, the limit is ", 1_u64 << 40)),
            "{refused}"
        );
    }

    #[test]
    fn a_journal_opens_while_another_search_removes_the_empty_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("p.ron");
        std::thread::scope(|scope| {
            for shape in ["5x8", "6x8"] {
                let profile = &profile;
                scope.spawn(move || {
                    for _ in 0..200 {
                        journal_file(profile, shape).into_writer()(&record("one"));
                        JournalFile::remove(profile, &task(shape));
                    }
                });
            }
        });
        assert!(!super::folder(&profile).exists());
    }
}
