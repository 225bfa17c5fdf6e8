//! Launches that a static CUDA runtime refuses without a call of the driver. From CUDA 12.9 on, such a runtime writes a
//! sentence to the driver's log, which calls this library on the launching thread. The driver is busy with its log
//! then, so it is not called here.

use crate::driver::abi::INVALID_VALUE;
use crate::hook::{outcome, session};
use crate::process::guarded;
use crate::process::stack::{Frame, Stacks};
use crate::refuse::{driver_log, launch as refuse};

/// Explains a launch that a runtime refuses with this sentence.
pub(super) fn refused(sentence: &str) {
    let is_static = guarded::run(|| {
        let mut stacks = Stacks::now();
        let is_of = |frame: &Frame, library| frame.library_name().starts_with(library);
        let at = stacks.native.iter().position(|frame| !is_of(frame, "libcuda.so"));
        stacks.native.drain(..at.unwrap_or(0));
        let runtime = stacks.native.first();
        // The launch functions of a shared runtime are replaced, and explain the launch.
        let is_static = runtime.is_some_and(|frame| !is_of(frame, "libcudart"));
        if is_static {
            session::begin();
            driver_log::take();
            refuse::count_logged(sentence, &stacks);
        }
        is_static
    });
    if is_static == Some(true) {
        outcome::act_on_refusal(INVALID_VALUE);
    }
}
