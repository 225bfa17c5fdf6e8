//! Reads profiles and writes results, with notes about faults.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use gridguard::profile::{self, ParsedProfile, Published};
use gridguard_files::write_output;

use crate::error::CommandError;
use crate::output::note;

/// Reads a profile and notes its invalid entries; `None` if there is no file.
pub(crate) fn load_profile(path: &Path) -> Result<Option<ParsedProfile>, CommandError> {
    let parsed = profile::load(path).map_err(CommandError::profile(path))?;
    for fault in parsed.iter().flat_map(|parsed| &parsed.faults) {
        note(format_args!("{}:{fault}", path.display()));
    }
    Ok(parsed)
}

/// The files, and the profiles of each folder by name.
pub(crate) fn profiles(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CommandError> {
    let mut files = Vec::new();
    for path in paths {
        let mut found = vec![path.clone()];
        if path.is_dir() {
            let read = fs::read_dir(path).and_then(|all| all.map(|one| Ok(one?.path())).collect());
            found = read.map_err(CommandError::io(path.display()))?;
            found.retain(|file| file.extension().is_some_and(|end| end == "ron"));
            found.sort();
        }
        files.append(&mut found);
    }
    Ok(files)
}

/// Notes the side effects of a profile update.
pub(crate) fn note_published<T>(file: &Path, published: &Published<T>) {
    let Published { backup, owner, .. } = published;
    let file = file.display();
    if let Some(backup) = backup {
        let backup = backup.display();
        note(format_args!("{file} had invalid entries; the original is kept as {backup}"));
    }
    if let Some(change) = owner {
        note(format_args!("{file}: {change}"));
    }
}

/// Opens a file or a pipe.
pub(crate) fn open(path: &Path) -> Result<File, CommandError> {
    open_with(path, File::options().read(true))
}

pub(crate) fn open_with(path: &Path, options: &OpenOptions) -> Result<File, CommandError> {
    match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(CommandError::missing_file(path)),
        Ok(file) if file.metadata().is_ok_and(|it| it.is_dir()) => {
            Err(CommandError::invalid_file(path, "is a folder, not a file"))
        }
        opened => opened.map_err(CommandError::io(path.display())),
    }
}

/// The first bytes of a file or a pipe, up to `limit`.
pub(crate) fn read_start(path: &Path, limit: u64) -> Result<Vec<u8>, CommandError> {
    let mut bytes = Vec::new();
    let read = open(path)?.take(limit).read_to_end(&mut bytes);
    read.map_err(CommandError::io(path.display()))?;
    Ok(bytes)
}

pub(crate) fn write_file(path: &Path, contents: impl AsRef<[u8]>) -> Result<(), CommandError> {
    let file = path.display();
    let written = write_output(path, contents.as_ref());
    if let Some(change) = written.map_err(CommandError::publish(path))? {
        note(format_args!("{file}: {change}"));
    }
    Ok(())
}
