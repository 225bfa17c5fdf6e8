//! Ctrl-C and the like: the first asks to end in order, the second ends.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{CommandError, INTERRUPTED};
use crate::output::note;

static ASKED: AtomicBool = AtomicBool::new(false);

/// A flag that is set once somebody asks this program to end.
pub(crate) fn flag() -> Result<&'static AtomicBool, CommandError> {
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::Relaxed) {
            process::exit(INTERRUPTED.into());
        }
        note(format_args!("ending: what is measured is kept; once more to end at once"));
    })?;
    Ok(&ASKED)
}

/// Leaves it to the one who started this program to end it.
pub(crate) fn ignore() -> Result<(), CommandError> {
    Ok(ctrlc::set_handler(|| {})?)
}
