//! Tells regular files, streams and missing files apart.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

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
    let refused = |what: &str| Err(io::Error::new(ErrorKind::InvalidInput, what.to_owned()));
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(FileKind::Missing),
        Err(error) => return Err(error),
    };
    if found.is_file() {
        return Ok(FileKind::Regular);
    }
    if found.is_dir() {
        return refused("it is a folder");
    }
    if found.is_symlink() {
        return refused("it is a link");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_socket() {
            return refused("it is a socket");
        }
        if found.is_block_device() {
            return refused("it is a block device");
        }
    }
    Ok(FileKind::Stream)
}
