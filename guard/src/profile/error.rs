//! Why a profile cannot be read, merged or written.

use core::fmt::Display;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::device::DeviceMismatch;

/// An error at a position of a file.
#[derive(Clone, Debug, derive_more::Display, PartialEq, Eq, Serialize)]
#[display("{line}:{column}: {message}")]
pub struct FileFault {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// The fault.
    pub message: String,
}

/// Why a profile, a file of shapes or an entry cannot be read, merged or written. If writing fails, the old file is
/// unchanged.
///
/// The message says what to change. The [kind](Self::kind) tells apart what a program may handle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProfileError {
    kind: ProfileErrorKind,
    message: String,
}

/// The kind of a [`ProfileError`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileErrorKind {
    /// An entry is outside the limits, or the profile cannot take it.
    Entry,
    /// A decision list is outside the limits, or one of its rows contradicts an entry.
    Decision,
    /// The file was written by another version.
    Schema,
    /// The fields before the list of entries do not parse.
    Header(FileFault),
    /// The file is not UTF-8.
    NotText,
    /// There are too many bytes, entries or aliases.
    TooLarge,
    /// The path leads to a folder, pipe or device.
    NotAFile,
    /// The file system reports an error of reading.
    Read(io::ErrorKind),
    /// Profiles of different devices cannot be merged.
    OtherDevice {
        /// The document of another device, from 0. Document 0 is the target of the merge.
        document: usize,
        /// The difference.
        mismatch: DeviceMismatch,
    },
    /// The existing file cannot be merged with, so it is not overwritten.
    NotReplaced,
    /// The new file would not parse.
    Unreadable,
    /// Another process holds the file's lock.
    Locked,
    /// The file system reports an error of writing, for example no permission or no space.
    Write(io::ErrorKind),
}

impl ProfileError {
    /// The kind.
    pub const fn kind(&self) -> &ProfileErrorKind {
        &self.kind
    }

    const fn new(kind: ProfileErrorKind, message: String) -> Self {
        Self { kind, message }
    }

    pub(super) fn schema(found: u64) -> Self {
        let message = format!(
            "the file has schema {found}, which this version does not read: use a matching version, \
             or re-tune"
        );
        Self::new(ProfileErrorKind::Schema, message)
    }

    pub(super) fn header(fault: FileFault) -> Self {
        let message = format!("the header does not parse: {fault}");
        Self::new(ProfileErrorKind::Header(fault), message)
    }

    pub(super) fn too_large(message: String) -> Self {
        Self::new(ProfileErrorKind::TooLarge, message)
    }

    pub(super) fn too_many_entries() -> Self {
        let entries = format!("the file has more than {MAX_ENTRIES} entries: split it by kernel");
        Self::too_large(entries)
    }

    /// Of a file of `bytes`, or of the number of bytes read if the file grew.
    pub(super) fn too_many_bytes(bytes: u64) -> Self {
        Self::too_large(format!(
            "the file has {bytes} bytes, the limit is {MAX_FILE_BYTES}: split it by kernel"
        ))
    }

    /// Of a file whose byte at `offset` is the first that is not UTF-8.
    pub(super) fn not_text(offset: usize) -> Self {
        let message = format!("the file is not UTF-8 at byte {offset}: restore it from a copy");
        Self::new(ProfileErrorKind::NotText, message)
    }

    pub(super) fn not_a_file(path: &Path) -> Self {
        let message = format!("{} is not a regular file: give the path of a file", path.display());
        Self::new(ProfileErrorKind::NotAFile, message)
    }

    pub(super) fn read(path: &Path, kind: io::ErrorKind, reason: impl Display) -> Self {
        let message = format!("cannot read {}: {reason}", path.display());
        Self::new(ProfileErrorKind::Read(kind), message)
    }

    pub(super) fn other_device(document: usize, mismatch: DeviceMismatch) -> Self {
        let message = format!("the profiles cannot be merged: {mismatch}");
        Self::new(ProfileErrorKind::OtherDevice { document, mismatch }, message)
    }

    pub(super) fn merged_entries(entries: usize) -> Self {
        Self::too_large(format!(
            "the merged profile would have {entries} entries, the limit is {MAX_ENTRIES}: \
             split the profiles by kernel"
        ))
    }

    pub(super) fn merged_aliases(aliases: usize) -> Self {
        Self::too_large(format!(
            "the merged profile would have {aliases} aliases, the limit is {MAX_ALIASES}: remove some"
        ))
    }

    pub(super) fn not_replaced(path: &Path, reason: &Self) -> Self {
        let message = format!("{} was not overwritten: {reason}", path.display());
        Self::new(ProfileErrorKind::NotReplaced, message)
    }

