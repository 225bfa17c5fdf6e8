//! Limits that a compiled kernel sets for its launches.

use derive_more::Display;

use super::device::DeviceLimits;
use super::index::IndexLimit;
use crate::dim::Dim3;

/// The limits and resource use of one compiled kernel.
///
/// `FA` below stands for `CU_FUNC_ATTRIBUTE_`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct KernelLimits {
    /// The kernel's name.
    pub name: String,
    /// Maximum threads per block by launch bounds and registers: `FA MAX_THREADS_PER_BLOCK`.
    /// `None` if unknown.
    pub max_threads_per_block: Option<u64>,
    /// The only block that the kernel accepts (`.reqntid`). Images state it, driver attributes do not.
    pub required_block: Option<Dim3>,
    /// Registers per thread: `FA NUM_REGS`. 0 if unknown.
    pub registers_per_thread: u64,
    /// Static shared memory in bytes: `FA SHARED_SIZE_BYTES`.
    pub static_shared_bytes: u64,
    /// Dynamic shared memory in bytes that a launch may request: `FA MAX_DYNAMIC_SHARED_SIZE_BYTES`. `None`
    /// for the default: 48 KiB less the static shared memory.
    pub max_dynamic_shared_bytes: Option<u64>,
    /// Local memory per thread in bytes: `FA LOCAL_SIZE_BYTES`.
    pub local_bytes_per_thread: u64,
    /// The cluster size set by `__cluster_dims__`: `FA REQUIRED_CLUSTER_WIDTH`, `_HEIGHT`,
    /// `_DEPTH`.
    pub required_cluster: Option<Dim3>,
    /// Whether a launch must specify a cluster size: `FA CLUSTER_SIZE_MUST_BE_SET`.
    pub cluster_must_be_set: bool,
    /// Whether clusters above the portable size are allowed: `FA
    /// NON_PORTABLE_CLUSTER_SIZE_ALLOWED`.
    pub non_portable_cluster_allowed: bool,
    /// The launches beyond which its 32-bit indices wrap. Empty if there are none or they are not known.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub index: Vec<IndexLimit>,
}

impl KernelLimits {
    /// A kernel without known limits, except for the shared memory that needs no opt-in.
    pub fn unknown(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The local memory that the driver reserves on `device` for any launch of the kernel. `None` if every
    /// new context reserves at least as much.
    pub fn local_memory(&self, device: &DeviceLimits) -> Option<LocalMemory> {
        let bytes_per_thread = self.local_bytes_per_thread;
        let resident_threads = device.resident_threads();
        (bytes_per_thread > INITIAL_LOCAL_BYTES)
            .then_some(LocalMemory { bytes_per_thread, resident_threads })
    }
}

/// The local memory that the driver reserves at a kernel's first launch and keeps.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[display(
    "{bytes_per_thread} bytes x {resident_threads} resident threads = {} bytes",
    self.total_bytes()
)]
pub struct LocalMemory {
    /// Bytes per thread.
    pub bytes_per_thread: u64,
    /// Threads that can be resident on the device.
    pub resident_threads: u64,
}

impl LocalMemory {
    /// Bytes of all threads.
    pub const fn total_bytes(&self) -> u64 {
        self.bytes_per_thread.saturating_mul(self.resident_threads)
    }
}

/// Bytes per thread of a new context, by the default `CU_LIMIT_STACK_SIZE` (H200).
const INITIAL_LOCAL_BYTES: u64 = 1024;
