//! Begins and ends the work of the library in a process, and serves requests: a summary, a record, a wait.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::driver::functions::FUNCTIONS;
use crate::driver::request::Launch;
use crate::fix::arguments::RawArguments;
use crate::fix::index;
use crate::process::{self, guarded};
use crate::refuse::{late, launch as refused, memory as refused_memory, watched};
use crate::report::{self, record};
use crate::watch::{memory, recent, table};

/// What the next launch has to do besides being counted; 0 for most launches.
static REQUESTS: AtomicU32 = AtomicU32::new(FIRST);

/// Nothing was launched or allocated so far.
const FIRST: u32 = 1;
/// The process is a child: the counters are its parent's.
const FORKED: u32 = 2;
/// A summary was asked for by a signal.
const SUMMARY: u32 = 4;
/// Each launch is recorded.
const RECORD: u32 = 8;
/// Each launch is waited for.
const SYNC: u32 = 16;
/// Each launch is compared with the sizes at which indices wrap.
const INDEX: u32 = 32;

/// Prepares for the first call of a process. A child process forgets the counts of its parent.
#[inline]
pub(crate) fn ensure_begun() {
    if REQUESTS.load(Ordering::Relaxed) & (FIRST | FORKED) != 0 {
        guarded::run(begin);
    }
}

/// Serves the requests after an accepted launch.
#[inline(always)]
pub(crate) fn serve(describe: impl FnOnce() -> Launch, passed: Option<RawArguments>) {
    if REQUESTS.load(Ordering::Relaxed) != 0 {
        attend(&describe(), passed);
    }
}

#[cold]
fn attend(launch: &Launch, passed: Option<RawArguments>) {
    guarded::run(|| {
        begin();
        let requests = REQUESTS.fetch_and(!SUMMARY, Ordering::Relaxed);
        if requests & SUMMARY != 0 {
            report::write();
        }
        if requests & RECORD != 0
            && let Some(to) = &process::options().record
            && let Some(entry) = table::find(launch.kernel.addr())
        {
            record::record(to, launch, entry.kernel());
        }
        if requests & INDEX != 0
            && let Some(passed) = passed
        {
            // SAFETY: the program is making the launch just now.
            unsafe { index::launched(launch, passed) };
        }
    });
    // A node is not launched. Signals reach a program that waits.
    if process::options().sync && !launch.node {
        late::wait(launch, FUNCTIONS[launch.through.0].per_thread);
    }
}

/// As [`ensure_begun`], but may panic.
pub(crate) fn begin() {
    let requests = REQUESTS.fetch_and(!(FIRST | FORKED), Ordering::Relaxed);
    if requests & FIRST != 0 {
        // The hook of this library's own copy of std: a panic prints nothing.
        std::panic::set_hook(Box::new(|_| {}));
        process::register(at_exit, in_child, on_signal);
        let options = process::options();
        let record = if options.record.is_some() { RECORD } else { 0 };
        let sync = if options.sync { SYNC } else { 0 };
        let index = if options.index { INDEX } else { 0 };
        REQUESTS.fetch_or(record | sync | index, Ordering::Relaxed);
    } else if requests & FORKED != 0 {
        table::reset();
        refused::reset();
        watched::reset();
        recent::reset();
        index::reset();
        late::reset();
        memory::reset();
        refused_memory::EXPLAINED.reset();
    }
}

/// Called at the end of the process, perhaps twice.
pub(crate) extern "C" fn at_exit() {
    static ENDED: AtomicBool = AtomicBool::new(false);
    guarded::run(|| {
        let is_begun = REQUESTS.load(Ordering::Relaxed) & (FIRST | FORKED) == 0;
        if (is_begun || process::is_first()) && !ENDED.swap(true, Ordering::Relaxed) {
            report::write();
        }
    });
}

unsafe extern "C" fn in_child() {
    REQUESTS.fetch_or(FORKED, Ordering::Relaxed);
}

extern "C" fn on_signal(_signal: c_int) {
    REQUESTS.fetch_or(SUMMARY, Ordering::Relaxed);
}
