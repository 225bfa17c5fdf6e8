//! The documents of the repository.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The Markdown files below `folder`, without build output and hidden folders.
///
/// # Errors
///
/// A folder that cannot be read.
pub fn documents(folder: &Path) -> io::Result<Vec<PathBuf>> {
    files(folder, &["md"])
}

/// The files below `folder` with one of the extensions, as [`documents`].
///
/// # Errors
///
/// A folder that cannot be read.
pub fn files(folder: &Path, extensions: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                found.extend(files(&path, extensions)?);
            }
        } else if path.extension().is_some_and(|its| extensions.iter().any(|one| its == *one)) {
            found.push(path);
        }
    }
    Ok(found)
}
