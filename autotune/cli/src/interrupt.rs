//! Handles Ctrl-C and termination: the first signal ends the command in order, the second at once.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(unix)]
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::error::{CommandError, INTERRUPTED};
use crate::output::note;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The flag that the first signal sets.
pub(crate) fn flag() -> Result<&'static AtomicBool, CommandError> {
    ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::Relaxed) {
            process::exit(INTERRUPTED.into());
        }
        note(format_args!("stopping; measurements are kept (press Ctrl-C again to stop at once)"));
    })?;
    Ok(&REQUESTED)
}

/// Ends the command at the first signal, because it has nothing to finish.
pub(crate) fn at_once() -> Result<(), CommandError> {
    Ok(ctrlc::set_handler(|| process::exit(INTERRUPTED.into()))?)
}

/// Ignores signals, because the parent process ends this one.
pub(crate) fn ignore() -> Result<(), CommandError> {
    Ok(ctrlc::set_handler(|| {})?)
}

/// Makes a write beyond `ulimit -f` an error. By default it is a signal that ends the command.
#[cfg(unix)]
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
