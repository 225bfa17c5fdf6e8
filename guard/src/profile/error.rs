//! What can be wrong with a profile's file.

use core::fmt;
use std::io;
use std::path::PathBuf;

use super::bounds::{EntryFault, MAX_ENTRIES, MAX_FILE_BYTES};
use super::document::SCHEMA;
use super::identity::Mismatch;
use super::merge::MergeError;

/// One bad entry of a file: it is left out, the others serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line in the file, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Fault {
    /// `7:5: unknown field ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, message } = self;
        write!(f, "{line}:{column}: {message}")
    }
}

/// Why a whole file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Another version's file.
    #[error("schema {found}, this version reads {SCHEMA}: use a matching version, or tune anew")]
    Schema {
        /// The file's.
        found: u64,
    },
    /// What stands before the entries does not parse.
    #[error("the header does not parse: {0}")]
    Header(Fault),
    /// What stands around the entries does not parse.
    #[error("the file does not parse: {0}")]
    Structure(Fault),
    /// Too many entries.
    #[error("the file has more than {MAX_ENTRIES} entries: split it by kernel")]
    TooManyEntries,
    /// Too large.
    #[error("the file has {bytes} bytes, at most {MAX_FILE_BYTES} are read: split it by kernel")]
    TooLarge {
        /// Its length, as far as it was looked at.
        bytes: u64,
    },
    /// Bytes that are not text.
    #[error("the file is not UTF-8 from byte {offset} on: restore it from a copy")]
    NotText {
        /// Where text ends.
        offset: usize,
    },
    /// Something other than a file.
    #[error("{} is not a regular file: name a file", path.display())]
    NotAFile {
        /// Where.
        path: PathBuf,
    },
    /// The file system refuses.
    #[error("{} cannot be read: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's kind of error.
        kind: io::ErrorKind,
        /// The system's words.
        reason: String,
    },
}

/// Why a file was not written. The old one is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// What is there cannot be read, so it cannot be kept.
    #[error("{} is not overwritten: {error}", path.display())]
    Existing {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: ProfileError,
    },
    /// What is there belongs to another device.
    #[error("{} is not overwritten: {mismatch}", path.display())]
    OtherDevice {
        /// The file.
        path: PathBuf,
        /// What differs.
        mismatch: Mismatch,
    },
    /// Both together are too much for one file.
    #[error("{} is not overwritten: {error}", path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// What is too much.
        error: MergeError,
    },
    /// What would be written could not be read again.
    #[error("{} is not written, nobody could read it: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: ProfileError,
    },
    /// The file system refuses: no permission, no room, no such folder.
    #[error("{} cannot be written, {step}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What was tried, such as `locking`.
        step: &'static str,
        /// The system's kind of error.
        kind: io::ErrorKind,
        /// The system's words.
        reason: String,
    },
}

/// Why an entry was not taken into a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError {
    /// The entry is out of bounds.
    #[error(transparent)]
    Fault(#[from] EntryFault),
    /// The document is full.
    #[error("the profile has {MAX_ENTRIES} entries, which is all it takes: split it by kernel")]
    Full,
}