    pub(super) fn unreadable(path: &Path, reason: &Self) -> Self {
        let path = path.display();
        let message =
            format!("{path} was not written, because the new text does not parse: {reason}");
        Self::new(ProfileErrorKind::Unreadable, message)
    }

    /// Of a lock that this process waited for. The `holder` is for example
    /// `process 4711 on node7 since 2026-11-20T12:00:00Z`.
    pub(super) fn locked(path: &Path, holder: &str, waited: Duration) -> Self {
        let message = format!(
            "{} is locked by {holder}, waited {:.1} s: end that process, or try again later",
            path.display(),
            waited.as_secs_f64()
        );
        Self::new(ProfileErrorKind::Locked, message)
    }

    /// Of a `step` of writing, for example `locking`.
    pub(super) fn write(path: &Path, step: &str, error: &io::Error) -> Self {
        let message = format!("cannot write {} ({step}): {error}", path.display());
        Self::new(ProfileErrorKind::Write(error.kind()), message)
    }

    /// Of a decision list.
    pub(super) const fn decision(message: String) -> Self {
        Self::new(ProfileErrorKind::Decision, message)
    }

    /// Of an entry outside the limits.
    pub(super) fn entry(message: impl Into<String>) -> Self {
        Self::new(ProfileErrorKind::Entry, message.into())
    }
}

/// The schema of files without decision lists.
pub(super) const SCHEMA: u64 = 1;
/// The schema of profiles with decision lists, which earlier versions would ignore.
pub(super) const DECIDED_SCHEMA: u64 = 2;
/// The most entries of a file, valid and invalid together.
pub const MAX_ENTRIES: usize = 200_000;
/// The most bytes of a file. A larger file is rejected without reading it.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// The most other device names that a file may declare.
pub(super) const MAX_ALIASES: usize = 64;

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn every_error_of_a_file_says_what_to_change() {
        let path = Path::new("profiles/nvidia-h200.ron");
        let mismatch = DeviceMismatch {
            property: "the number of multiprocessors",
            profile: "132".into(),
            device: "66".into(),
        };
        let name = DeviceMismatch {
            property: "the device name",
            profile: "NVIDIA H200".into(),
            device: "NVIDIA H100".into(),
        };
        let fault = FileFault { line: 7, column: 5, message: "unexpected field".into() };
        let holder = "process 4711 on node7 since 2026-11-20T12:00:00Z";
        let full = io::Error::new(io::ErrorKind::StorageFull, "no space left on device");
        let texts = [
            ProfileError::schema(3),
            ProfileError::header(fault),
            ProfileError::too_many_entries(),
            ProfileError::too_many_bytes(1 << 30),
            ProfileError::not_text(3),
            ProfileError::not_a_file(path),
            ProfileError::read(path, io::ErrorKind::PermissionDenied, "permission denied"),
            ProfileError::not_replaced(path, &ProfileError::schema(3)),
            ProfileError::not_replaced(path, &ProfileError::other_device(1, mismatch)),
            ProfileError::other_device(1, name),
            ProfileError::merged_entries(200_001),
            ProfileError::merged_aliases(65),
            ProfileError::unreadable(path, &ProfileError::too_many_entries()),
            ProfileError::locked(path, holder, Duration::from_millis(30_040)),
            ProfileError::write(path, "flushing to disk", &full),
        ];
        let texts: String = texts.iter().map(|error| format!("{error}\n")).collect();
        expect![[r#"
            the file has schema 3, which this version does not read: use a matching version, or re-tune
            the header does not parse: 7:5: unexpected field
            the file has more than 200000 entries: split it by kernel
            the file has 1073741824 bytes, the limit is 67108864: split it by kernel
            the file is not UTF-8 at byte 3: restore it from a copy
            profiles/nvidia-h200.ron is not a regular file: give the path of a file
            cannot read profiles/nvidia-h200.ron: permission denied
            profiles/nvidia-h200.ron was not overwritten: the file has schema 3, which this version does not read: use a matching version, or re-tune
            profiles/nvidia-h200.ron was not overwritten: the profiles cannot be merged: the number of multiprocessors is 132 in the profile and 66 on this device: tune on this device
            the profiles cannot be merged: the device name is NVIDIA H200 in the profile and NVIDIA H100 on this device: tune on this device, or add its name to the profile's aliases
            the merged profile would have 200001 entries, the limit is 200000: split the profiles by kernel
            the merged profile would have 65 aliases, the limit is 64: remove some
            profiles/nvidia-h200.ron was not written, because the new text does not parse: the file has more than 200000 entries: split it by kernel
            profiles/nvidia-h200.ron is locked by process 4711 on node7 since 2026-11-20T12:00:00Z, waited 30.0 s: end that process, or try again later
            cannot write profiles/nvidia-h200.ron (flushing to disk): no space left on device
        "#]]
        .assert_eq(&texts);
    }
}
