//! What happens besides counting: at the first launch, at a refused one, on request, and at the end.

use core::cell::Cell;
use core::ffi::c_int;
use core::hash::{Hash, Hasher};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::collections::hash_map::DefaultHasher;

use crate::abi::{DEINITIALIZED, NOT_INITIALIZED, SUCCESS, Status};
use crate::counters::Largest;
use crate::driver::Driver;
use crate::fix::known::Reason;
use crate::fix::relaunch::is_oversized;
use crate::functions::FUNCTIONS;
use crate::kernel::{self, Kernel, UNNAMED};
use crate::refusal::{Refusal, knows_kernel};
use crate::request::Launch;
use crate::table::{self, Entry};
use crate::{guarded, late, memory, process, record, report};

/// What the next launch has to do besides being counted; 0 for most launches.
pub(crate) static REQUESTS: AtomicU32 = AtomicU32::new(FIRST);

/// Nothing was launched nor allocated so far.
const FIRST: u32 = 1;
/// The process is a child: what was counted is its parent's.
const FORKED: u32 = 2;
/// A summary was asked for by a signal.
const SUMMARY: u32 = 4;
/// Each launch is recorded.
const RECORD: u32 = 8;
/// Each launch is waited for.
const SYNC: u32 = 16;

/// Prepares for the first call of a process, and forgets in a child what its parent counted.
#[inline]
pub(crate) fn ensure_begun() {
    if REQUESTS.load(Ordering::Relaxed) & (FIRST | FORKED) != 0 {
        guarded::run(begin);
    }
}

/// Does what the requests ask for, after an accepted launch.
#[cold]
pub(crate) fn attend(launch: &Launch) {
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
        // A node is not launched.
        if requests & SYNC != 0 && !launch.node {
            late::wait(launch, FUNCTIONS[launch.through.0].per_thread);
        }
    });
}

/// Counts the first launch of a kernel, and asks for its name and the device's limits.
#[cold]
pub(crate) fn first_launch(launch: &Launch, largest: Largest) {
    guarded::run(|| {
        begin();
        let driver = Driver::of(launch.through);
        // Known from here on, for the report at the end, when the driver may be gone.
        let _ = driver.device_limits();
        match named_entry(launch) {
            Some(entry) => entry.count(largest),
            // The table is full.
            None => kernel_of(launch).0.counters.count(largest),
        }
    });
}

/// Notes that forms of the kernel were launched in place of `launch`, which counted it themselves.
#[cold]
pub(crate) fn fixed(launch: &Launch, status: Status) {
    if status != SUCCESS {
        late::check(launch.through, status);
        return;
    }
    let per_thread = FUNCTIONS[launch.through.0].per_thread;
    late::record(launch.kernel.addr(), launch.grid, launch.stream.addr(), per_thread);
    attend(launch);
}

/// Explains a refused launch, or counts it if it was explained before. `not_fixed` is why forms of its
/// kernel were not launched in its place, if that was wanted.
#[cold]
pub(crate) fn refused(launch: &Launch, status: Status, not_fixed: Option<Reason>) {
    REFUSALS.set(REFUSALS.get().wrapping_add(1));
    if is_no_refusal(launch.through, status) {
        return;
    }
    guarded::run(|| {
        begin();
        let entry = entry(launch, status);
        let new = || Refusal::new(launch, status, &kernel(entry).name());
        count_refusal(launch, status, (entry, not_fixed.as_deref()), new);
    });
    abort_if_wanted();
}

/// Explains or counts a kernel node of a graph whose configuration is illegal. Nodes are refused for other
/// reasons, too: for their graph, or what they depend on.
#[cold]
pub(crate) fn refused_node(launch: &Launch, status: Status) {
    if is_no_refusal(launch.through, status) {
        return;
    }
    let mut is_refused = false;
    guarded::run(|| {
        begin();
        let entry = entry(launch, status);
        let refusal = Refusal::new(launch, status, &kernel(entry).name());
        is_refused = !refusal.violations.is_empty();
        if is_refused {
            let wanted = process::options().fix && is_oversized(launch.grid);
            let not_fixed = wanted.then_some("a kernel node of a graph stays as it is");
            count_refusal(launch, status, (entry, not_fixed), || refusal);
        }
    });
    if is_refused {
        abort_if_wanted();
    }
}

