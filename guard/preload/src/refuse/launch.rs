//! Explains launches that driver or runtime refused: the broken rules, and the kernel's earlier launches.

use core::sync::atomic::{AtomicU64, Ordering};

use gridguard::{DeviceLimits, KernelLimits, LaunchLimits, OccupancyLimits, validate_co_resident};
use gridguard_report::RefusedLaunch;

use crate::driver::Driver;
use crate::driver::abi::{INVALID_CONFIGURATION, INVALID_FOR_RUNTIME, OUT_OF_MEMORY, Status};
use crate::driver::functions::is_runtime;
use crate::driver::request::{Launch, MAX_OTHER, MAX_THREADS};
use crate::process::demangle::demangled;
use crate::process::stack::{self, Frame, Stacks};
use crate::process::{self, python};
use crate::refuse::{Explained, driver_log, memory, paragraph, watched};
use crate::watch::counters::Counts;
use crate::watch::kernel::{self, UNNAMED};
use crate::watch::slot_cache::{SlotCache, hash_of};
use crate::watch::table::{self, Entry};

/// The most refusals that are explained. Later ones are only counted.
const MAX_EXPLAINED: usize = 50;
pub(crate) static EXPLAINED: Explained<RefusedLaunch, MAX_EXPLAINED> =
    Explained::new(RefusedLaunch::message);
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// Launches that had been accepted when the first one was refused.
static BEFORE_FIRST: AtomicU64 = AtomicU64::new(0);

/// Counts a refused launch, and explains it unless the kernel's last refusal had the same reason. `not_fixed` is why
/// it was not launched in parts, if that was wanted.
pub(crate) fn count(
    launch: &Launch,
    status: Status,
    (entry, not_fixed): (Option<&Entry>, Option<&str>),
    refusal: impl FnOnce(&str) -> Refusal,
) {
    note_first();
    let is_new = entry.is_none_or(|entry| entry.refuse(kind(launch, status)));
    let is_watched = watched::wants(launch, status);
    if !is_new && !is_watched {
        return;
    }
    let make = || {
        let kernel = entry.map_or(&UNNAMED, Entry::kernel).name();
        let counts = entry.map(Entry::counts).unwrap_or_default();
        let Refusal { mut refused, lines: known } = refusal(&kernel);
        refused.not_fixed = not_fixed.map(str::to_owned);
        let mut lines = vec![("kernel", demangled(&kernel))];
        lines.extend(known);
        lines.extend(not_fixed.map(|reason| ("fix", format!("not possible: {reason}"))));
        // The runtime may not tell which kernel of the driver it is.
        if counts.launches > 0 || !is_runtime(launch.through.0) {
            lines.push(("before", before(&counts)));
        }
        lines.extend(python::shown(&refused.python).map(|frame| ("python", frame)));
        (paragraph(&format!("launch refused: {}", refused.error), &lines, &refused.stack), refused)
    };
    if !is_watched {
        return EXPLAINED.explain("launches", make);
    }
    let (text, refused) = make();
    watched::keep(launch, status, refused.clone());
    if is_new {
        EXPLAINED.explain("launches", || (text, refused));
    }
}

fn note_first() {
    if REFUSED.fetch_add(1, Ordering::Relaxed) == 0 {
        BEFORE_FIRST.store(table::launches(), Ordering::Relaxed);
    }
}

/// Counts a launch that a static runtime refused with this sentence, and explains the first one with it.
pub(crate) fn count_logged(sentence: &str, Stacks { python, native }: &Stacks) {
    /// Sentences that are explained.
    static TOLD: SlotCache<(), { 1 << 6 }, MAX_EXPLAINED> = SlotCache::new();
    note_first();
    kernel::of(b"<kernel of a static CUDA runtime>", 0).counters.refuse();
    let hash = hash_of(sentence);
    if TOLD.find(hash).is_some() || TOLD.get(hash, || ()).is_none() {
        return;
    }
    let library = |frame: &Frame| ("library", frame.library.clone());
    let mut lines: Vec<_> = native.first().map(library).into_iter().collect();
    lines.push(("runtime", sentence.to_owned()));
    if process::options().fix {
        lines.push(("fix", format!("not possible: {OF_STATIC_RUNTIME}")));
    }
    lines.extend(python::shown(python).map(|frame| ("python", frame)));
    let error = error_of_runtime(INVALID_CONFIGURATION);
    process::complain(&paragraph(&format!("launch refused: {error}"), &lines, native));
}

/// Refused launches, and the launches that were accepted before the first one.
pub(crate) fn refused() -> (u64, u64) {
    (REFUSED.load(Ordering::Relaxed), BEFORE_FIRST.load(Ordering::Relaxed))
}

/// Forgets everything, in a child process.
pub(crate) fn reset() {
    EXPLAINED.reset();
    REFUSED.store(0, Ordering::Relaxed);
}

