//! The prepared launches of each device, kept for later calls of the same shape.

use core::num::NonZeroUsize;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use gridguard::Guard;
use gridguard::cuda::CudaError;
use gridguard::profile::Layers;
use gridguard_kernels::temporal_attention::TemporalAttention;
use gridguard_kernels::{KernelError, Kernels, Prepared};
use lru::LruCache;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

/// Attention that is prepared once, or the reason why it cannot be.
pub(crate) type Launch = OnceCell<Result<Prepared<TemporalAttention>, KernelError>>;

/// A device's ordinal, and attention of one shape.
pub(crate) type Key = (usize, TemporalAttention);

/// The most launches that are kept. A program of ever new shapes prepares again beyond that, from code
/// that is mostly still loaded.
const MAX_KEPT_LAUNCHES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

static DEVICES: LazyLock<Mutex<HashMap<usize, Arc<OnceCell<Kernels>>>>> =
    LazyLock::new(Mutex::default);
static LAUNCHES: LazyLock<Mutex<LruCache<Key, Arc<Launch>>>> =
    LazyLock::new(|| Mutex::new(LruCache::new(MAX_KEPT_LAUNCHES)));
static CAPTURED: LazyLock<Mutex<HashMap<Key, Prepared<TemporalAttention>>>> =
    LazyLock::new(Mutex::default);

/// The kernels of a device in its primary context, which is PyTorch's, with the user's profile and the one
/// shipped for the device.
pub(crate) fn kernels(ordinal: usize) -> Result<Kernels, CudaError> {
    let kernels = Arc::clone(DEVICES.lock().entry(ordinal).or_default());
    let open = || {
        let guard = Guard::cuda(ordinal)?;
        let identity = guard.identity();
        let layers = Layers::new().user().built_in(&identity);
        let loaded = layers.load(&identity, &guard.environment());
        Ok(Kernels::new(guard.with_profile(loaded.profile.into())))
    };
    kernels.get_or_try_init(open).cloned()
}

/// The launch of this key, prepared or not yet. The table is not locked while a kernel is compiled.
pub(crate) fn kept(key: Key) -> Arc<Launch> {
    Arc::clone(LAUNCHES.lock().get_or_insert(key, Arc::default))
}

/// Keeps code loaded for as long as the process runs, for graphs that captured its launch.
pub(crate) fn keep_captured(key: Key, prepared: &Prepared<TemporalAttention>) {
    CAPTURED.lock().entry(key).or_insert_with(|| prepared.clone());
}
