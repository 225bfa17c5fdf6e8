//! The recent launches of each context, with all that tells them apart for a person.

use core::fmt;
use core::ops::Deref;
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use super::clock::now_ns;
use super::driver::Handle;
use crate::launch::validate::ValidLaunch;
use crate::plan::chunk::Chunk;
use crate::record::Counts;
use crate::record::flight::{Entry, KERNELS, Mark, Recorded, Recorder};

/// The recent launches of a context.
pub(super) struct History {
    recorder: Recorder,
    /// Names of kernels, by number.
    names: RwLock<Vec<Arc<str>>>,
    checked: AtomicU64,
    unchecked_in_capture: AtomicU64,
}

/// The history of a context that a guard or a kernel is of. While there is one it is found by the
/// context's handle; after that the handle may be another context's, whoever still has the history.
#[derive(Debug)]
pub(super) struct ContextHistory(Arc<History>);

/// The histories of all contexts that a guard or a kernel is of.
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
        }
    }

    /// The histories of `context`, or of all where it is not known.
    pub(super) fn known(context: Option<Handle>) -> Vec<Arc<Self>> {
        let histories = HISTORIES.lock();
        let wanted = |handle: usize| context.is_none_or(|context| context.addr() == handle);
        let found = histories.iter().filter(|(handle, _)| wanted(*handle));
        found.filter_map(|(_, history)| Some(history.upgrade()?.share())).collect()
    }

    /// The number under which launches of `kernel` are recorded: the last one for all kernels past
    /// the first 2^24 names.
    pub(super) fn number_of(&self, kernel: &str) -> u32 {
        let mut names = self.names.write();
        let known = names.iter().position(|name| **name == *kernel);
        let place = known.unwrap_or_else(|| {
            if names.len() == KERNELS - 1 {
                names.push("one of very many kernels".into());
            } else if names.len() < KERNELS {
                names.push(kernel.into());
            }
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
        // First, so that nothing else is held in registers over the call.
        let at_ns = now_ns();
        self.recorder.record(&Entry {
            stream: stream.addr(),
            kernel,
            grid: launch.grid(),
            block: launch.block(),
            items: [chunk.start, chunk.items],
            place: [chunk.index, launches].map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            at_ns,
            call_site,
        });
    }

    /// All launches on record, the newest first.
    pub(super) fn launches(&self) -> Vec<LaunchRecord> {
        let mut launches = self.resolve(self.recorder.entries());
        launches.reverse();
        launches
    }

    /// The launches that may have failed without anyone having been told, the newest last, and how
    /// many more there are without a record.
    pub(super) fn suspects(&self) -> (Vec<LaunchRecord>, u64) {
        let forgotten = self.recorder.forgotten();
        let mut entries = self.recorder.entries();
        entries.retain(|recorded| !recorded.proven);
        (self.resolve(entries), forgotten)
    }

    /// How far `stream` has come.
    pub(super) fn mark(&self, stream: Handle) -> Mark {
        self.recorder.mark(stream.addr())
    }

    /// Everything before `mark` has run without an error.
    pub(super) fn prove(&self, mark: Mark) {
        self.recorder.prove(mark);
    }

    pub(super) fn count_checked(&self) {
        self.checked.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_unchecked_in_capture(&self) {
        self.unchecked_in_capture.fetch_add(1, Ordering::Relaxed);
    }

    /// `counts` with what is counted here.
    pub(super) fn counted(&self, counts: Counts) -> Counts {
        Counts {
            checked: self.checked.load(Ordering::Relaxed),
            unchecked_in_capture: self.unchecked_in_capture.load(Ordering::Relaxed),
            sharing_a_record: self.recorder.sharing(),
            unrecorded: self.recorder.unrecorded(),
            ..counts
        }
    }

    /// Entries as a person reads them, the newest last.
    fn resolve(&self, mut entries: Vec<Recorded>) -> Vec<LaunchRecord> {
        // Rings have no numbers in common; within a tick of the clock their order is not known.
        entries.sort_by_key(|recorded| (recorded.entry.at_ns, recorded.number));
        let (names, now) = (self.names.read(), now_ns());
        let one = |Recorded { entry, .. }: &Recorded| {
            let place = usize::try_from(entry.kernel).ok();
            let name = place.and_then(|place| names.get(place)).map(Arc::clone);
            let ([start, items], [index, launches]) = (entry.items, entry.place.map(u64::from));
            // SAFETY: only `record` writes entries, and takes a reference that lives for ever. The
            // pointer is written and read as one, so that it is such a reference or null.
            let call_site = unsafe { entry.call_site.as_ref() };
            Some(LaunchRecord {
                stream: entry.stream,
                kernel: name?,
                grid: entry.grid,
                block: entry.block,
                chunk: Chunk { index, start, items },
                launches,
                call_site: call_site?,
                age: Duration::from_nanos(now.saturating_sub(entry.at_ns)),
            })
        };
        entries.iter().filter_map(one).collect()
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("names", &*self.names.read()).finish_non_exhaustive()
    }
}

/// A launch that the driver accepted, or may have where a launch builder failed in a context that is
/// lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchRecord {
    /// The stream's handle (`CUstream`) as a number, 0 for the default one. The driver may give the
    /// handle of a stream that is gone to a new one.
    pub stream: usize,
    /// The kernel's name.
    pub kernel: Arc<str>,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// The items that it works on; one item for a launch without a batch.
    pub chunk: Chunk,
    /// Launches of its plan.
    pub launches: u64,
    /// Where the program launched it.
    pub call_site: &'static Location<'static>,
    /// How long ago, as of the system clock's last tick (1 to 10 ms on Linux).
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
