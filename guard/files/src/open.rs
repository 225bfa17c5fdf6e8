//! Opens regular files without waiting for the other end of a pipe.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Opens a regular file at `path`, and follows no link.
pub(crate) fn open_unlinked(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_at_once(path, options, true)?
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, NOT_REGULAR))
}

pub(crate) const NOT_REGULAR: &str = "it is not a regular file";

/// Opens a file; `None` if the opened file is not a regular one.
#[cfg_attr(not(unix), allow(unused_variables, reason = "no flags"))]
pub(crate) fn open_at_once(
    path: &Path,
    options: &mut OpenOptions,
    refuses_links: bool,
) -> io::Result<Option<File>> {
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        let links = if refuses_links { OFlags::NOFOLLOW } else { OFlags::empty() };
        let flags = links | OFlags::NONBLOCK | OFlags::NOCTTY;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}
