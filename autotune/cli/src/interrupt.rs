//! Handles Ctrl-C and termination: the first signal ends the command in order, the second at once.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{SigHandler, Signal, signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{CommandError, INTERRUPTED};
use crate::output::note;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The flag that the first signal sets.
pub(crate) fn flag() -> Result<&'static AtomicBool, CommandError> {
    handle(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            process::exit(INTERRUPTED.into());
        }
        note(format_args!("stopping; measurements are kept (press Ctrl-C again to stop at once)"));
    })?;
    Ok(&REQUESTED)
}

/// Ignores signals, because the parent process ends this one.
pub(crate) fn ignore() -> Result<(), CommandError> {
    handle(|| {})
}

/// Calls `action` for each signal, on a thread of its own.
fn handle(action: impl Fn() + Send + 'static) -> Result<(), CommandError> {
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
    let mut signals = signals
        .map_err(|error| CommandError::failed(format_args!("cannot handle signals: {error}")))?;
    thread::spawn(move || signals.forever().for_each(|_| action()));
    Ok(())
}

/// Makes a write beyond `ulimit -f` an error. By default it is a signal that ends the command.
#[allow(unsafe_code, reason = "installs a handler of a signal")]
pub(crate) fn fail_at_file_limit() {
    extern "C" fn nothing(_: i32) {}
    // Unlike an ignored signal, a handled one has its default again in a program that `run` becomes.
    // SAFETY: the handler does nothing, so it may run at any time.
    let before = unsafe { signal(Signal::SIGXFSZ, SigHandler::Handler(nothing)) };
    if matches!(before, Ok(SigHandler::SigIgn)) {
        // SAFETY: as before this function. It fails only for signals that cannot be ignored.
        let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    }
}
