//! Reads profile files, and replaces them under a lock.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gridguard_files::{
    FileLock, LockError, OwnerChange, PublishError, ReadError, delete_leftovers, folder_of,
};

use super::document::{Document, ParsedProfile};
use super::error::{FileFault, MAX_FILE_BYTES, ProfileError, ProfileErrorKind};
use super::merge::MergeConflict;

/// The result of replacing a profile's file or a file of shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published<T> {
    /// The result of the change. For [`publish`], the conflicts of the merge.
    pub outcome: T,
    /// Number of entries in the new file.
    pub entries: usize,
    /// Invalid entries of the old file, which are not in the new file.
    pub faults: Vec<FileFault>,
    /// The copy of the old file, if it had invalid entries.
    pub backup: Option<PathBuf>,
    /// The change of the file's owner, if this user may not give files to the old owner.
    pub owner: Option<OwnerChange>,
}

/// Reads a profile. `None` if there is no file.
///
/// # Errors
///
/// As [`Document::parse`], and if the file cannot be read, is not a regular file, or is larger than 64 MiB.
pub fn load(path: &Path) -> Result<Option<ParsedProfile>, ProfileError> {
    read(path)?.map(|text| Document::parse(&text)).transpose()
}

/// Merges a document into the file at `path`, or creates the file.
///
/// Any number of processes may publish to the same file. Each waits for the others, up to half a minute. Readers
/// see the old file or the new file, never a part of one, also after a crash. Comments in the file are lost.
/// Invalid entries are lost too, but then the old file is copied to [`Published::backup`]. Entries that are in
/// the future by this machine's clock are invalid. Permissions, owner and links are kept as by
/// [`gridguard_files::publish`].
///
/// # Errors
///
/// - [`ProfileErrorKind::NotReplaced`]: the file has another schema, does not parse or is for another device.
/// - [`ProfileErrorKind::Locked`]: another process does not release the file.
/// - [`ProfileErrorKind::Write`]: the file system reports an error.
///
/// In each case the old file is unchanged.
pub fn publish(
    path: &Path,
    ours: &Document,
) -> Result<Published<Vec<MergeConflict>>, ProfileError> {
    let empty = Document::new(ours.device().clone(), ours.environment().clone());
    update(path, empty, |document| document.merge(ours))
}

/// Changes the file at `path` under its lock, starting from `empty` if there is none.
///
/// `change` must be fast and must not measure, because other processes wait for it.
///
/// # Errors
///
/// As [`publish`], and [`ProfileErrorKind::NotReplaced`] with the error of `change`.
pub fn update<T>(
    path: &Path,
    empty: Document,
    change: impl FnOnce(&mut Document) -> Result<T, ProfileError>,
) -> Result<Published<T>, ProfileError> {
    replace(path, |old| {
        let parsed = old.map(Document::parse).transpose()?;
        let ParsedProfile { mut document, faults } =
            parsed.unwrap_or(ParsedProfile { document: empty, faults: Vec::new() });
        let outcome = change(&mut document)?;
        let text = document.to_string();
        // A file that does not parse must never replace a valid file.
        if let Err(reason) = Document::parse(&text) {
            return Err(ProfileError::unreadable(path, &reason));
        }
        let entries = document.entries().len();
        Ok((text, Published { outcome, entries, faults, backup: None, owner: None }))
    })
}

/// The text of a file. `None` if there is no file.
pub(super) fn read(path: &Path) -> Result<Option<String>, ProfileError> {
    let bytes = gridguard_files::read(path, MAX_FILE_BYTES).map_err(|error| match error {
        ReadError::NotRegular => ProfileError::not_a_file(path),
        ReadError::TooLarge { bytes, .. } => ProfileError::too_many_bytes(bytes),
        other => {
            let error = io::Error::from(other);
            ProfileError::read(path, error.kind(), error)
        }
    })?;
    bytes
        .map(String::from_utf8)
        .transpose()
        .map_err(|error| ProfileError::not_text(error.utf8_error().valid_up_to()))
}

/// Replaces a file under its lock with the text that `change` makes of the old text. If the old file has faults,
/// it is copied, because the text lacks the invalid entries.
///
/// # Errors
///
/// [`ProfileErrorKind::NotReplaced`] with an error of reading or of `change`, [`ProfileErrorKind::Locked`] and
/// [`ProfileErrorKind::Write`].
pub(super) fn replace<T>(
    path: &Path,
    change: impl FnOnce(Option<&str>) -> Result<(String, Published<T>), ProfileError>,
) -> Result<Published<T>, ProfileError> {
    let failed = |step| move |error: io::Error| write_error(path, PublishError { step, error });
    // A link is kept: its target is locked and replaced.
    let end = gridguard_files::resolve_links(path).map_err(failed("following its link"))?;
    if end == path {
        gridguard_files::create_folder(folder_of(path)).map_err(failed("creating its folder"))?;
    }
    let path = &*end;
    let _lock = lock(path, PATIENCE)?;
    // Under the lock no other process writes.
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    delete_leftovers(folder_of(path), |file| file == name, Duration::ZERO);
    let not_replaced = |reason: ProfileError| match reason.kind() {
        ProfileErrorKind::Unreadable => reason,
        _ => ProfileError::not_replaced(path, &reason),
    };
    let old = read(path).map_err(not_replaced)?;
    let (text, mut published) = change(old.as_deref()).map_err(not_replaced)?;
    if let Some(old) = old.filter(|_| !published.faults.is_empty()) {
        published.backup = Some(back_up(path, &old)?);
    }
    published.owner = gridguard_files::publish(path, text.as_bytes())
        .map_err(|error| write_error(path, error))?;
    Ok(published)
}

fn lock(path: &Path, patience: Duration) -> Result<FileLock, ProfileError> {
    FileLock::acquire(&beside(path, ".lock"), patience).map_err(|error| match error {
        LockError::Held { holder, waited } => ProfileError::locked(path, &holder, waited),
        LockError::Failed(error) => write_error(path, error),
    })
}

/// Copies the old text to the first free name of `.bak`, `.bak1`, ... beside the file.
fn back_up(path: &Path, old: &str) -> Result<PathBuf, ProfileError> {
    for number in 0..MAX_BACKUPS {
        let number = if number == 0 { String::new() } else { number.to_string() };
        let copy = beside(path, &format!(".bak{number}"));
        let failed = |error| write_error(path, error);
        if !copy.exists() && gridguard_files::publish_new(&copy, old.as_bytes()).map_err(failed)? {
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
    ProfileError::write(path, step, &error)
}

/// The most copies of old files beside a file.
const MAX_BACKUPS: u32 = 100;
/// How long to wait for other processes. Each holds the lock for milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_that_stays_locked_is_an_error_that_names_the_holder() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.ron");
        let held = lock(&path, PATIENCE).expect("free");
        let refused = lock(&path, Duration::ZERO).expect_err("it is locked");
        assert_eq!(*refused.kind(), ProfileErrorKind::Locked);
        let held_by = format!("{} is locked by process {} on ", path.display(), std::process::id());
        assert!(refused.to_string().starts_with(&held_by), "{refused}");
        drop(held);
        lock(&path, Duration::ZERO).expect("free again");
    }
}
