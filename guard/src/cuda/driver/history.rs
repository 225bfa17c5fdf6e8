//! The recent launches of each context, and the launches that no synchronisation has confirmed yet.

use core::fmt;
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, LazyLock, Weak};

use cudarc::driver::CudaContext;
use parking_lot::{Mutex, RwLock};

use crate::cuda::driver::symbols::Handle;
use crate::launch::valid::ValidLaunch;
use crate::plan::chunks::Chunk;
use crate::record::counters::Counts;
use crate::record::recent::{Entry, Recorder, StreamMark, Unproven};

/// A launch that the driver accepted. If a launch builder failed in a context with a sticky error, the driver may have
/// accepted it.
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
    /// The number of launches of its plan.
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

/// The recent launches of a context.
pub(crate) struct History {
    recorder: Recorder,
    /// Names of kernels, by number. Above [`KEPT_NAMES`], a name that neither a kernel nor a record has is replaced.
    names: RwLock<Vec<Arc<str>>>,
    /// Launches that were synchronised at once.
    pub(crate) checked: AtomicU64,
    /// Launches that should have been synchronised, but were captured.
    pub(crate) unchecked_in_capture: AtomicU64,
}

/// The history of a context, held by its guards and kernels. While one of them lives, the history is
/// found by the context's handle; after that the driver may give the handle to another context.
#[derive(Debug)]
pub(crate) struct ContextHistory(pub(crate) Arc<History>);

/// The histories of all contexts that have a guard or a kernel.
static HISTORIES: Mutex<Vec<(usize, Weak<ContextHistory>)>> = Mutex::new(Vec::new());

impl ContextHistory {
    /// The history of `context`.
    pub(crate) fn of(context: Handle) -> Arc<Self> {
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
}

impl History {
    fn new() -> Self {
        Self {
            recorder: Recorder::new(),
            names: RwLock::default(),
            checked: AtomicU64::new(0),
            unchecked_in_capture: AtomicU64::new(0),
        }
    }

    /// The histories of `context`, or of all contexts where it is not known.
    pub(crate) fn known(context: Option<Handle>) -> Vec<Arc<Self>> {
        let histories = HISTORIES.lock();
        let wanted = |handle: usize| context.is_none_or(|context| context.addr() == handle);
        let found = histories.iter().filter(|(handle, _)| wanted(*handle));
        found.filter_map(|(_, history)| Some(Arc::clone(&history.upgrade()?.0))).collect()
    }

    /// The number that launches of `kernel` are recorded with, while the name is held.
    pub(crate) fn number_of(&self, kernel: &str) -> (u32, Arc<str>) {
        let mut names = self.names.write();
        let place = names.iter().position(|name| **name == *kernel).unwrap_or_else(|| {
            let replaced = if names.len() < KEPT_NAMES { None } else { self.unused(&names) };
            let place = replaced.unwrap_or(names.len());
            match names.get_mut(place) {
                Some(name) => *name = kernel.into(),
                None => names.push(kernel.into()),
            }
            place
        });
        let name = names.get(place).map_or_else(|| kernel.into(), Arc::clone);
        (u32::try_from(place).unwrap_or(u32::MAX), name)
    }

    /// The place of a name that neither a kernel nor a record has. The caller holds the lock of `names`, so nobody
    /// takes it meanwhile.
    fn unused(&self, names: &[Arc<str>]) -> Option<usize> {
        let entries = self.recorder.entries();
        let is_recorded =
            |place| entries.iter().any(|entry| usize::try_from(entry.kernel) == Ok(place));
        let mut places = names.iter().enumerate();
        let is_unused = |(place, name): &(usize, &Arc<str>)| {
            Arc::strong_count(name) == 1 && !is_recorded(*place)
        };
        places.find(is_unused).map(|(place, _)| place)
    }

