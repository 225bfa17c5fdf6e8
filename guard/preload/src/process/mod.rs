//! The process that this library is in: options, output, stacks and loaded objects.

use core::ffi::{c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::borrow::Cow;
use std::env;
use std::ffi::{CStr, OsStr, OsString};
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gridguard_report::Message;

use self::output::{OpenFile, Output};

pub(crate) mod demangle;
pub(crate) mod elf;
pub(crate) mod flag;
pub(crate) mod guarded;
pub(crate) mod output;
pub(crate) mod python;
pub(crate) mod reserve;
pub(crate) mod stack;

/// The options of `gridguard run`, from environment variables.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Ends the program at the first refused launch.
    pub(crate) abort: bool,
    /// Returns the error of a refused launch again, at the thread's next synchronisation.
    pub(crate) raise: bool,
    /// Waits for each launch.
    pub(crate) sync: bool,
    /// Rewrites PTX when it is loaded, and makes oversized launches in parts.
    pub(crate) fix: bool,
    /// Compares launches with the sizes at which 32-bit indices of their kernels wrap.
    pub(crate) index: bool,
    /// The driver compiles the PTX of fat binaries and ignores their machine code.
    pub(crate) forces_ptx: bool,
    /// Prints no summary at the end.
    pub(crate) quiet: bool,
    /// The format of standard error.
    format: Format,
    /// The file of the report.
    pub(crate) report: Option<Output>,
    /// The file of the recorded launches.
    pub(crate) record: Option<Output>,
    /// The batch size that the user stated.
    pub(crate) batch: Option<u64>,
    /// The folder of the run for the PTX that `ptxas` reads.
    pub(crate) ptx: Option<PathBuf>,
    /// The number of the process that `gridguard run` became.
    main: Option<u32>,
    stderr: Option<OpenFile>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Format {
    #[default]
    Text,
    Json,
    Github,
}

impl Options {
    /// Whether the PTX of loaded kernels is needed.
    pub(crate) const fn keeps_ptx(&self) -> bool {
        self.fix || self.index
    }
}

/// The options, read when the library was loaded: programs change their environment.
pub(crate) fn options() -> &'static Options {
    static NONE: LazyLock<Options> = LazyLock::new(Options::default);
    OPTIONS.get().unwrap_or_else(|| &NONE)
}

static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Reads the options and the identity of standard error, before the program begins.
pub(crate) fn begin() {
    let flag = |name| variable(name).is_some_and(|value| value != "0");
    let path = |name| variable(name).map(Output::new);
    let number = |name| variable(name).and_then(|number| number.to_str()?.parse().ok());
    let _ = OPTIONS.set(Options {
        abort: flag("GRIDGUARD_RUN_ABORT"),
        raise: flag("GRIDGUARD_RUN_RAISE"),
        sync: flag("GRIDGUARD_RUN_SYNC"),
        fix: flag("GRIDGUARD_RUN_FIX"),
        index: flag("GRIDGUARD_RUN_INDEX"),
        forces_ptx: flag("CUDA_FORCE_PTX_JIT"),
        quiet: flag("GRIDGUARD_RUN_QUIET"),
        format: match variable("GRIDGUARD_RUN_FORMAT").as_deref().and_then(OsStr::to_str) {
            Some("json") => Format::Json,
            Some("github") => Format::Github,
            _ => Format::Text,
        },
        report: path("GRIDGUARD_RUN_REPORT"),
        record: path("GRIDGUARD_RUN_RECORD"),
        ptx: variable("GRIDGUARD_RUN_PTX").map(PathBuf::from),
        batch: number("GRIDGUARD_RUN_BATCH").filter(|batch| *batch > 0),
        main: number("GRIDGUARD_RUN_PROCESS").and_then(|number| number.try_into().ok()),
        stderr: Some(OpenFile::now(libc::STDERR_FILENO)),
    });
}

/// The value of an environment variable, unless it is empty.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Writes a note to standard error.
pub(crate) fn say(text: &str) {
    tell(&Message::note(text));
}

/// Writes a text about a failure to standard error.
pub(crate) fn complain(text: &str) {
    tell(&Message { is_error: true, ..Message::note(text) });
}

/// Writes a message to standard error, unless the program has closed or replaced that since its start.
pub(crate) fn tell(message: &Message<'_>) {
    let text = match options().format {
        Format::Text => Cow::Borrowed(message.text),
        Format::Json => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            message.log_line(now.as_nanos(), std::process::id(), &program()).into()
        }
        Format::Github => message.annotation().into(),
    };
    if options().stderr.as_ref().is_some_and(OpenFile::is_same) {
        write(text.as_bytes());
    }
}

/// Writes to standard error. What nobody reads is dropped and counted, and delays the process by a second in all.
fn write(text: &[u8]) {
    static LEFT_MS: AtomicU64 = AtomicU64::new(1000);
    static DROPPED: AtomicU64 = AtomicU64::new(0);
    let write = |text: &[u8]| {
        let (begin, left) = (Instant::now(), LEFT_MS.load(Ordering::Relaxed));
        let to = libc::STDERR_FILENO;
        let written = output::write_patiently(to, text, Duration::from_millis(left));
        let spent = u64::try_from(begin.elapsed().as_millis()).unwrap_or(left);
        LEFT_MS.store(left.saturating_sub(spent), Ordering::Relaxed);
        written.is_ok()
    };
    output::without_signals(|| {
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        let note =
            format!("gridguard: {dropped} messages before were not written: nobody read them\n");
        let is_written = (dropped == 0 || write(note.as_bytes())) && write(text);
        DROPPED.fetch_add(if is_written { 0 } else { dropped + 1 }, Ordering::Relaxed);
    });
}

/// Whether this is the process that `gridguard run` became.
pub(crate) fn is_first() -> bool {
    options().main == Some(std::process::id())
}

/// Registers `at_exit` for the end of the program.
pub(crate) fn register_end(at_exit: extern "C" fn()) {
    // SAFETY: the function lives as long as the process, which never unloads a preloaded library.
    unsafe { libc::atexit(at_exit) };
}

/// Registers `at_exit` for the end of the program, `in_child` for its children, and `on_signal` for SIGUSR1 unless the
/// program handles that.
pub(crate) fn register(
    at_exit: extern "C" fn(),
    in_child: unsafe extern "C" fn(),
    on_signal: extern "C" fn(c_int),
) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    register_end(at_exit);
    // SAFETY: the functions live as long as the process, which never unloads a preloaded library; the
    // pointers are to structures of their types.
    unsafe {
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

/// Locks what only this library locks, unless that takes long: a child process may have inherited the lock.
pub(crate) fn patiently<T>(value: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    (0..MOST_TRIES).find_map(|_| match value.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => {
            std::thread::yield_now();
            None
        }
    })
}

/// Attempts to take a lock.
const MOST_TRIES: usize = 1000;

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

/// Has the processor fetch a value while other code runs.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, for the address of a live value.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(
            ptr::from_ref(value).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
