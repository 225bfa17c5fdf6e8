//! Handles Ctrl-C and termination: the first signal ends the command in order, the second at once.

#![allow(unsafe_code, reason = "installs handlers of signals")]

use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::error::INTERRUPTED;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// The flag that the first signal sets.
pub(crate) fn flag() -> &'static AtomicBool {
    extern "C" fn request(signal: i32) {
        const NOTE: &str = "stopping; measurements are kept (press Ctrl-C again to stop at once)\n";
        if REQUESTED.swap(true, Ordering::Relaxed) {
            end(signal);
        }
        // SAFETY: signal handlers may call it. It reads only the constant.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, NOTE.as_ptr().cast(), NOTE.len()) };
    }
    handle(request);
    &REQUESTED
}

/// Ignores signals, because the parent process ends this one.
pub(crate) fn ignore() {
    handle(nothing);
}

extern "C" fn end(_: i32) {
    // SAFETY: signal handlers may call it.
    unsafe { libc::_exit(INTERRUPTED.into()) }
}

extern "C" fn nothing(_: i32) {}

fn handle(handler: extern "C" fn(i32)) {
    for number in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: each handler of this file calls only functions that signal handlers may call. It fails only for
        // signals that cannot be handled.
        let _ = unsafe { signal(number, SigHandler::Handler(handler)) };
    }
}

/// Makes a write beyond `ulimit -f` an error. By default it is a signal that ends the command.
pub(crate) fn fail_at_file_limit() {
    // Unlike an ignored signal, a handled one has its default again in a program that `run` becomes.
    // SAFETY: the handler does nothing, so it may run at any time.
    let before = unsafe { signal(Signal::SIGXFSZ, SigHandler::Handler(nothing)) };
    if matches!(before, Ok(SigHandler::SigIgn)) {
        // SAFETY: as before this function. It fails only for signals that cannot be ignored.
        let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    }
}
