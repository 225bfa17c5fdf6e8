//! The guard of each device and its prepared attention launches, cached for later calls of the same shape.

use core::cell::RefCell;
use core::convert::Infallible;
use core::hash::Hash;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::thread::LocalKey;

use gridguard::Guard;
use gridguard::cuda::{CudaError, CudaErrorKind};
use gridguard::profile::{MissLog, move_user_folder};
use gridguard_kernels::residual_norm::ResidualNorm;
use gridguard_kernels::temporal_attention::{AttentionBackward, GroupSum, TemporalAttention};
use gridguard_kernels::{KernelError, Kernels, Prepared, TunedLaunch};
use lru::LruCache;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use crate::border::Borders;

/// A launch that is prepared once, or the error of its preparation.
pub(crate) type Launch<P> = OnceCell<Result<P, KernelError>>;

/// Launches by device and operation: those of the process, and those that each thread used last.
pub(crate) struct Launches<O: 'static, P: 'static> {
    pub(crate) all: LazyLock<Mutex<Table<O, P>>>,
    of_thread: &'static LocalKey<RecentLaunches<O, P>>,
}

type Table<O, P> = LruCache<(usize, O), Arc<Launch<P>>>;
type RecentLaunches<O, P> = RefCell<Recent<(usize, O), Arc<Launch<P>>>>;

/// What this thread took last from a table of the process. It takes no lock to read.
struct Recent<K, V> {
    /// Of `RESETS` when the entries were read.
    resets: u64,
    entries: LruCache<K, V>,
}

/// The kernels of a device, with its profiles.
pub(crate) struct Device {
    pub(crate) kernels: Kernels,
    pub(crate) borders: Borders,
    /// The file of the user's profile; `None` if profiles are off.
    pub(crate) profile: Option<PathBuf>,
    /// Profile entries that are unused or may be stale.
    pub(crate) notices: Vec<String>,
}

type Devices = HashMap<usize, Arc<OnceCell<Arc<Device>>>>;

/// Launches kept in each table. Beyond that the one that was looked up first is prepared again, mostly from code that is
/// still loaded.
const MAX_LAUNCHES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Launches that each thread looks up without a lock.
const MAX_RECENT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Shapes without an exact entry that are kept for the tuner.
const MAX_MISSES: usize = 10_000;

pub(crate) static DEVICES: LazyLock<Mutex<Devices>> = LazyLock::new(Mutex::default);
/// The shapes without an exact entry since they were last written.
pub(crate) static MISSES: LazyLock<Arc<MissLog>> =
    LazyLock::new(|| Arc::new(MissLog::new(MAX_MISSES)));
pub(crate) static LAUNCHES: Launches<TemporalAttention, TunedLaunch<TemporalAttention>> =
    Launches::new(&RECENT_LAUNCHES);
pub(crate) static BACKWARD: Launches<AttentionBackward, TunedLaunch<AttentionBackward>> =
    Launches::new(&RECENT_BACKWARD);
pub(crate) static NORMS: Launches<ResidualNorm, Prepared<ResidualNorm>> =
    Launches::new(&RECENT_NORMS);
pub(crate) static SUMS: Launches<GroupSum, Prepared<GroupSum>> = Launches::new(&RECENT_SUMS);
/// How often the tables were emptied.
static RESETS: AtomicU64 = AtomicU64::new(0);
static CAPTURED: LazyLock<Mutex<HashMap<usize, Arc<dyn Send + Sync>>>> =
    LazyLock::new(Mutex::default);

thread_local! {
    static RECENT_DEVICES: RefCell<Recent<usize, Arc<Device>>> = RefCell::default();
    static RECENT_LAUNCHES: RecentLaunches<TemporalAttention, TunedLaunch<TemporalAttention>> = RefCell::default();
    static RECENT_BACKWARD: RecentLaunches<AttentionBackward, TunedLaunch<AttentionBackward>> = RefCell::default();
    static RECENT_SUMS: RecentLaunches<GroupSum, Prepared<GroupSum>> = RefCell::default();
    static RECENT_NORMS: RecentLaunches<ResidualNorm, Prepared<ResidualNorm>> = RefCell::default();
}

