//! Replaces files only if their contents are accepted, and follows no link.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fs4::fs_std::FileExt;

use super::lock::is_at;
use super::place::{Place, place};
use super::publish::{PublishError, failed, persist_new, persist_over};
use super::read::read_all;

/// Opens a regular file for appending, and creates it if there is none. Follows no link.
///
/// # Errors
///
/// Those of [`place`], and the system's.
pub fn append(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    open_at(path, options.append(true).create(true))
}

/// Creates the file at `path`, or replaces it if `may_replace` accepts its contents. Returns whether the file was
/// written. Follows no link and creates no folder, and is otherwise like [`publish`](super::publish).
///
/// If several processes replace one file, each decides by the contents that the process before it has written.
///
/// # Errors
///
/// [`PublishError`], also if another process keeps the old file locked.
pub fn publish_over(
    path: &Path,
    contents: &[u8],
    limit: u64,
    may_replace: impl Fn(&[u8]) -> bool,
) -> Result<bool, PublishError> {
    let begun = Instant::now();
    loop {
        let Some(old) = existing(path).map_err(failed("opening it"))? else {
            if persist_new(path, contents)? {
                return Ok(true);
            }
            // Another process was faster.
            continue;
        };
        let accepts = |text: Vec<u8>| may_replace(&text);
        if !read_all(&old, limit).is_ok_and(accepts) {
            return Ok(false);
        }
        if FileExt::try_lock_exclusive(&old).map_err(failed("locking it"))? {
            if is_at(&old, path) {
                return persist_over(path, contents, &old).map(|()| true);
            }
        } else if begun.elapsed() > PATIENCE {
            return Err(failed("locking it")(ErrorKind::TimedOut.into()));
        } else {
            sleep(Duration::from_millis(5));
        }
    }
}

/// The regular file at `path`; `None` if there is nothing.
fn existing(path: &Path) -> io::Result<Option<File>> {
    match open_at(path, File::options().read(true)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Opens a regular file at `path` itself, and waits for nothing.
fn open_at(path: &Path, options: &mut fs::OpenOptions) -> io::Result<File> {
    // Before opening, because opening a device may have an effect.
    let not_regular = || io::Error::new(ErrorKind::InvalidInput, "it is not a regular file");
    if place(path)? == Place::Stream {
        return Err(not_regular());
    }
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    // After opening, because the file may have been replaced in between.
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// The lock is held for as long as writing one file takes.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    #[test]
    fn only_contents_that_are_accepted_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let over = |contents: &[u8], old: &'static [u8]| {
            publish_over(&path, contents, LIMIT, |text| text == old).expect("published")
        };
        assert!(over(b"one", b"nothing is asked"));
        assert!(!over(b"two", b"other"));
        assert!(over(b"two", b"one"));
        assert_eq!(fs::read(&path).expect("there"), b"two");
        fs::write(&path, vec![0; 1001]).expect("written");
        assert!(!publish_over(&path, b"three", LIMIT, |_| true).expect("beyond the limit"));
        let missing = folder.path().join("no folder").join("file");
        publish_over(&missing, b"", LIMIT, |_| true).expect_err("no folder");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn of_processes_that_replace_one_file_one_is_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "free").expect("written");
        let claim = |number: u32| {
            let text = number.to_string();
            publish_over(&path, text.as_bytes(), LIMIT, |old| old == b"free").expect("published")
        };
        let done: Vec<bool> = std::thread::scope(|scope| {
            let claims: Vec<_> = (0..8).map(|number| scope.spawn(move || claim(number))).collect();
            claims.into_iter().map(|claim| claim.join().expect("no panic")).collect()
        });
        assert_eq!(done.iter().filter(|done| **done).count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_special_files_are_neither_followed_nor_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("victim"), "victim").expect("written");
        std::os::unix::fs::symlink("victim", path("link")).expect("a link");
        std::os::unix::fs::symlink("new", path("dangling")).expect("a link");
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).expect("a socket");
        fs::create_dir(path("folder")).expect("made");
        let pipe = std::process::Command::new("mkfifo").arg(path("pipe")).status();
        assert!(pipe.expect("runs").success());
        for (name, why) in [
            ("link", "it is a link"),
            ("dangling", "it is a link"),
            ("socket", "it is a socket"),
            ("folder", "it is a folder"),
            ("pipe", "it is not a regular file"),
        ] {
            let refused = publish_over(&path(name), b"x", LIMIT, |_| true).expect_err(name);
            assert_eq!(refused.error.to_string(), why);
            assert_eq!(append(&path(name)).expect_err(name).to_string(), why);
        }
        assert_eq!(place(&path("pipe")).expect("a stream"), Place::Stream);
        assert_eq!(place(&path("nothing")).expect("free"), Place::Free);
        assert_eq!(fs::read(path("victim")).expect("there"), b"victim");
        assert!(!path("new").exists());
    }
}
