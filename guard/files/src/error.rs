//! Why a file is not read.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ReadError {
    /// It is a folder, a pipe or a device.
    #[error("it is not a regular file")]
    NotRegular,
    /// It is larger than the caller's limit.
    #[error("it has {bytes} bytes, the limit is {limit}")]
    TooLarge { bytes: u64, limit: u64 },
    /// Another user may have written it.
    #[error(transparent)]
    Untrusted(#[from] Distrust),
    /// An error of the operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => error,
            other => Self::new(ErrorKind::InvalidInput, other),
        }
    }
}

/// Why a file or its folder is not trusted: another user than root may have written it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum Distrust {
    /// It is a link, which is not followed.
    #[error("{} is a link: replace it by the file", path.display())]
    Link { path: PathBuf },
    /// It belongs to another user.
    #[error("{} belongs to user {owner}: only files of root and of user {user}, who runs this, are trusted", path.display())]
    Owner { path: PathBuf, owner: u32, user: u32 },
    /// Its group or everyone can write to it. The sticky bit of a folder makes no difference.
    #[error("{} has the mode {mode:04o}, so that others can write to it: run chmod go-w on it", path.display())]
    Writable { path: PathBuf, mode: u32 },
}
