//! Checks and creates the files of `--report` and `--record` before the program starts.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gridguard::check::CheckRequest;
use gridguard_files::{
    FileKind, check_output, delete_leftovers, file_kind, publish_if, read, resolve_links,
};
use gridguard_report::{MAX_REPORT_BYTES, ReportHead};

use crate::error::CommandError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Report,
    Record,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Output {
    kind: Kind,
    /// Without links.
    path: PathBuf,
    is_stream: bool,
}

impl Output {
    /// Checks that the program can probably write to `named`, without changing anything.
    pub(super) fn new(kind: Kind, named: &Path) -> Result<Self, CommandError> {
        let failed = || CommandError::io(cannot_write(named));
        let path = std::path::absolute(named).map_err(failed())?;
        if let Some(path) = open_file(&path).map_err(failed())? {
            return Ok(Self { kind, path, is_stream: true });
        }
        let path = resolve_links(&path).map_err(failed())?;
        let found = file_kind(&path).map_err(failed())?;
        match found {
            FileKind::Missing => check_folder(&path).map_err(failed())?,
            FileKind::Regular => check_file(&path).map_err(failed())?,
            // Opening a pipe would wait for its reader, and closing it would end it.
            FileKind::Stream => {}
        }
        let may_replace = |old: Option<Vec<u8>>| old.is_none_or(|old| kind.may_replace(&old));
        if found == FileKind::Regular && !read(&path, MAX_REPORT_BYTES).is_ok_and(may_replace) {
            return Err(kind.is_other(named));
        }
        Ok(Self { kind, path, is_stream: found == FileKind::Stream })
    }

    /// Creates or replaces a file with `contents`. Writes nothing to pipes and devices.
    pub(super) fn begin(&self, contents: &[u8]) -> Result<(), CommandError> {
        let Self { kind, path, is_stream } = self;
        if *is_stream {
            return Ok(());
        }
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let folder = path.parent().unwrap_or(path);
        delete_leftovers(folder, |file| file == name, LEFTOVER_AGE);
        let published = publish_if(path, contents, MAX_REPORT_BYTES, |old| kind.may_replace(old));
        match published.map_err(|error| CommandError::io(cannot_write(path))(error.into()))? {
            true => Ok(()),
            false => Err(kind.is_other(path)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Kind {
    /// Whether a file with these contents may be replaced: it is a report or record, or empty.
    fn may_replace(self, old: &[u8]) -> bool {
        let first_line = old.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let is_own = || match self {
            Self::Report => serde_json::from_slice::<ReportHead>(old).is_ok(),
            Self::Record => serde_json::from_slice::<CheckRequest>(first_line).is_ok(),
        };
        // `mktemp` creates empty files, and a record without launches is empty.
        old.is_empty() || is_own()
    }

    fn is_other(self, path: &Path) -> CommandError {
        let kind = match self {
            Self::Report => "report",
            Self::Record => "record",
        };
        CommandError::invalid(format_args!(
            "{}: it is no {kind} of `gridguard run`, and is not replaced: name another file, or delete it",
            cannot_write(path)
        ))
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// `/dev/fd/N` if `path` names an open file of this process, for example `/dev/stdout` or a shell's
/// `>(COMMAND)`. The program inherits the descriptor.
fn open_file(path: &Path) -> io::Result<Option<PathBuf>> {
    let own = fs::canonicalize("/proc/self/fd")?;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { break };
        if fs::canonicalize(folder).is_ok_and(|folder| folder == own) {
            // Fails if the descriptor is closed.
            fs::symlink_metadata(&path)?;
            return Ok(Some(Path::new("/dev/fd").join(name)));
        }
        let Ok(link) = fs::read_link(&path) else { break };
        path = folder.join(link);
    }
    Ok(None)
}

/// Checks before a long run that the file can be created.
fn check_folder(path: &Path) -> io::Result<()> {
    // A missing folder is probably a mistyped path, so it is not created.
    fs::metadata(path.parent().unwrap_or(path))?;
    Ok(check_output(path)?)
}

/// Checks that the user may write to the file. Renaming over a file does not check that.
fn check_file(path: &Path) -> io::Result<()> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
    // Root may write to any file.
    if mode & 0o222 == 0 {
        let why = format!("it is read-only (mode {mode:04o})");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    File::options().append(true).open(path).map(drop)
}

/// Temporary files of killed programs are older.
const LEFTOVER_AGE: Duration = Duration::from_secs(60 * 60);
/// As many as Linux follows.
const MAX_LINKS: u32 = 40;
