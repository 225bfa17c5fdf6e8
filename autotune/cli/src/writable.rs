//! Files that are written in the end, looked at in the beginning.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;

use crate::failure::Failure;

/// Opens a file for writing, or makes another one in its folder, and leaves both as they were: where
/// that fails, nothing need be measured for it.
pub(crate) fn check(file: &Path) -> Result<(), Failure> {
    let opened = match OpenOptions::new().append(true).open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            tempfile::tempfile_in(folder.unwrap_or(Path::new("."))).map(drop)
        }
        opened => opened.map(drop),
    };
    opened.map_err(Failure::io(file.display().to_string()))
}
