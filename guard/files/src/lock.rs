//! Locks files between processes.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::kind::open_regular;
use crate::publish::{PublishError, failed};

/// A lock file that this process holds. Dropping it releases the lock and deletes the file; the end of the process
/// only releases the lock.
///
/// The file names its holder, if the holder can write to it. Deleting it releases the lock too. A file with other
/// contents is locked, but neither overwritten nor deleted.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    path: PathBuf,
    /// Whether the file may be overwritten: it was empty or named a holder.
    is_named: bool,
}

/// Why a lock file was not locked.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum LockError {
    /// Another process still holds the lock.
    #[error("locked by {holder}, waited {:.1} s", waited.as_secs_f64())]
    Held { holder: String, waited: Duration },
    /// The lock file cannot be opened, is not a regular file, or cannot be locked.
    #[error(transparent)]
    Failed(#[from] PublishError),
}

impl FileLock {
    /// Locks the file at `path`, which is created if there is none. Waits for another holder, but at most `patience`.
    ///
    /// # Errors
    ///
    /// [`LockError`].
    pub fn acquire(path: &Path, patience: Duration) -> Result<Self, LockError> {
        let start = Instant::now();
        loop {
            let mut file = open(path).map_err(failed("opening its lock file"))?;
            let left = patience.saturating_sub(start.elapsed());
            let is_locked = try_lock(&file).map_err(failed("locking"))?
                || wait_for_lock(&file, left).map_err(failed("locking"))?;
            // A file that its holder has deleted is no lock: the next holder has made another one.
            if is_locked && !is_at(&file, path) {
                continue;
            }
            if is_locked {
                let is_own =
                    |start: Vec<u8>| start.is_empty() || start.starts_with(HOLDER.as_bytes());
                let is_named = start_of(&mut file).is_ok_and(is_own);
                let mut lock = Self { file, path: path.to_owned(), is_named };
                // The name is only information: the disk may be full.
                let _ = lock.write_holder();
                return Ok(lock);
            }
            let waited = start.elapsed();
            if waited >= patience {
                return Err(LockError::Held { holder: holder_in(&mut file), waited });
            }
        }
    }

    fn write_holder(&mut self) -> io::Result<()> {
        if !self.is_named {
            return Ok(());
        }
        // Removes the name of a process that was killed.
        self.file.set_len(0)?;
        self.file.rewind()?;
        #[cfg(unix)]
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        #[cfg(not(unix))]
        let host = "this host";
        let (process, since) =
            (std::process::id(), humantime::format_rfc3339_seconds(SystemTime::now()));
        self.file.write_all(format!("{HOLDER} {process} on {host} since {since}\n").as_bytes())
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if !self.is_named {
            return;
        }
        // Until the next holder has written its name, the file would name this process.
        let _ = self.file.set_len(0);
        // Where `is_at` cannot tell, a process that waits for this file would hold a deleted one.
        if cfg!(unix) && is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Locks `file` if that takes no longer than `patience`; returns whether it is locked. The kernel grants a
/// lock in the order of requests, while polling could miss each release.
fn wait_for_lock(file: &File, patience: Duration) -> io::Result<bool> {
    if patience.is_zero() {
        return Ok(false);
    }
    // Both descriptors share the lock. After a timeout the thread drops its descriptor, and the lock with it.
    let waiting = file.try_clone()?;
    let (locked, is_locked) = mpsc::channel();
    let wait = move || loop {
        match waiting.lock() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Nobody receives after a timeout.
            result => break drop(locked.send(result)),
        }
    };
    thread::Builder::new().spawn(wait)?;
    match is_locked.recv_timeout(patience) {
        Ok(result) => result.map(|()| true),
        Err(_) => Ok(false),
    }
}

/// Opens a lock file, and creates it if there is none. A file that this process may not write, for example one
/// of root, is opened for reading, which is enough to lock it.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).truncate(false);
    let open = |options: &mut _| open_regular(path, options, false).map_err(io::Error::from);
    let mut opened = open(&mut options);
    // With `create`, Linux may refuse to open a file of another user in a sticky folder.
    if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        opened = open(options.create(true));
    }
    match opened {
        Err(refused) if refused.kind() == ErrorKind::PermissionDenied => {
            open(options.create(false).write(false)).map_err(|_| refused)
        }
        opened => opened,
    }
}

/// Locks `file` if no other process holds it; returns whether it is locked.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(false),
        locked => locked.map(|()| true).map_err(io::Error::from),
    }
}