/// Launches of this thread that the driver refused.
pub(crate) fn refusals_of_thread() -> u64 {
    REFUSALS.get()
}

thread_local! {
    static REFUSALS: Cell<u64> = const { Cell::new(0) };
}

/// Whether `status` is no refusal of a launch: the process ends, or earlier work has failed, which is reported.
pub(crate) fn is_no_refusal(through: (usize, usize), status: Status) -> bool {
    // Programs may launch while the process ends.
    [NOT_INITIALIZED, DEINITIALIZED].contains(&status) || late::check(through, status)
}

fn abort_if_wanted() {
    if process::options().abort {
        std::process::abort();
    }
}

/// The entry of a refused launch's kernel, with its name as far as the driver can be asked for it.
fn entry(launch: &Launch, status: Status) -> Option<&'static Entry> {
    match knows_kernel(launch, status) {
        true => named_entry(launch),
        false => table::find(launch.kernel.addr()),
    }
}

fn kernel(entry: Option<&Entry>) -> &'static Kernel {
    entry.map_or(&UNNAMED, Entry::kernel)
}

/// Counts a refused launch, and explains it unless it was explained before.
fn count_refusal(
    launch: &Launch,
    status: Status,
    (entry, not_fixed): (Option<&Entry>, Option<&str>),
    refusal: impl FnOnce() -> Refusal,
) {
    report::count_refusal();
    let is_new = entry.is_none_or(|entry| entry.refuse(kind(launch, status)));
    let Some(place) = is_new.then(report::claim_explanation).flatten() else { return };
    let (name, counts) = (kernel(entry).name(), entry.map(Entry::counts).unwrap_or_default());
    let refusal = refusal();
    let mut text = refusal.paragraph(launch, (&name, &counts), not_fixed);
    if place + 1 == report::MAX_EXPLAINED {
        text += "gridguard: further refused launches are counted, and not explained\n";
    }
    process::say(&text);
    report::keep(place, launch, status, &name, &refusal);
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

/// A number for why a launch was refused, without asking the driver: refused launches may be many.
fn kind(launch: &Launch, status: Status) -> u64 {
    /// Limits of all devices.
    const GRID: u32 = 65_535;
    const BLOCK: u32 = 1024;
    const SHARED: u32 = 48 << 10;
    let Launch { grid, block, shared_bytes, cluster, cooperative, .. } = launch;
    let threads = block.iter().fold(1, |all: u32, one| all.saturating_mul(*one));
    let mut hasher = DefaultHasher::new();
    (status, grid.map(|blocks| (blocks == 0, blocks > GRID)), threads == 0, threads > BLOCK)
        .hash(&mut hasher);
    (*shared_bytes > SHARED, cluster, cooperative).hash(&mut hasher);
    // 0 means that nothing was refused so far.
    hasher.finish() | 1
}

/// As [`ensure_begun`].
fn begin() {
    let requests = REQUESTS.fetch_and(!(FIRST | FORKED), Ordering::Relaxed);
    if requests & FIRST != 0 {
        // Of this library's own copy of the standard library: the program sees no message of a panic.
        std::panic::set_hook(Box::new(|_| {}));
        process::register(at_exit, in_child, on_signal);
        let options = process::options();
        let record = if options.record.is_some() { RECORD } else { 0 };
        let sync = if options.sync { SYNC } else { 0 };
        REQUESTS.fetch_or(record | sync, Ordering::Relaxed);
    } else if requests & FORKED != 0 {
        table::reset();
        report::reset();
        late::reset();
        memory::reset();
    }
}

/// Called at the end of the process, perhaps twice.
pub(crate) extern "C" fn at_exit() {
    static ENDED: AtomicBool = AtomicBool::new(false);
    guarded::run(|| {
        let is_begun = REQUESTS.load(Ordering::Relaxed) & (FIRST | FORKED) == 0;
        if (is_begun || process::always_reports()) && !ENDED.swap(true, Ordering::Relaxed) {
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
