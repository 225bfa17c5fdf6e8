//! Determines kinds of files, and opens regular files without waiting for the other end of a pipe.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
#[cfg(unix)]
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::ReadError;

/// The kind of file at a path, which decides how it can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// There is no file.
    Missing,
    /// A regular file.
    Regular,
    /// A pipe or a character device.
    Stream,
}

/// The kind of file at `path`. Does not follow links.
///
/// # Errors
///
/// The system's error; [`ErrorKind::InvalidInput`] for a folder, a link, a socket or a block device, which no
/// output may replace.
pub fn file_kind(path: &Path) -> io::Result<FileKind> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(FileKind::Missing),
        Err(error) => return Err(error),
    };
    let refused = [
        (found.is_dir(), "it is a folder"),
        (found.is_symlink(), "it is a link"),
        #[cfg(unix)]
        (found.is_socket(), "it is a socket"),
        #[cfg(unix)]
        (found.is_block_device(), "it is a block device"),
    ];
    match refused.into_iter().find(|(is_it, _)| *is_it) {
        Some((_, what)) => Err(io::Error::new(ErrorKind::InvalidInput, what)),
        None if found.is_file() => Ok(FileKind::Regular),
        None => Ok(FileKind::Stream),
    }
}

/// Opens the regular file at `path`.
pub(crate) fn open_regular(
    path: &Path,
    options: &mut OpenOptions,
    follows_links: bool,
) -> Result<File, ReadError> {
    let may_open = if follows_links {
        fs::metadata(path)?.is_file()
    } else {
        file_kind(path)? != FileKind::Stream
    };
    // Opening a device may have an effect.
    if !may_open {
        return Err(ReadError::NotRegular);
    }
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;

        let links = if follows_links { OFlags::empty() } else { OFlags::NOFOLLOW };
        let flags = links | OFlags::NONBLOCK | OFlags::NOCTTY;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(ReadError::NotRegular) }
}
