//! Reads files that may be anything, and replaces them whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::bounds::MAX_FILE_BYTES;
use super::error::{ProfileError, StoreError};

/// The text of a file; `None` where there is none.
///
/// # Errors
///
/// As [`ProfileError`] says of files, those beyond the size limit unread.
pub(super) fn read(path: &Path) -> Result<Option<String>, ProfileError> {
    let refuse = |error: io::Error| ProfileError::Read {
        path: path.to_owned(),
        kind: error.kind(),
        reason: error.to_string(),
    };
    // Looked at before it is opened: to open a pipe is to wait for a writer.
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refuse(error)),
    };
    if !metadata.is_file() {
        return Err(ProfileError::NotAFile { path: path.to_owned() });
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(ProfileError::TooLarge { bytes: metadata.len() });
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refuse(error)),
    };
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    // It may have grown since.
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(refuse)?;
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if length > MAX_FILE_BYTES {
        return Err(ProfileError::TooLarge { bytes: length });
    }
    let text = String::from_utf8(bytes);
    text.map(Some)
        .map_err(|error| ProfileError::NotText { offset: error.utf8_error().valid_up_to() })
}

/// What is to stand in a file.
pub(super) struct Replacement<T> {
    pub(super) text: String,
    /// Whether what stood there is to be kept beside it.
    pub(super) keep_old: bool,
    /// What the change has to say.
    pub(super) outcome: T,
}

/// Replaces a file under its lock by what `change` makes of its text.
///
/// Others see the old file or the new one, whole, also after a crash or a power failure: the new
/// one is written beside it, put on disk, and moved. The answer is that of `change`, and where the
/// old file was copied to if `change` asked for that.
///
/// # Errors
///
/// Those of `change`, and [`StoreError::Write`]; the old file is as it was.
pub(super) fn replace<T>(
    path: &Path,
    change: impl FnOnce(Option<&str>) -> Result<Replacement<T>, StoreError>,
) -> Result<(T, Option<PathBuf>), StoreError> {
    // A link stays a link: the file that it leads to is replaced.
    let resolved = fs::canonicalize(path);
    let path = resolved.as_deref().unwrap_or(path);
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let failed = |step| move |error: io::Error| write_error(path, step, &error);
    fs::create_dir_all(folder).map_err(failed("making its folder"))?;
    let lock =
        OpenOptions::new().create(true).write(true).truncate(false).open(beside(path, ".lock"));
    let lock = lock.map_err(failed("opening its lock"))?;
    // Given up when the lock's file closes, be it by the death of the process.
    lock.lock().map_err(failed("locking"))?;
    delete_leftovers(path, folder);
    let old = read(path).map_err(|error| StoreError::Existing { path: path.to_owned(), error })?;
    let Replacement { text, keep_old, outcome } = change(old.as_deref())?;
    let kept = match old.filter(|_| keep_old) {
        Some(old) => Some(back_up(path, folder, &old)?),
        None => None,
    };
    let new = written(path, folder, &text)?;
    new.persist(path)
        .map_err(|refused| write_error(path, "moving it to its place", &refused.error))?;
    sync_folder(folder).map_err(failed("putting its folder on disk"))?;
    Ok((outcome, kept))
}

/// A new file in `folder` that holds `text`, on disk.
fn written(path: &Path, folder: &Path, text: &str) -> Result<NamedTempFile, StoreError> {
    let failed = |step| move |error: io::Error| write_error(path, step, &error);
    let prefix = temp_prefix(path);
    let mut named = tempfile::Builder::new();
    named.prefix(&prefix).suffix(TEMP_SUFFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any new file: all may read it whom the process's mask allows.
        named.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut file = named.tempfile_in(folder).map_err(failed("making a file beside it"))?;
    file.write_all(text.as_bytes()).map_err(failed("writing a file beside it"))?;
    // Before the move: after a power failure the name must not lead to bytes never written.
    file.as_file().sync_all().map_err(failed("putting it on disk"))?;
    Ok(file)
}

/// Copies the old text to the first free name among `.bak`, `.bak1`, ... beside the file.
fn back_up(path: &Path, folder: &Path, old: &str) -> Result<PathBuf, StoreError> {
    let mut copy = written(path, folder, old)?;
    for number in 0..MAX_BACKUPS {
        let number = if number == 0 { String::new() } else { number.to_string() };
        let place = beside(path, &format!(".bak{number}"));
        match copy.persist_noclobber(&place) {
            Ok(_) => return Ok(place),
            Err(taken) if taken.error.kind() == ErrorKind::AlreadyExists => copy = taken.file,
            Err(refused) => return Err(write_error(path, "keeping the old file", &refused.error)),
        }
    }
    let reason = io::Error::new(ErrorKind::AlreadyExists, "too many backups beside it");
    Err(write_error(path, "keeping the old file", &reason))
}

/// Deletes files that killed writers left. Under the lock nobody else is writing. Only a tidying:
/// what fails here costs some disk space.
fn delete_leftovers(path: &Path, folder: &Path) {
    let prefix = temp_prefix(path);
    let Ok(files) = fs::read_dir(folder) else {
        return;
    };
    for file in files.take(MAX_FILES_LOOKED_AT).flatten() {
        let name = file.file_name();
        let name = name.as_encoded_bytes();
        let ours = name.starts_with(prefix.as_encoded_bytes());
        if ours && name.ends_with(TEMP_SUFFIX.as_bytes()) {
            let _ = fs::remove_file(file.path());
        }
    }
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Elsewhere a folder is not opened as a file is.
#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// The path with `ending` after the name of the file.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

fn temp_prefix(path: &Path) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    prefix
}

fn write_error(path: &Path, step: &'static str, error: &io::Error) -> StoreError {
    StoreError::Write { path: path.to_owned(), step, kind: error.kind(), reason: error.to_string() }
}

const TEMP_SUFFIX: &str = ".tmp";
/// Old files with bad entries that are kept beside a file.
const MAX_BACKUPS: u32 = 100;
/// Files of a folder that are looked at for leftovers.
const MAX_FILES_LOOKED_AT: usize = 10_000;
