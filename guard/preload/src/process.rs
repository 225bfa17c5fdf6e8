//! What concerns the whole process: its options, its standard error, its end, its children, signals.

use core::ffi::{c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What `gridguard run` passes on, in environment variables.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Ends the program at the first refused launch.
    pub(crate) abort: bool,
    /// Waits for each launch.
    pub(crate) sync: bool,
    /// Rewrites PTX as it is loaded, and launches what is too large in parts.
    pub(crate) fix: bool,
    /// The driver compiles the PTX of fat binaries, whatever machine code they have.
    pub(crate) forces_ptx: bool,
    /// Prints no summary at the end.
    pub(crate) quiet: bool,
    /// The file of the report.
    pub(crate) report: Option<PathBuf>,
    /// The file of the recorded launches.
    pub(crate) record: Option<PathBuf>,
}

/// The options, read when the library was loaded: programs change their environment.
pub(crate) fn options() -> &'static Options {
    static NONE: Options = Options {
        abort: false,
        sync: false,
        fix: false,
        forces_ptx: false,
        quiet: false,
        report: None,
        record: None,
    };
    // SAFETY: null, or options that are never freed nor changed.
    unsafe { OPTIONS.load(Ordering::Acquire).as_ref() }.unwrap_or(&NONE)
}

static OPTIONS: AtomicPtr<Options> = AtomicPtr::new(ptr::null_mut());
/// Device and file number of standard error when the library was loaded.
static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Reads the options, and notes what standard error is, before the program begins.
pub(crate) fn begin() {
    if let Some((device, file)) = identity_of_stderr() {
        STDERR[0].store(device, Ordering::Relaxed);
        STDERR[1].store(file, Ordering::Relaxed);
    }
    let flag = |name| variable(name).is_some_and(|value| value != "0");
    let path = |name| variable(name).map(PathBuf::from);
    let options = Options {
        abort: flag(c"GRIDGUARD_RUN_ABORT"),
        sync: flag(c"GRIDGUARD_RUN_SYNC"),
        fix: flag(c"GRIDGUARD_RUN_FIX"),
        forces_ptx: flag(c"CUDA_FORCE_PTX_JIT"),
        quiet: flag(c"GRIDGUARD_RUN_QUIET"),
        report: path(c"GRIDGUARD_RUN_REPORT"),
        record: path(c"GRIDGUARD_RUN_RECORD"),
    };
    OPTIONS.store(Box::into_raw(Box::new(options)), Ordering::Release);
}

/// The value of an environment variable, unless it is empty.
fn variable(name: &CStr) -> Option<OsString> {
    // SAFETY: a name. No other thread changes the environment while libraries are loaded.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: not null, so a string, which is copied at once.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })?;
    (!value.is_empty()).then(|| OsStr::from_bytes(value.to_bytes()).to_owned())
}

fn identity_of_stderr() -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the pointer is to a structure of this type; a closed descriptor is an error.
    let found = unsafe { libc::fstat(libc::STDERR_FILENO, status.as_mut_ptr()) } == 0;
    // SAFETY: integers, for which all zeros are valid.
    let status = unsafe { status.assume_init() };
    found.then_some((status.st_dev, status.st_ino))
}

/// Writes `text` to standard error, if that is still what it was when the program began: a program that
/// closed it may have opened another file under its number.
pub(crate) fn say(text: &str) {
    let known = (STDERR[0].load(Ordering::Relaxed), STDERR[1].load(Ordering::Relaxed));
    if known == (0, 0) || identity_of_stderr() != Some(known) {
        return;
    }
    without_sigpipe(|| write_all(libc::STDERR_FILENO, text.as_bytes()));
}

fn write_all(descriptor: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: so many bytes at this address.
        let written = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => bytes = bytes.get(written..).unwrap_or_default(),
            Err(_) if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            // Closed, full, or not ready: the program is not held up.
            _ => return,
        }
    }
}

/// Runs `work`, whose writes to a closed pipe raise no signal.
fn without_sigpipe(work: impl FnOnce()) {
    let mut pipe = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: all pointers are to signal sets, which the first calls initialise. The signal that is taken
    // is one that the writes raised, on this thread, since none was pending before.
    unsafe {
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        libc::sigpending(pending.as_mut_ptr());
        let was_pending = libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr());
        work();
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        if !was_pending {
            libc::sigtimedwait(pipe.as_ptr(), ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
    }
}

/// Has `at_exit` called at the end of the program, `in_child` in its children, and `on_signal` at SIGUSR1
/// unless the program handles that itself.
pub(crate) fn register(
    at_exit: extern "C" fn(),
    in_child: unsafe extern "C" fn(),
    on_signal: extern "C" fn(c_int),
) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the functions live as long as the process, which never unloads a preloaded library; the
    // pointers are to structures of their types.
    unsafe {
        libc::atexit(at_exit);
        libc::pthread_atfork(None, None, Some(in_child));
        let read = libc::sigaction(libc::SIGUSR1, ptr::null(), action.as_mut_ptr());
        let mut action = action.assume_init();
        if read == 0 && action.sa_sigaction == libc::SIG_DFL {
            action.sa_sigaction = handler_address(on_signal);
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut());
        }
    }
}

#[allow(clippy::as_conversions, reason = "the address of a function")]
fn handler_address(handler: extern "C" fn(c_int)) -> usize {
    handler as *const c_void as usize
}

/// The path of the program.
pub(crate) fn program() -> String {
    let link = std::fs::read_link("/proc/self/exe");
    link.map_or_else(|_| "<unknown>".to_owned(), |path| path.display().to_string())
}

/// A C string of the loader, if it is not null.
///
/// # Safety
///
/// `text` is null or points to a string that outlives the result.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not null, so a string by this function's contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}
