//! Reads profiles, and replaces them whole.

use std::path::{Path, PathBuf};

use super::document::{Document, Parsed};
use super::error::{Fault, ProfileError, StoreError};
use super::file::{Replacement, read, replace};
use super::merge::{Conflict, MergeError};

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published<T> {
    /// What the change answered: the conflicts of a merge.
    pub outcome: T,
    /// Entries of the file now.
    pub entries: usize,
    /// Entries of the old file that could not be read. They are gone from the file.
    pub faults: Vec<Fault>,
    /// Where the old file is kept, if it had such.
    pub backup: Option<PathBuf>,
}

/// Reads a profile; `None` where there is no file.
///
/// # Errors
///
/// As [`Document::parse`], and where the file cannot be read or is larger than
/// [`MAX_FILE_BYTES`](super::MAX_FILE_BYTES).
pub fn load(path: &Path) -> Result<Option<Parsed>, ProfileError> {
    read(path)?.map(|text| Document::parse(&text)).transpose()
}

/// Merges a document into the file at `path`, which is made if there is none.
///
/// Any number of processes may publish to the same file: each waits for the others, so nothing is
/// lost. Readers see the old file or the new one, whole, and so does whoever comes after a crash.
/// Comments in the file are not kept. Entries that cannot be read are not kept either, but then the
/// old file stays beside the new one, and [`Published`] says where.
///
/// # Errors
///
/// [`StoreError::Existing`] and [`StoreError::OtherDevice`] where the file there is of a version to
/// come, broken or another device's: it is never overwritten. [`StoreError::Write`] where the file
/// system refuses. Whatever the error, the old file is as it was.
pub fn publish(path: &Path, ours: &Document) -> Result<Published<Vec<Conflict>>, StoreError> {
    let empty = Document::new(ours.device().clone(), ours.environment().clone());
    change(path, empty, |document| document.merge(ours).map_err(|error| refused(path, error)))
}

/// Changes the file at `path` under its lock, or `empty` where there is none.
///
/// `change` is to be quick, for others wait: it must not measure.
///
/// # Errors
///
/// As [`publish`].
pub fn update<T>(
    path: &Path,
    empty: Document,
    quick: impl FnOnce(&mut Document) -> T,
) -> Result<Published<T>, StoreError> {
    change(path, empty, |document| Ok(quick(document)))
}

fn change<T>(
    path: &Path,
    empty: Document,
    change: impl FnOnce(&mut Document) -> Result<T, StoreError>,
) -> Result<Published<T>, StoreError> {
    let existing = |error| StoreError::Existing { path: path.to_owned(), error };
    let (published, backup) = replace(path, |old| {
        let old = old.map(Document::parse).transpose().map_err(existing)?;
        let Parsed { mut document, faults } =
            old.unwrap_or(Parsed { document: empty, faults: Vec::new() });
        let outcome = change(&mut document)?;
        let text = document.to_ron();
        // What nobody could read again must not take the place of what everybody can.
        Document::parse(&text)
            .map_err(|error| StoreError::Unreadable { path: path.to_owned(), error })?;
        let keep_old = !faults.is_empty();
        let entries = document.entries().len();
        let outcome = Published { outcome, entries, faults, backup: None };
        Ok(Replacement { text, keep_old, outcome })
    })?;
    Ok(Published { backup, ..published })
}

fn refused(path: &Path, error: MergeError) -> StoreError {
    let path = path.to_owned();
    match error {
        MergeError::OtherDevice { mismatch, .. } => StoreError::OtherDevice { path, mismatch },
        full => StoreError::Full { path, error: full },
    }
}