/// A device, in its primary context, which PyTorch uses too. The user's profile and the built-in one choose its
/// launches.
pub(crate) fn device(ordinal: usize) -> Result<Arc<Device>, CudaError> {
    Recent::get(&RECENT_DEVICES, ordinal, || {
        let device = Arc::clone(DEVICES.lock().entry(ordinal).or_default());
        device.get_or_try_init(|| open(ordinal)).cloned()
    })
}

pub(crate) fn kernels(ordinal: usize) -> Result<Kernels, CudaError> {
    Ok(device(ordinal)?.kernels.clone())
}

fn open(ordinal: usize) -> Result<Arc<Device>, CudaError> {
    let guard = Guard::cuda(ordinal)?;
    // What this process measures is written there.
    let profile = move_user_folder().map(|folder| folder.join(guard.identity().file_name()));
    let (guard, notices) = guard.with_device_profile();
    let guard = guard.with_miss_log(Arc::clone(&MISSES));
    let notices = notices.iter().map(ToString::to_string).collect();
    let entries = guard.profile().map(AsRef::as_ref);
    let borders = Borders::new(entries, guard.limits(), guard.environment());
    Ok(Arc::new(Device { kernels: Kernels::new(guard), borders, profile, notices }))
}

impl<O: Copy + Hash + Eq, P> Launches<O, P> {
    const fn new(of_thread: &'static LocalKey<RecentLaunches<O, P>>) -> Self {
        Self { all: LazyLock::new(|| Mutex::new(LruCache::new(MAX_LAUNCHES))), of_thread }
    }

    /// Empties the table of the process.
    fn take(&self) -> Table<O, P> {
        core::mem::replace(&mut *self.all.lock(), LruCache::new(MAX_LAUNCHES))
    }

    /// The launch of a key, prepared or not. The table is not locked while a kernel is compiled.
    pub(crate) fn get(&self, key: (usize, O)) -> Arc<Launch<P>> {
        let of_process = || Arc::clone(self.all.lock().get_or_insert(key, Arc::default));
        let found = Recent::get(self.of_thread, key, || Ok::<_, Infallible>(of_process()));
        found.unwrap_or_else(|never| match never {})
    }
}

impl<K: Hash + Eq, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { resets: 0, entries: LruCache::new(MAX_RECENT) }
    }
}

impl<K: Hash + Eq, V: Clone> Recent<K, V> {
    fn get<E>(
        of_thread: &'static LocalKey<RefCell<Self>>,
        key: K,
        of_process: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        of_thread.with_borrow_mut(|recent| {
            let resets = RESETS.load(Ordering::Acquire);
            if recent.resets != resets {
                *recent = Self { resets, ..Self::default() };
            }
            recent.entries.try_get_or_insert(key, of_process).cloned()
        })
    }
}

/// Whether the next call may succeed, because the driver or the compiler failed and not the problem.
pub(crate) fn may_pass(error: &KernelError) -> bool {
    let is_of_code = |kind: &CudaErrorKind| {
        matches!(kind, CudaErrorKind::Compilation { .. } | CudaErrorKind::Image(_))
    };
    match error {
        KernelError::Cuda(error) => !is_of_code(error.kind()),
        KernelError::Memory(_) | KernelError::Launch(_) => true,
        _ => false,
    }
}

/// Forgets devices and launches, so that the next call of each shape reads the profiles again.
pub(crate) fn reset() {
    // Dropped after the locks are released: unloading code takes time.
    let devices = core::mem::take(&mut *DEVICES.lock());
    let launches = (LAUNCHES.take(), BACKWARD.take(), SUMS.take(), NORMS.take());
    // Each thread then forgets what it took from the tables before.
    RESETS.fetch_add(1, Ordering::Release);
    drop((devices, launches));
}

/// Keeps code loaded until the process ends, because a graph captured its launch.
pub(crate) fn keep_loaded(code: Arc<dyn Send + Sync>) {
    CAPTURED.lock().entry(Arc::as_ptr(&code).addr()).or_insert(code);
}