/// Whether an open file is still the file at `path`.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let place = |found: std::fs::Metadata| (found.dev(), found.ino());
    let (file, path) = (file.metadata().map(place), std::fs::symlink_metadata(path).map(place));
    file.ok().zip(path.ok()).is_some_and(|(file, path)| file == path)
}

#[cfg(not(unix))]
pub(crate) const fn is_at(_: &File, _: &Path) -> bool {
    true
}

fn start_of(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(HOLDER_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The line that names the holder. It is not trusted.
fn holder_in(file: &mut File) -> String {
    let read = start_of(file);
    let line = String::from_utf8_lossy(read.as_deref().unwrap_or_default());
    match line.trim_end() {
        "" => UNKNOWN.to_owned(),
        line => line.escape_debug().to_string(),
    }
}

const UNKNOWN: &str = "an unknown process";
/// The first word of the line.
const HOLDER: &str = "process";
/// The most that is read of a lock file.
const HOLDER_BYTES: u64 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> String {
        match FileLock::acquire(path, Duration::ZERO).expect_err("it is locked") {
            LockError::Held { holder, .. } => holder,
            LockError::Failed(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_lock_that_is_held_names_its_holder() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.lock");
        std::fs::write(&path, "process 1 on a killed one").expect("written");
        let lock = FileLock::acquire(&path, Duration::ZERO).expect("free");
        let holder = refused(&path);
        let process = format!("process {} on ", std::process::id());
        assert!(holder.starts_with(&process) && holder.contains(" since 20"), "{holder}");
        drop(lock);
        assert_eq!(path.exists(), cfg!(not(unix)));
        FileLock::acquire(&path, Duration::ZERO).expect("free again");
    }

    #[test]
    fn a_file_with_other_contents_is_locked_and_not_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("Cargo.lock");
        std::fs::write(&path, "version = 4\n").expect("written");
        let lock = FileLock::acquire(&path, Duration::ZERO).expect("free");
        assert_eq!(refused(&path), "version = 4");
        drop(lock);
        assert_eq!(std::fs::read(&path).expect("it remains"), b"version = 4\n");
    }

    #[test]
    fn a_read_only_lock_file_is_locked() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.lock");
        std::fs::write(&path, "").expect("written");
        let mut access = std::fs::metadata(&path).expect("there").permissions();
        access.set_readonly(true);
        std::fs::set_permissions(&path, access).expect("set");
        let lock = FileLock::acquire(&path, Duration::ZERO).expect("free");
        // Root may write to any file.
        let is_named = OpenOptions::new().write(true).open(&path).is_ok();
        assert_eq!(refused(&path) != UNKNOWN, is_named);
        drop(lock);
        FileLock::acquire(&path, Duration::ZERO).expect("free again");
    }

    #[test]
    fn the_name_of_a_holder_is_escaped_and_cut() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.lock");
        for (text, shown) in [
            (&b""[..], UNKNOWN),
            (b"\n", UNKNOWN),
            (b"\x1b[2J\nme\xff", "\\u{1b}[2J\\nme\u{fffd}"),
            (&[b'x'; 5000], &*"x".repeat(200)),
        ] {
            std::fs::write(&path, text).expect("written");
            let file = File::open(&path).expect("there");
            file.lock().expect("locked");
            assert_eq!(refused(&path), shown);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_deleted_lock_file_is_no_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.lock");
        let lock = FileLock::acquire(&path, Duration::ZERO).expect("free");
        let late = open(&path).expect("opened");
        assert!(is_at(&late, &path));
        drop(lock);
        assert!(try_lock(&late).expect("a lock, but of no file"));
        assert!(!is_at(&late, &path));
        let _lock = FileLock::acquire(&path, Duration::ZERO).expect("a new file is free");
        assert!(!is_at(&late, &path));
    }

    #[test]
    fn waiting_processes_get_the_lock_one_after_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.lock");
        let lock = FileLock::acquire(&path, Duration::ZERO).expect("free");
        thread::scope(|scope| {
            let wait = || FileLock::acquire(&path, Duration::MAX).map(drop);
            let waiting = [scope.spawn(wait), scope.spawn(wait)];
            thread::sleep(Duration::from_millis(50));
            assert!(!waiting.iter().any(thread::ScopedJoinHandle::is_finished));
            drop(lock);
            for waiting in waiting {
                waiting.join().expect("no panic").expect("the lock");
            }
        });
    }
}
