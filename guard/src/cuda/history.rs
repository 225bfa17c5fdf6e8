//! The recent launches of each context: kernel, sizes, chunk, call site and age.

use core::fmt;
use core::ops::Deref;
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use super::symbols::Handle;
use crate::launch::valid::ValidLaunch;
use crate::plan::chunks::Chunk;
use crate::record::counters::{Counters, Counts};
use crate::record::recent::{Entry, Recorder, StreamMark, Unproven};

/// The recent launches of a context.
pub(super) struct History {
    recorder: Recorder,
    /// Names of kernels, by number.
    names: RwLock<Vec<Arc<str>>>,
    checked: AtomicU64,
    unchecked_in_capture: AtomicU64,
    /// Launches through launch builders and raw handles, which no guard counts.
    without_guard: Counters,
}

/// The history of a context, held by its guards and kernels. While one of them lives, the history is
/// found by the context's handle; after that the driver may give the handle to another context.
#[derive(Debug)]
pub(super) struct ContextHistory(Arc<History>);

/// The histories of all contexts that have a guard or a kernel.
static HISTORIES: Mutex<Vec<(usize, Weak<ContextHistory>)>> = Mutex::new(Vec::new());

impl ContextHistory {
    /// The history of `context`.
    pub(super) fn of(context: Handle) -> Arc<Self> {
        let mut histories = HISTORIES.lock();
        histories.retain(|(_, history)| history.strong_count() > 0);
        let known = histories.iter().find(|(handle, _)| *handle == context.addr());
        if let Some(history) = known.and_then(|(_, history)| history.upgrade()) {
            return history;
        }
        let history = Arc::new(Self(Arc::new(History::new())));
        histories.push((context.addr(), Arc::downgrade(&history)));
        history
    }

    pub(super) fn share(&self) -> Arc<History> {
        Arc::clone(&self.0)
    }
}

impl Deref for ContextHistory {
    type Target = History;

    fn deref(&self) -> &History {
        &self.0
    }
}

impl History {
    fn new() -> Self {
        Self {
            recorder: Recorder::new(),
            names: RwLock::default(),
            checked: AtomicU64::new(0),
            unchecked_in_capture: AtomicU64::new(0),
            without_guard: Counters::new(),
        }
    }

    /// The histories of `context`, or of all contexts where it is not known.
    pub(super) fn known(context: Option<Handle>) -> Vec<Arc<Self>> {
        let histories = HISTORIES.lock();
        let wanted = |handle: usize| context.is_none_or(|context| context.addr() == handle);
        let found = histories.iter().filter(|(handle, _)| wanted(*handle));
        found.filter_map(|(_, history)| Some(history.upgrade()?.share())).collect()
    }

    /// The number under which launches of `kernel` are recorded.
    pub(super) fn number_of(&self, kernel: &str) -> u32 {
        let mut names = self.names.write();
        let known = names.iter().position(|name| **name == *kernel);
        let place = known.unwrap_or_else(|| {
            names.push(kernel.into());
            names.len() - 1
        });
        u32::try_from(place).unwrap_or(u32::MAX)
    }

    /// Records a launch that the driver accepted.
    #[inline]
    pub(super) fn record(
        &self,
        kernel: u32,
        stream: Handle,
        chunk: &Chunk,
        launch: &ValidLaunch,
        launches: u64,
        call_site: &'static Location<'static>,
    ) {
        self.recorder.record(Entry {
            stream: stream.addr(),
            kernel,
            grid: launch.grid(),
            block: launch.block(),
            chunk: *chunk,
            launches,
            at_ns: now_ns(),
            call_site,
        });
    }

    /// All launches on record, the newest first.
    pub(super) fn launches(&self) -> Vec<LaunchRecord> {
        let mut launches = self.resolve(&self.recorder.entries());
        launches.reverse();
        launches
    }

    /// The launches that may have failed without an error being returned yet, the newest last, and
    /// how many more there are whose records were overwritten.
    pub(super) fn suspects(&self) -> (Vec<LaunchRecord>, u64) {
        let Unproven { entries, forgotten } = self.recorder.unproven();
        (self.resolve(&entries), forgotten)
    }

    /// Marks the launches on `stream` so far: a synchronisation that begins now covers them.
    pub(super) fn mark(&self, stream: Handle) -> Option<StreamMark> {
        self.recorder.mark(stream.addr())
    }

    /// Notes that the launches before `mark` ran without an error.
    pub(super) fn prove(&self, mark: StreamMark) {
        self.recorder.prove(mark);
    }

    pub(super) fn count_checked(&self) {
        self.checked.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_unchecked_in_capture(&self) {
        self.unchecked_in_capture.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted of launches that no guard counts.
    pub(super) fn counts_without_guard(&self) -> Counts {
        self.add_context_counts(self.without_guard.snapshot())
    }

    /// The counters of launches that no guard counts.
    pub(super) const fn without_guard(&self) -> &Counters {
        &self.without_guard
    }

    /// `counts` with what is counted for the whole context.
    pub(super) fn add_context_counts(&self, counts: Counts) -> Counts {
        Counts {
            checked: self.checked.load(Ordering::Relaxed),
            unchecked_in_capture: self.unchecked_in_capture.load(Ordering::Relaxed),
            sharing_a_record: self.recorder.sharing(),
            ..counts
        }
    }

    /// Entries with the names of their kernels.
    fn resolve(&self, entries: &[Entry]) -> Vec<LaunchRecord> {
        let (names, now) = (self.names.read(), now_ns());
        let record = |entry: &Entry| {
            let name = usize::try_from(entry.kernel).ok().and_then(|place| names.get(place))?;
            Some(LaunchRecord {
                stream: entry.stream,
                kernel: Arc::clone(name),
                grid: entry.grid,
                block: entry.block,
                chunk: entry.chunk,
                launches: entry.launches,
                call_site: entry.call_site,
                age: Duration::from_nanos(now.saturating_sub(entry.at_ns)),
            })
        };
        entries.iter().filter_map(record).collect()
    }
}

/// Nanoseconds of a monotonic clock, as of the system's last timer tick (1 to 10 ms).
///
/// `Instant` reads the processor's counter, which would cost more than all else that recording a
/// launch does.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[inline]
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live `timespec`. On failure it stays as it is, at zero.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec.unsigned_abs().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.unsigned_abs())
}

/// Nanoseconds since the first call.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub(super) fn now_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = FIRST.get_or_init(Instant::now).elapsed();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("names", &*self.names.read()).finish_non_exhaustive()
    }
}

/// A launch that the driver accepted; or may have accepted, where a launch builder failed in a context
/// with a sticky error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchRecord {
    /// The stream's handle (`CUstream`) as a number, 0 for the default one. The driver may reuse the
    /// handle of a destroyed stream.
    pub stream: usize,
    /// The kernel's name.
    pub kernel: Arc<str>,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// The items that it works on; one item for a launch without a batch axis.
    pub chunk: Chunk,
    /// Launches of its whole plan.
    pub launches: u64,
    /// Where the program launched it.
    pub call_site: &'static Location<'static>,
    /// How long ago, to the resolution of the system's timer tick (1 to 10 ms on Linux).
    pub age: Duration,
}

impl fmt::Display for LaunchRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, grid: [x, y, z], chunk, launches, call_site, .. } = self;
        write!(f, "{kernel} (grid {x} x {y} x {z}, ")?;
        if *launches > 1 {
            write!(f, "chunk {} of {launches}, ", chunk.index)?;
        }
        write!(f, "{call_site})")
    }
}
