//! Reads profile files, and replaces them under a lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs4::fs_std::FileExt;

use super::document::{Document, ParsedProfile};
use super::error::{FileFault, MAX_FILE_BYTES, ProfileError};
use super::merge::MergeConflict;
use crate::files::{PublishError, delete_leftovers, folder_of, publish_new};

/// The result of replacing a profile's file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published<T> {
    /// What the change returned; for [`publish`], the conflicts of the merge.
    pub outcome: T,
    /// Number of entries in the file now.
    pub entries: usize,
    /// Entries of the old file that could not be read. They are not in the new file.
    pub faults: Vec<FileFault>,
    /// The copy of the old file, if it had such entries.
    pub backup: Option<PathBuf>,
}

/// Reads a profile; `None` if there is no file.
///
/// # Errors
///
/// As [`Document::parse`]; and if the file cannot be read, is not a regular file, or is larger than
/// [`MAX_FILE_BYTES`](super::MAX_FILE_BYTES).
pub fn load(path: &Path) -> Result<Option<ParsedProfile>, ProfileError> {
    read(path)?.map(|text| Document::parse(&text)).transpose()
}

/// Merges a document into the file at `path`, which is created if there is none.
///
/// Any number of processes may publish to the same file: each waits for the others, so nothing is
/// lost. Readers see the old file or the new one, never a part, also after a crash. Comments in the
/// file are lost. Entries that cannot be read are lost too, but then the old file is copied to
/// [`Published::backup`].
///
/// # Errors
///
/// [`ProfileError::NotReplaced`] if the file has another schema, does not parse or is for another
/// device; [`ProfileError::Write`] if the file system reports an error. The old file is then
/// unchanged.
pub fn publish(
    path: &Path,
    ours: &Document,
) -> Result<Published<Vec<MergeConflict>>, ProfileError> {
    let empty = Document::new(ours.device().clone(), ours.environment().clone());
    update(path, empty, |document| document.merge(ours))
}

/// Changes the file at `path` under its lock, starting from `empty` if there is none.
///
/// `change` must be quick and must not measure, because other processes wait for it.
///
/// # Errors
///
/// As [`publish`], and [`ProfileError::NotReplaced`] with the error of `change`.
pub fn update<T>(
    path: &Path,
    empty: Document,
    change: impl FnOnce(&mut Document) -> Result<T, ProfileError>,
) -> Result<Published<T>, ProfileError> {
    let (published, backup) = replace(path, |old| {
        let parsed = old.map(Document::parse).transpose()?;
        let ParsedProfile { mut document, faults } =
            parsed.unwrap_or(ParsedProfile { document: empty, faults: Vec::new() });
        let outcome = change(&mut document)?;
        let text = document.to_ron();
        // A file that does not parse must never replace one that does.
        if let Err(reason) = Document::parse(&text) {
            let (path, reason) = (path.to_owned(), Box::new(reason));
            return Err(ProfileError::Unreadable { path, reason });
        }
        let (keep_old, entries) = (!faults.is_empty(), document.entries().len());
        let outcome = Published { outcome, entries, faults, backup: None };
        Ok(Replacement { text, keep_old, outcome })
    })?;
    Ok(Published { backup, ..published })
}

/// The text of a file; `None` if there is no file.
pub(super) fn read(path: &Path) -> Result<Option<String>, ProfileError> {
    let failed = |error: io::Error| ProfileError::Read {
        path: path.to_owned(),
        kind: error.kind(),
        reason: error.to_string(),
    };
    // Checked before opening, because opening a pipe waits for its writer.
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if !metadata.is_file() {
        return Err(ProfileError::NotAFile { path: path.to_owned() });
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(ProfileError::TooLarge { bytes: metadata.len() });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    // The file may have grown or gone since.
    let read =
        File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    match read.map(u64::try_from) {
        Ok(Ok(length)) if length > MAX_FILE_BYTES => {
            return Err(ProfileError::TooLarge { bytes: length });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(_) => {}
    }
    let text = String::from_utf8(bytes);
    text.map(Some)
        .map_err(|error| ProfileError::NotText { offset: error.utf8_error().valid_up_to() })
}

/// The new contents of a file.
pub(super) struct Replacement<T> {
    pub(super) text: String,
    /// Whether to keep a copy of the old file.
    pub(super) keep_old: bool,
    /// What [`replace`] is to return.
    pub(super) outcome: T,
}

/// Replaces a file under its lock by what `change` makes of its text, and returns the outcome and
/// the path of the old file's copy.
///
/// # Errors
///
/// [`ProfileError::NotReplaced`] with an error of reading or of `change`, and [`ProfileError::Write`].
pub(super) fn replace<T>(
    path: &Path,
    change: impl FnOnce(Option<&str>) -> Result<Replacement<T>, ProfileError>,
) -> Result<(T, Option<PathBuf>), ProfileError> {
    // A link stays a link: its target is replaced.
    let target = fs::canonicalize(path);
    let path = target.as_deref().unwrap_or(path);
    let folder = folder_of(path);
    let failed = |step| move |error: io::Error| write_error(path, PublishError { step, error });
    fs::create_dir_all(folder).map_err(failed("creating its folder"))?;
    let lock =
        OpenOptions::new().create(true).write(true).truncate(false).open(beside(path, ".lock"));
    let lock = lock.map_err(failed("opening its lock file"))?;
    // Released when the lock file is closed, even by the death of the process.
    FileExt::lock_exclusive(&lock).map_err(failed("locking"))?;
    // Under the lock no other process is writing.
    delete_leftovers(folder, Some(path), Duration::ZERO);
    let not_replaced = |reason| match reason {
        ProfileError::Unreadable { .. } => reason,
        reason => ProfileError::NotReplaced { path: path.to_owned(), reason: Box::new(reason) },
    };
    let old = read(path).map_err(not_replaced)?;
    let Replacement { text, keep_old, outcome } = change(old.as_deref()).map_err(not_replaced)?;
    let copy = match old.filter(|_| keep_old) {
        Some(old) => Some(back_up(path, &old)?),
        None => None,
    };
    crate::files::publish(path, text.as_bytes()).map_err(|error| write_error(path, error))?;
    Ok((outcome, copy))
}

/// Copies the old text to the first free name of `.bak`, `.bak1`, ... beside the file.
fn back_up(path: &Path, old: &str) -> Result<PathBuf, ProfileError> {
    for number in 0..MAX_BACKUPS {
        let number = if number == 0 { String::new() } else { number.to_string() };
        let copy = beside(path, &format!(".bak{number}"));
        let failed = |error| write_error(path, error);
        if !copy.exists() && publish_new(&copy, old.as_bytes()).map_err(failed)? {
            return Ok(copy);
        }
    }
    let error = io::Error::new(ErrorKind::AlreadyExists, "there are too many copies already");
    Err(write_error(path, PublishError { step: "copying the old file", error }))
}

/// The path with `ending` appended to the file's name.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

fn write_error(path: &Path, PublishError { step, error }: PublishError) -> ProfileError {
    let (kind, reason) = (error.kind(), error.to_string());
    ProfileError::Write { path: path.to_owned(), step, kind, reason }
}

/// The most copies of old files beside a file.
const MAX_BACKUPS: u32 = 100;
