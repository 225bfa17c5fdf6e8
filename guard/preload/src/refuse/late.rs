//! Explains errors that surface late: a launch is accepted, fails on the device, and a later call returns the error.
//! The suspects are the launches since the last synchronisation of their stream.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;

use gridguard::ContextState;

use crate::driver::Driver;
use crate::driver::abi::{SUCCESS, Status};
use crate::driver::functions::FUNCTIONS;
use crate::driver::request::Launch;
use crate::process::demangle::demangled;
use crate::process::{self, guarded};
use crate::refuse::paragraph;
use crate::watch::recent::{self, GRAPH, Suspect};
use crate::watch::table;

/// The most suspects that are printed.
const SHOWN: usize = 16;
/// Whether a late error was printed: all later calls return it again.
static PRINTED: AtomicBool = AtomicBool::new(false);

/// Forgets everything, in a child process.
pub(crate) fn reset() {
    PRINTED.store(false, Ordering::Relaxed);
}

/// Reports `status`, the result of a call through this function and slot, if it is the error of earlier work. Returns
/// whether it is.
pub(crate) fn check(through: (usize, usize), status: Status) -> bool {
    let is_late = ContextState::after(status) == ContextState::Lost;
    if is_late && !PRINTED.swap(true, Ordering::Relaxed) {
        guarded::run(|| process::complain(&report(through, status)));
    }
    is_late
}

/// Waits for the launch, which is the only suspect if that fails.
pub(crate) fn wait(launch: &Launch, per_thread: bool) {
    let before = recent::launches();
    match Driver::of(launch.through).wait(launch.stream, per_thread) {
        Some(SUCCESS) => recent::prove_stream(launch.stream.addr(), per_thread, before),
        Some(status) => {
            check(launch.through, status);
        }
        None => {}
    }
}

fn report(through: (usize, usize), status: Status) -> String {
    let call =
        FUNCTIONS.get(through.0).map_or("", |function| function.symbol.to_str().unwrap_or(""));
    let error = Driver::of(through).error(status);
    let suspects = recent::suspects();
    let streams: BTreeSet<_> = suspects.iter().map(|one| one.stream).collect();
    let on_streams = match streams.len() {
        1 => "since the last synchronisation".to_owned(),
        many => format!("on {many} streams since their last synchronisation"),
    };
    let mut lines = vec![match suspects.len() {
        0 => ("suspects", "none on record".to_owned()),
        1 => ("launch", "the only one that was not known to have succeeded:".to_owned()),
        many => ("suspects", format!("{many} launches {on_streams}, newest first:")),
    }];
    for Suspect { kernel, stream, grid: [x, y, z] } in suspects.iter().take(SHOWN) {
        let name = || table::find(*kernel).map(|entry| demangled(&entry.kernel().name()));
        let what = match *kernel {
            GRAPH => "the kernels of a graph, in one launch".to_owned(),
            _ => format!("{}, grid {x} x {y} x {z}", name().unwrap_or_else(|| "<unnamed>".into())),
        };
        let stream =
            if streams.len() > 1 { format!(", stream {stream:#x}") } else { String::new() };
        lines.push(("", what + &stream));
    }
    if let Some(more) = suspects.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        lines.push(("", format!("and {more} more")));
    }
    if suspects.len() > 1 {
        let next = "run again with `gridguard run --sync`, which names the launch";
        lines.push(("next", next.to_owned()));
    }
    let failed = "a launch that was accepted before failed on the device";
    paragraph(&format!("{call} returned {error}: {failed}"), &lines, &[""; 0])
}
