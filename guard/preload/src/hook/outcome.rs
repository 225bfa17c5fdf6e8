//! Handles launches off the hot path: first, fixed and refused ones.

use core::cell::Cell;

use crate::driver::Driver;
use crate::driver::abi::{DEINITIALIZED, INVALID_VALUE, NOT_INITIALIZED, SUCCESS, Status};
use crate::driver::functions::{FUNCTIONS, is_runtime};
use crate::driver::request::{Launch, is_oversized};
use crate::fix::arguments::RawArguments;
use crate::hook::session;
use crate::process::flag::Flag;
use crate::process::{self, guarded};
use crate::refuse::late;
use crate::refuse::launch::{self as refuse, Refusal, knows_kernel};
use crate::watch::handle_record::Reason;
use crate::watch::kernel::{self, Kernel, UNNAMED};
use crate::watch::recent;
use crate::watch::table::{self, Entry};

/// Counts the first launch of a kernel, and asks for its name and the device's limits.
#[cold]
pub(crate) fn first_launch(launch: &Launch) {
    guarded::run(|| {
        session::begin();
        let driver = Driver::of(launch.through);
        // Asked now, because the driver may be gone when the report is written.
        let _ = driver.device_limits();
        match named_entry(launch) {
            Some(entry) => entry.counters.count(launch.sizes()),
            // The table is full.
            None => kernel_of(launch).0.counters.count(launch.sizes()),
        }
    });
}

/// Records a launch that was made in parts.
#[cold]
pub(crate) fn fixed(launch: &Launch, passed: RawArguments, status: Status) {
    if status != SUCCESS {
        late::check(launch.through, status);
        return;
    }
    if let Some(entry) = table::find(launch.kernel.addr()) {
        entry.counters.fix();
    }
    let per_thread = FUNCTIONS[launch.through.0].per_thread;
    recent::record(launch.kernel.addr(), launch.grid, launch.stream.addr(), per_thread);
    session::serve(|| *launch, Some(passed));
}

/// Explains a refused launch, or counts it if it was explained before. `not_fixed` is why it was not made in parts, if
/// `--fix` is on. A kernel node of a graph may also be refused for its graph or its dependencies: only an illegal one is
/// explained.
#[cold]
pub(crate) fn refused(launch: &Launch, status: Status, not_fixed: Option<Reason>) {
    if !launch.node {
        Flag::Refused.replace(true);
    }
    if is_no_refusal(launch.through, status) {
        return;
    }
    let is_refused = guarded::run(|| {
        session::begin();
        let entry = match knows_kernel(launch, status) {
            true => named_entry(launch),
            false => table::find(launch.kernel.addr()),
        };
        let refusal = |name: &str| Refusal::new(launch, status, name);
        if !launch.node {
            refuse::count(launch, status, (entry, not_fixed.as_deref()), refusal);
            return true;
        }
        let refusal = refusal(&entry.map_or(&UNNAMED, Entry::kernel).name());
        let is_illegal = !refusal.refused.violations.is_empty();
        if is_illegal {
            let wanted = process::options().fix && is_oversized(launch.grid);
            let not_fixed = wanted.then_some("kernel nodes of graphs are not rewritten");
            refuse::count(launch, status, (entry, not_fixed), |_| refusal);
        }
        is_illegal
    });
    if is_refused.unwrap_or(!launch.node) {
        // The runtime's errors have other numbers.
        act_on_refusal(if is_runtime(launch.through.0) { INVALID_VALUE } else { status });
    }
}

/// Explains a launch that never reached the driver, because a 32-bit product of its grid is not positive.
#[cold]
pub(crate) fn skipped(launch: &Launch) {
    guarded::run(|| {
        session::begin();
        let entry = named_entry(launch);
        let [x, y, z] = launch.grid.map(u64::from);
        let blocks = u128::from(x * y) * u128::from(z);
        let why = format!(
            "{x} x {y} x {z} are {blocks} blocks, which the launcher multiplies in 32 bits and \
             takes for none"
        );
        let refusal = |name: &str| Refusal::new(launch, SUCCESS, name).skipped(why);
        refuse::count(launch, SUCCESS, (entry, None), refusal);
    });
    act_on_refusal(INVALID_VALUE);
}

/// The result of this thread's next successful synchronisation: with `--on-refused raise`, the error of a refused
/// launch.
pub(crate) fn raised() -> Status {
    if process::options().raise { RAISED.replace(SUCCESS) } else { SUCCESS }
}

thread_local! {
    static RAISED: Cell<Status> = const { Cell::new(SUCCESS) };
}

/// Whether `status` is not a refusal: the process ends, or earlier work has failed, which is reported.
pub(crate) fn is_no_refusal(through: (usize, usize), status: Status) -> bool {
    // Programs may launch while the process ends.
    [NOT_INITIALIZED, DEINITIALIZED].contains(&status) || late::check(through, status)
}

/// If the user asked for it, ends the program, or makes the thread's next synchronisation return `error`.
pub(crate) fn act_on_refusal(error: Status) {
    if process::options().abort {
        std::process::abort();
    }
    RAISED.set(error);
}

/// The entry of the launch's kernel, with its name.
fn named_entry(launch: &Launch) -> Option<&'static Entry> {
    let entry = table::find_or_insert(launch.kernel.addr())?;
    if !entry.has_kernel() {
        let (kernel, container) = kernel_of(launch);
        entry.set_kernel(kernel, container);
    }
    Some(entry)
}

/// The launch's kernel, and the module or library that it is in, as far as the driver tells.
fn kernel_of(launch: &Launch) -> (&'static Kernel, usize) {
    let driver = Driver::of(launch.through);
    // SAFETY: the program is launching the kernel just now.
    let (name, container) =
        unsafe { (driver.name_of(launch.kernel), driver.container_of(launch.kernel).addr()) };
    let image = table::image_of(container);
    (name.map_or(&UNNAMED, |name| kernel::of(name.to_bytes(), image)), container)
}
