//! Handles Ctrl-C and termination: the first signal ends the command in order, the second at once.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

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