/// A refused launch, explained.
pub(crate) struct Refusal {
    pub(crate) refused: RefusedLaunch,
    /// What standard error says of the launch itself.
    lines: Vec<(&'static str, String)>,
}

/// `CUDA_ERROR_INVALID_CONTEXT` and `CUDA_ERROR_INVALID_HANDLE`: the driver is not asked about a kernel that
/// it does not know.
const UNKNOWN_KERNEL: [Status; 2] = [201, 400];

impl Refusal {
    /// Explains why `launch` was refused with `status`.
    pub(crate) fn new(launch: &Launch, status: Status, name: &str) -> Self {
        // The queries below may fail and write to the log, too.
        let log = driver_log::take();
        let driver = Driver::of(launch.through);
        let device = driver.device_limits();
        let (kernel, occupancy) = match device {
            // SAFETY: the driver knows the kernel, which the program is launching just now.
            Some(device) if knows_kernel(launch, status) => unsafe {
                (driver.limits_for(launch, name), driver.occupancy(launch, device))
            },
            _ => (KernelLimits::unknown(name), OccupancyLimits::UNKNOWN),
        };
        let device = device.cloned().unwrap_or_else(DeviceLimits::any_device);
        let (device_name, request) = (device.name.clone(), launch.request());
        let violations =
            validate_co_resident(&request, &LaunchLimits::new(device, kernel), &occupancy);
        let violations = violations.err().unwrap_or_default();
        let error = match is_runtime(launch.through.0) {
            true => error_of_runtime(status),
            false => driver.error(status),
        };
        // A refused graph may have many legal nodes.
        let is_innocent = launch.node && violations.is_empty();
        let stacks = if is_innocent { Stacks::default() } else { Stacks::now() };
        let memory = (status == OUT_OF_MEMORY).then(|| memory::at_launch(driver)).flatten();
        let library = stack::launching_library(&stacks.native);
        let library = library.map(|frame| ("library", frame.library.clone()));
        let mut lines = Vec::from_iter(library);
        lines.extend([("launch", launch.describe()), ("device", device_name)]);
        lines.extend(memory.map(|memory| ("memory", memory)));
        lines.extend(violations.iter().map(|one| ("rule", format!("{}: {one}", one.rule.id()))));
        if violations.is_empty() {
            lines.push(("rule", NO_RULE.to_owned()));
        }
        lines.extend(log.iter().map(|log| ("driver", log.clone())));
        let refused = RefusedLaunch {
            kernel: name.to_owned(),
            code: status,
            error,
            request,
            violations: violations.iter().map(ToString::to_string).collect(),
            driver_log: log,
            not_fixed: None,
            python: stacks.python,
            stack: stacks.native.iter().map(ToString::to_string).collect(),
        };
        Self { refused, lines }
    }

    /// The same for a launch that the driver never got.
    pub(crate) fn skipped(mut self, why: String) -> Self {
        self.lines.retain(|(title, _)| *title != "rule");
        self.lines.push((
            "rule",
            format!("grid-product: {why}; split the grid, or use fewer, larger blocks"),
        ));
        self.refused.violations = vec![why];
        self.refused.error = "never launched, and no error says so".to_owned();
        self
    }
}

const OF_STATIC_RUNTIME: &str = "its CUDA runtime is static and before 13, and refuses it: link it with -cudart shared, or \
                                 build it with CUDA 13";
const NO_RULE: &str =
    "none that is known here is broken; CUDA_LOG_FILE=stderr shows the driver's own log";

fn error_of_runtime(status: Status) -> String {
    let known = INVALID_FOR_RUNTIME.iter().find(|(code, _)| *code == status);
    known.map_or_else(|| format!("error {status}"), |(_, text)| (*text).to_owned())
}

/// Whether the driver can be asked about the launch's kernel.
pub(crate) fn knows_kernel(launch: &Launch, status: Status) -> bool {
    !launch.kernel.is_null() && !launch.host && !UNKNOWN_KERNEL.contains(&status)
}

fn before(Counts { launches, largest: [x, y, z, ..], .. }: &Counts) -> String {
    match launches {
        0 => "no launch of this kernel had succeeded".to_owned(),
        1 => format!("1 launch of this kernel succeeded, with grid {x} x {y} x {z}"),
        many => {
            format!("{many} launches of this kernel succeeded, with grids up to {x} x {y} x {z}")
        }
    }
}

/// A number for why a launch was refused, without asking the driver: refused launches may be many.
fn kind(launch: &Launch, status: Status) -> u64 {
    /// Shared memory without opt-in on any device.
    const SHARED: u32 = 48 << 10;
    let Launch { grid, shared_bytes, cluster, cooperative, .. } = launch;
    let threads = launch.threads();
    let grid = grid.map(|blocks| (blocks == 0, blocks > MAX_OTHER));
    let sizes = (threads == 0, threads > MAX_THREADS, *shared_bytes > SHARED);
    // 0 means that nothing was refused so far.
    hash_of(&(status, grid, sizes, cluster, cooperative))
}
