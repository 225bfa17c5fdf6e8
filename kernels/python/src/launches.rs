//! The guard of each device and its prepared attention launches, cached for later calls of the same shape.

use core::hash::Hash;
use core::num::NonZeroUsize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use gridguard::Guard;
use gridguard::cuda::CudaError;
use gridguard::profile::{Layer, Layers, MissLog};
use gridguard_kernels::residual_norm::ResidualNorm;
use gridguard_kernels::temporal_attention::{AttentionBackward, TemporalAttention};
use gridguard_kernels::{KernelError, Kernels, Prepared, TunedLaunch};
use lru::LruCache;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

/// A launch that is prepared once, or the error of its preparation.
pub(crate) type Launch<P> = OnceCell<Result<P, KernelError>>;

/// Launches by device and operation.
pub(crate) type Launches<O, P> = LazyLock<Mutex<LruCache<(usize, O), Arc<Launch<P>>>>>;

/// The kernels of a device, with its profiles.
pub(crate) struct Device {
    pub(crate) kernels: Kernels,
    /// The file of the user's profile; `None` if profiles are off.
    pub(crate) profile: Option<PathBuf>,
    /// Profile entries that are unused or may be stale.
    pub(crate) notices: Vec<String>,
}

/// Launches kept in each table. Beyond that the least recently used is prepared again, mostly from code that is still loaded.
const MAX_LAUNCHES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// Shapes without an exact entry that are kept for the tuner.
const MAX_MISSES: usize = 10_000;

pub(crate) static DEVICES: LazyLock<Mutex<HashMap<usize, Arc<OnceCell<Device>>>>> =
    LazyLock::new(Mutex::default);
/// The shapes without an exact entry since they were last written.
pub(crate) static MISSES: LazyLock<Arc<MissLog>> =
    LazyLock::new(|| Arc::new(MissLog::new(MAX_MISSES)));
pub(crate) static LAUNCHES: Launches<TemporalAttention, TunedLaunch<TemporalAttention>> =
    LazyLock::new(|| Mutex::new(LruCache::new(MAX_LAUNCHES)));
pub(crate) static BACKWARD: Launches<AttentionBackward, TunedLaunch<AttentionBackward>> =
    LazyLock::new(|| Mutex::new(LruCache::new(MAX_LAUNCHES)));
pub(crate) static NORMS: Launches<ResidualNorm, Prepared<ResidualNorm>> =
    LazyLock::new(|| Mutex::new(LruCache::new(MAX_LAUNCHES)));
static CAPTURED: LazyLock<Mutex<HashMap<usize, Arc<dyn Send + Sync>>>> =
    LazyLock::new(Mutex::default);

/// The kernels of a device, in its primary context, which PyTorch uses too. The user's profile and the built-in one
/// choose their launches.
pub(crate) fn kernels(ordinal: usize) -> Result<Kernels, CudaError> {
    let device = Arc::clone(DEVICES.lock().entry(ordinal).or_default());
    let open = || -> Result<Device, CudaError> {
        let guard = Guard::cuda(ordinal)?;
        let (guard, notices) = guard.with_device_profile();
        let guard = guard.with_miss_log(Arc::clone(&MISSES));
        let notices = notices.iter().map(ToString::to_string).collect();
        let profile = Layers::new().user().path(Layer::User, &guard.identity());
        Ok(Device { kernels: Kernels::new(guard), profile, notices })
    };
    Ok(device.get_or_try_init(open)?.kernels.clone())
}

/// The launch of a key, prepared or not. The table is not locked while a kernel is compiled.
pub(crate) fn launch<O: Hash + Eq, P>(table: &Launches<O, P>, key: (usize, O)) -> Arc<Launch<P>> {
    Arc::clone(table.lock().get_or_insert(key, Arc::default))
}

/// Forgets devices and launches, so that the next call of each shape reads the profiles again.
pub(crate) fn reset() {
    // Dropped after the locks are released: unloading code takes time.
    let devices = core::mem::take(&mut *DEVICES.lock());
    let launches = core::mem::replace(&mut *LAUNCHES.lock(), LruCache::new(MAX_LAUNCHES));
    let backward = core::mem::replace(&mut *BACKWARD.lock(), LruCache::new(MAX_LAUNCHES));
    let norms = core::mem::replace(&mut *NORMS.lock(), LruCache::new(MAX_LAUNCHES));
    drop((devices, launches, backward, norms));
}

/// Keeps code loaded until the process ends, because a graph captured its launch.
pub(crate) fn keep_loaded(code: Arc<dyn Send + Sync>) {
    CAPTURED.lock().entry(Arc::as_ptr(&code).addr()).or_insert(code);
}
