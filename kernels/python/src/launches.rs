//! The prepared launches of each device, kept for later calls of the same shape.

use core::num::NonZeroUsize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use gridguard::Guard;
use gridguard::cuda::CudaError;
use gridguard::profile::{Layer, Layers, MissLog};
use gridguard_kernels::temporal_attention::TemporalAttention;
use gridguard_kernels::{KernelError, Kernels, Prepared, TunedLaunch};
use lru::LruCache;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

/// Attention that is prepared once, or the reason why it cannot be.
pub(crate) type Launch = OnceCell<Result<TunedLaunch<TemporalAttention>, KernelError>>;

/// The kernels of a device with its profiles.
pub(crate) struct Device {
    pub(crate) kernels: Kernels,
    /// The user's profile, if there is a folder for it.
    pub(crate) profile: Option<PathBuf>,
    /// What of the profiles is not used, or may be stale.
    pub(crate) notices: Vec<String>,
}

/// A device's ordinal, and attention of one shape.
pub(crate) type Key = (usize, TemporalAttention);

/// The most launches that are kept. A program of ever new shapes prepares again beyond that, from code
/// that is mostly still loaded.
const MAX_KEPT_LAUNCHES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The most shapes without an exact entry that are kept for the tuner.
const MAX_MISSES: usize = 10_000;

static DEVICES: LazyLock<Mutex<HashMap<usize, Arc<OnceCell<Device>>>>> =
    LazyLock::new(Mutex::default);
/// The shapes that had no exact entry since they were last written.
pub(crate) static MISSES: LazyLock<Arc<MissLog>> =
    LazyLock::new(|| Arc::new(MissLog::new(MAX_MISSES)));
static LAUNCHES: LazyLock<Mutex<LruCache<Key, Arc<Launch>>>> =
    LazyLock::new(|| Mutex::new(LruCache::new(MAX_KEPT_LAUNCHES)));
static CAPTURED: LazyLock<Mutex<HashMap<Key, Prepared<TemporalAttention>>>> =
    LazyLock::new(Mutex::default);

/// The kernels of a device in its primary context, which is PyTorch's, with the user's profile and the one
/// shipped for the device.
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

/// Each device that was used, by its ordinal.
pub(crate) fn devices<R>(mut of: impl FnMut(usize, &Device) -> R) -> Vec<R> {
    let devices = DEVICES.lock();
    devices.iter().filter_map(|(ordinal, device)| Some(of(*ordinal, device.get()?))).collect()
}

/// Each launch that was prepared, the last used first.
pub(crate) fn prepared<R>(
    mut of: impl FnMut(&Key, &TunedLaunch<TemporalAttention>) -> R,
) -> Vec<R> {
    let launches = LAUNCHES.lock();
    let prepared = launches.iter().filter_map(|(key, launch)| Some((key, launch.get()?)));
    prepared.filter_map(|(key, prepared)| Some(of(key, prepared.as_ref().ok()?))).collect()
}

/// Has the next call of each shape read the profiles again.
pub(crate) fn forget() {
    // Unloading code takes time.
    let devices = core::mem::take(&mut *DEVICES.lock());
    let launches = core::mem::replace(&mut *LAUNCHES.lock(), LruCache::new(MAX_KEPT_LAUNCHES));
    drop((devices, launches));
}

/// The launch of this key, prepared or not yet. The table is not locked while a kernel is compiled.
pub(crate) fn kept(key: Key) -> Arc<Launch> {
    Arc::clone(LAUNCHES.lock().get_or_insert(key, Arc::default))
}

/// Keeps code loaded for as long as the process runs, for graphs that captured its launch.
pub(crate) fn keep_captured(key: Key, prepared: &Prepared<TemporalAttention>) {
    CAPTURED.lock().entry(key).or_insert_with(|| prepared.clone());
}