    /// Records a launch that the driver accepted.
    #[inline]
    pub(crate) fn record(
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

    /// Prefetches the memory that recording the next launch reads. The driver evicts it from the caches; the prefetch
    /// runs while the driver works.
    #[inline]
    pub(crate) fn prefetch(&self) {
        for address in self.recorder.read_by_next() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a hint, which faults for no address.
            unsafe {
                use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(address.cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = address;
        }
    }

    /// All launches on record, the newest first.
    pub(crate) fn launches(&self) -> Vec<LaunchRecord> {
        let names = self.names.read();
        let mut launches = resolve(&names, &self.recorder.entries());
        launches.reverse();
        launches
    }

    /// The launches that may have failed without an error being returned yet, the newest last, and
    /// how many more there are whose records were overwritten.
    pub(crate) fn suspects(&self) -> (Vec<LaunchRecord>, u64) {
        let names = self.names.read();
        let Unproven { entries, forgotten } = self.recorder.unproven();
        (resolve(&names, &entries), forgotten)
    }

    /// Marks the launches on `stream` so far: a synchronisation that begins now covers them.
    pub(crate) fn mark(&self, stream: Handle) -> Option<StreamMark> {
        self.recorder.mark(stream.addr())
    }

    /// Notes that the launches before `mark` ran without an error.
    pub(crate) fn prove(&self, mark: StreamMark) {
        self.recorder.prove(mark);
    }

    /// Adds the counts of the whole context to `counts`.
    pub(crate) fn add_context_counts(&self, counts: Counts) -> Counts {
        Counts {
            checked: self.checked.load(Ordering::Relaxed),
            unchecked_in_capture: self.unchecked_in_capture.load(Ordering::Relaxed),
            sharing_a_record: self.recorder.sharing(),
            ..counts
        }
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("names", &*self.names.read()).finish_non_exhaustive()
    }
}

/// The context that a guard launches in.
#[derive(Clone, Debug)]
pub(crate) struct GuardContext {
    /// The address of its handle.
    pub(crate) handle: usize,
    /// cudarc's object for the context; `None` for a context of another binding.
    pub(crate) context: Option<Arc<CudaContext>>,
    /// The launches of the context.
    pub(crate) history: Arc<ContextHistory>,
    /// Whether each launch is synchronised at once.
    pub(crate) checked: bool,
}

impl GuardContext {
    pub(crate) fn new(handle: Handle, context: Option<Arc<CudaContext>>) -> Self {
        let history = ContextHistory::of(handle);
        Self { handle: handle.addr(), context, history, checked: *CHECKED_BY_ENVIRONMENT }
    }
}

/// What to record of a launch, and whether to synchronise it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// Where the program launched it.
    pub(crate) call_site: &'static Location<'static>,
    /// Whether to synchronise it at once.
    pub(crate) checked: bool,
}

/// Entries with the names of their kernels.
fn resolve(names: &[Arc<str>], entries: &[Entry]) -> Vec<LaunchRecord> {
    let now = now_ns();
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

/// Whether `GRIDGUARD_SYNC` asks for checked launches; read once for the process.
static CHECKED_BY_ENVIRONMENT: LazyLock<bool> = LazyLock::new(|| {
    let value = std::env::var_os("GRIDGUARD_SYNC");
    value.is_some_and(|value| !value.is_empty() && value != "0")
});

/// Nanoseconds of a monotonic clock, as of the system's last timer tick (1 to 10 ms).
///
/// `Instant` reads the processor's counter, which would cost more than the rest of recording a launch.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[inline]
pub(crate) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live `timespec`. On failure it stays zero.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec.unsigned_abs().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.unsigned_abs())
}

/// Nanoseconds since the first call.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub(crate) fn now_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;

    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = FIRST.get_or_init(Instant::now).elapsed();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The most unused kernel names that a context keeps. A program that loads kernels without end does not keep every
/// name.
const KEPT_NAMES: usize = 1024;

/// What the bench `record` measures; not part of the public interface.
#[cfg(feature = "bench")]
pub mod bench {
    use core::panic::Location;
    use std::sync::Arc;

    use super::ContextHistory;
    use crate::launch::valid::ValidLaunch;
    use crate::plan::chunks::Chunk;
    use crate::record::counters::Counters;

    /// The records of a context that does not exist, and the counters of a guard.
    #[derive(Debug)]
    pub struct LaunchRecords {
        history: Arc<ContextHistory>,
        kernel: u32,
        counters: Counters,
    }

    impl Default for LaunchRecords {
        /// No records yet.
        fn default() -> Self {
            let history = ContextHistory::of(core::ptr::null_mut());
            let (kernel, _) = history.0.number_of("bench");
            Self { history, kernel, counters: Counters::new() }
        }
    }

    impl LaunchRecords {
        /// Records `launch` on the stream with the handle `stream`, as a guard does.
        #[inline]
        #[track_caller]
        pub fn record(&self, stream: usize, chunk: &Chunk, launch: &ValidLaunch) {
            let stream = core::ptr::without_provenance_mut(stream);
            self.history.0.record(self.kernel, stream, chunk, launch, 1, Location::caller());
        }

        /// Counts a plan of one launch, as a guard does.
        #[inline]
        pub fn count(&self) {
            self.counters.ran(1);
        }
    }

    /// The clock of the records.
    #[inline]
    pub fn now_ns() -> u64 {
        super::now_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, validate};

    #[test]
    #[cfg_attr(miri, ignore = "thousands of names take Miri many minutes")]
    fn names_that_neither_a_kernel_nor_a_record_has_are_replaced() {
        let history = History::new();
        let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("k"));
        let launch = validate(&LaunchRequest::new(Dim3::ONE, Dim3::ONE), &limits).expect("legal");
        let (held, _name) = history.number_of("held");
        let (recorded, _) = history.number_of("recorded");
        let stream = core::ptr::null_mut();
        history.record(recorded, stream, &Chunk::only(1), &launch, 1, Location::caller());
        for number in 0..5 * KEPT_NAMES {
            history.number_of(&format!("kernel {number}"));
        }
        assert_eq!(history.names.read().len(), KEPT_NAMES);
        assert_eq!(history.number_of("held").0, held);
        assert_eq!(history.number_of("recorded").0, recorded);
        assert_eq!(&*history.launches()[0].kernel, "recorded");
        let kernels: Vec<_> = (0..2 * KEPT_NAMES)
            .map(|number| history.number_of(&format!("live {number}")))
            .collect();
        for (number, (place, name)) in kernels.iter().enumerate() {
            assert_eq!(**name, format!("live {number}"));
            assert_eq!(history.number_of(name).0, *place);
        }
    }
}
