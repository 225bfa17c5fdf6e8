//! Writes reports and records to files, pipes and devices, and waits for a reader no longer than [`PATIENCE`].

use core::ffi::c_int;
use core::fmt;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gridguard_files::{FileKind, file_kind};

/// A file that an environment variable names.
#[derive(Debug)]
pub(crate) enum Output {
    /// A path.
    Path(PathBuf),
    /// `/dev/fd/N`, `/dev/stdout` or `/dev/stderr`.
    Open(OpenFile),
}

/// A descriptor and the identity of its file when the program began. A program that closes the descriptor may open
/// another file with the same number.
#[derive(Debug)]
pub(crate) struct OpenFile {
    descriptor: c_int,
    /// Device and file number.
    identity: Option<(u64, u64)>,
}

impl Output {
    pub(crate) fn new(path: OsString) -> Self {
        let number = path.to_str().and_then(|path| match path {
            "/dev/stdout" => Some(libc::STDOUT_FILENO),
            "/dev/stderr" => Some(libc::STDERR_FILENO),
            _ => path.strip_prefix("/dev/fd/")?.parse().ok(),
        });
        number.map_or_else(|| Self::Path(path.into()), |number| Self::Open(OpenFile::now(number)))
    }

    /// Whether it is a pipe, a device or an open file. Each report is then appended.
    pub(crate) fn is_stream(&self) -> bool {
        match self {
            Self::Path(path) => file_kind(path).is_ok_and(|kind| kind == FileKind::Stream),
            Self::Open(_) => true,
        }
    }

    /// Appends to the file, pipe or device. A missing file is created.
    pub(crate) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        without_signals(|| match self {
            Self::Open(opened) => opened.write(bytes),
            Self::Path(path) if file_kind(path)? == FileKind::Stream => {
                write_patiently(descriptor_of(path)?, bytes, PATIENCE)
            }
            // Opened again each time, because programs close descriptors that they do not know.
            Self::Path(path) => gridguard_files::append(path)?.write_all(bytes),
        })
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Open(opened) => write!(f, "/dev/fd/{}", opened.descriptor),
        }
    }
}

impl OpenFile {
    /// The descriptor with its present file.
    pub(crate) fn now(descriptor: c_int) -> Self {
        Self { descriptor, identity: identity_of(descriptor) }
    }

    /// Whether the descriptor still has the same file.
    pub(crate) fn is_same(&self) -> bool {
        self.identity.is_some() && identity_of(self.descriptor) == self.identity
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_same() {
            let why = "the program has closed it since";
            return Err(io::Error::new(ErrorKind::NotFound, why));
        }
        write_patiently(self.descriptor, bytes, PATIENCE)
    }
}

/// A descriptor of the pipe or device at `path`. It stays open, because its reader stops at the end of a pipe
/// without a writer.
fn descriptor_of(path: &Path) -> io::Result<c_int> {
    static STREAM: AtomicI32 = AtomicI32::new(-1);
    let known = STREAM.load(Ordering::Relaxed);
    let found = fs::symlink_metadata(path)?;
    if identity_of(known) == Some((found.dev(), found.ino())) {
        return Ok(known);
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    let opened = File::options().write(true).custom_flags(flags).open(path);
    let stream = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) => io::Error::new(ErrorKind::NotConnected, "nobody reads the pipe"),
        _ => error,
    })?;
    // Another process may have replaced it before it was opened.
    if identity_of(stream.as_raw_fd()) != Some((found.dev(), found.ino())) {
        return Err(ErrorKind::NotFound.into());
    }
    let fresh = stream.into_raw_fd();
    STREAM.store(fresh, Ordering::Relaxed);
    Ok(fresh)
}

/// Writes everything, unless its reader does not take it in time.
pub(crate) fn write_patiently(
    descriptor: c_int,
    bytes: &[u8],
    patience: Duration,
) -> io::Result<()> {
    let end = Instant::now() + patience;
    // The flag of the program's own opening is shared with other processes, so a terminal or pipe is opened again.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let again =
        File::options().write(true).custom_flags(flags).open(format!("/proc/self/fd/{descriptor}"));
    let is_stream = |file: &File| {
        let kind = file.metadata().map(|known| known.file_type());
        kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device())
    };
    let opened = again.ok().filter(is_stream);
    let descriptor = opened.as_ref().map_or(descriptor, AsRawFd::as_raw_fd);
    // SAFETY: a descriptor that was checked just now, and that `ManuallyDrop` leaves open.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    let mut rest = bytes;
    while !rest.is_empty() {
        let left = end.saturating_duration_since(Instant::now()).as_millis();
        let left = c_int::try_from(left).unwrap_or(c_int::MAX);
        let mut wait = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
        // SAFETY: the pointer is to one structure of this type.
        if unsafe { libc::poll(&raw mut wait, 1, left) } == 0 {
            return Err(io::Error::new(ErrorKind::TimedOut, "its reader takes nothing"));
        }
        // `poll` promises room for a chunk of this size, so that the write does not block.
        match file.write(&rest[..rest.len().min(libc::PIPE_BUF)]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            Err(error)
                if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs `work`. Writes to a closed pipe, or beyond the user's limit on file sizes, fail instead of raising a signal.
pub(crate) fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let mut raised = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: all pointers are to signal sets, which the first calls initialise. The signals that are taken
    // are those that the writes raised, on this thread, since none of them was pending before.
    unsafe {
        libc::sigemptyset(raised.as_mut_ptr());
        libc::sigaddset(raised.as_mut_ptr(), libc::SIGPIPE);
        libc::sigaddset(raised.as_mut_ptr(), libc::SIGXFSZ);
        libc::sigpending(pending.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, raised.as_ptr(), before.as_mut_ptr());
        let result = work();
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            if libc::sigismember(pending.as_ptr(), signal) == 1 {
                libc::sigdelset(raised.as_mut_ptr(), signal);
            }
        }
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        while libc::sigtimedwait(raised.as_ptr(), ptr::null_mut(), &raw const now) > 0 {}
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        result
    }
}

/// Device and file number of a descriptor.
fn identity_of(descriptor: c_int) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the pointer is to a structure of this type; a closed descriptor is an error.
    let found = unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } == 0;
    // SAFETY: a structure of integers, and zeros are valid integers.
    let status = unsafe { status.assume_init() };
    found.then_some((status.st_dev, status.st_ino))
}

/// How long a reader may take.
const PATIENCE: Duration = Duration::from_secs(5);
