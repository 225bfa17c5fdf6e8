//! Why a profile cannot be read, merged or written.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use derive_more::Display;
use serde::Serialize;

use super::device::DeviceMismatch;
use super::model::MAX_ENTRIES;

/// An error at a position of a file.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize)]
#[display("{line}:{column}: {message}")]
pub struct FileFault {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// The fault.
    pub message: String,
}

/// Why a profile cannot be read, merged or written. If writing fails, the old file is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file was written by another version.
    #[error(
        "the file has schema {found}, this version reads schema {SCHEMA}: use a matching version, \
         or re-tune"
    )]
    Schema {
        /// The file's schema.
        found: u64,
    },
    /// The fields before the list of entries do not parse.
    #[error("the header does not parse: {0}")]
    Header(FileFault),
    /// Too many entries.
    #[error("the file has more than {MAX_ENTRIES} entries: split it by kernel")]
    TooManyEntries,
    /// Too many bytes.
    #[error("the file has {bytes} bytes, the limit is {MAX_FILE_BYTES}: split it by kernel")]
    TooLarge {
        /// The file's size, or the number of bytes read if the file grew.
        bytes: u64,
    },
    /// Not UTF-8.
    #[error("the file is not UTF-8 at byte {offset}: restore it from a copy")]
    NotText {
        /// The first byte that is not UTF-8.
        offset: usize,
    },
    /// A folder, pipe or device.
    #[error("{} is not a regular file: give the path of a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file system reports an error.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's kind of error.
        kind: io::ErrorKind,
        /// The system's message.
        reason: String,
    },
    /// Profiles of different devices cannot be merged.
    #[error("the profiles cannot be merged: {mismatch}")]
    OtherDevice {
        /// The document of another device, from 0. Document 0 is the target of the merge.
        document: usize,
        /// The difference.
        mismatch: DeviceMismatch,
    },
    /// The merged profile would have too many entries.
    #[error(
        "the merged profile would have {entries} entries, the limit is {MAX_ENTRIES}: \
             split the profiles by kernel"
    )]
    MergedEntries {
        /// Entries of all documents. Equal keys and shapes are counted once.
        entries: usize,
    },
    /// The merged profile would have too many aliases.
    #[error(
        "the merged profile would have {aliases} aliases, the limit is {MAX_ALIASES}: remove some"
    )]
    MergedAliases {
        /// Different aliases of all documents.
        aliases: usize,
    },
    /// The existing file cannot be merged with, so it is not overwritten.
    #[error("{} was not overwritten: {reason}", path.display())]
    NotReplaced {
        /// The file.
        path: PathBuf,
        /// Why its entries would be lost.
        reason: Box<Self>,
    },
    /// The new file would not parse.
    #[error("{} was not written, because the new text does not parse: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        reason: Box<Self>,
    },
    /// Another process holds the file's lock.
    #[error(
        "{} is locked by {holder}, waited {:.1} s: end that process, or try again later",
        path.display(), waited.as_secs_f64()
    )]
    Locked {
        /// The file.
        path: PathBuf,
        /// The holder by the lock file, for example `process 4711 on node7 since 2026-11-20T12:00:00Z`.
        holder: String,
        /// How long this process waited.
        waited: Duration,
    },
    /// The file system reports an error, for example no permission or no space.
    #[error("cannot write {} ({step}): {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The step that failed, for example `locking`.
        step: &'static str,
        /// The system's kind of error.
        kind: io::ErrorKind,
        /// The system's message.
        reason: String,
    },
}

/// The only schema that is written and read.
pub(super) const SCHEMA: u64 = 1;
/// The most bytes of a file. A larger file is rejected without reading it.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// The most other device names that a file may declare.
pub(super) const MAX_ALIASES: usize = 64;
