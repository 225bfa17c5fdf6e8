//! What a device and a kernel allow, as plain data.
//!
//! Nothing here queries anything: [`crate::cuda`] fills these from the driver, `catalog` from
//! the limits catalogue, tests by hand.

mod ceilings;
mod launch;

use core::fmt;

pub(crate) use ceilings::{Ceilings, NON_PORTABLE_CLUSTER_BLOCKS};
pub use launch::LaunchLimits;

use crate::dim::Dim3;

/// A compute capability, such as 9.0 for an H200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "(u32, u32)", into = "(u32, u32)"))]
pub struct ComputeCapability {
    /// The generation: 9 for Hopper.
    pub major: u32,
    /// The variant within the generation.
    pub minor: u32,
}

impl ComputeCapability {
    /// The compute capability `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The name of the real architecture for compilers: `sm_90`.
    #[must_use]
    pub fn sm(self) -> String {
        format!("sm_{}{}", self.major, self.minor)
    }
}

impl From<(u32, u32)> for ComputeCapability {
    fn from((major, minor): (u32, u32)) -> Self {
        Self::new(major, minor)
    }
}

impl From<ComputeCapability> for (u32, u32) {
    fn from(cc: ComputeCapability) -> Self {
        (cc.major, cc.minor)
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What a device allows any launch, and what it has.
///
/// `DA` below stands for `CU_DEVICE_ATTRIBUTE_`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceLimits {
    /// The device's name as `cuDeviceGetName` answers it, such as `NVIDIA H200`.
    pub name: String,
    /// `DA COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
    pub compute_capability: ComputeCapability,
    /// Blocks along each axis of a grid: `DA MAX_GRID_DIM_X`, `_Y`, `_Z`.
    pub max_grid: Dim3,
    /// Threads along each axis of a block: `DA MAX_BLOCK_DIM_X`, `_Y`, `_Z`.
    pub max_block: Dim3,
    /// Threads of a block: `DA MAX_THREADS_PER_BLOCK`.
    pub max_threads_per_block: u64,
    /// Threads of a warp: `DA WARP_SIZE`.
    pub warp_size: u64,
    /// Registers (32-bit) that one block can have: `DA MAX_REGISTERS_PER_BLOCK`.
    pub max_registers_per_block: u64,
    /// Registers are given to a warp in multiples of this. No driver attribute; from the
    /// occupancy rules of the CUDA programming guide.
    pub register_allocation_unit: u64,
    /// Warps of a block are rounded up to a multiple of this when registers are given out. No
    /// driver attribute; from the occupancy rules.
    pub warp_allocation_granularity: u64,
    /// Shared memory, in bytes, a block gets without opt-in: `DA MAX_SHARED_MEMORY_PER_BLOCK`.
    pub max_shared_bytes_per_block: u64,
    /// Static plus dynamic shared memory, in bytes, a block can have after the kernel opted in:
    /// `DA MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
    pub max_shared_bytes_per_block_opt_in: u64,
    /// Shared memory, in bytes, that the system keeps of each block: `DA
    /// RESERVED_SHARED_MEMORY_PER_BLOCK`. Counts for residency, not for the ceiling of a launch.
    pub reserved_shared_bytes_per_block: u64,
    /// Shared memory of a multiprocessor in bytes: `DA MAX_SHARED_MEMORY_PER_MULTIPROCESSOR`.
    pub shared_bytes_per_multiprocessor: u64,
    /// Multiprocessors: `DA MULTIPROCESSOR_COUNT`.
    pub multiprocessors: u64,
    /// Resident threads of a multiprocessor: `DA MAX_THREADS_PER_MULTIPROCESSOR`.
    pub max_threads_per_multiprocessor: u64,
    /// Resident blocks of a multiprocessor: `DA MAX_BLOCKS_PER_MULTIPROCESSOR`.
    pub max_blocks_per_multiprocessor: u64,
    /// Registers of a multiprocessor: `DA MAX_REGISTERS_PER_MULTIPROCESSOR`.
    pub registers_per_multiprocessor: u64,
    /// L2 cache in bytes: `DA L2_CACHE_SIZE`.
    pub l2_bytes: u64,
    /// Memory of the device in bytes: `cuDeviceTotalMem`.
    pub memory_bytes: u64,
    /// Whether cooperative launches are possible: `DA COOPERATIVE_LAUNCH`.
    pub cooperative_launch: bool,
    /// Whether thread block clusters are possible: `DA CLUSTER_LAUNCH`.
    pub cluster_launch: bool,
    /// Blocks of a cluster that every device of this generation takes: 8, or 0 without clusters.
    pub max_portable_cluster_blocks: u64,
    /// Bytes of kernel parameters: 4,096, or 32,764 from compute capability 7.0 on with CUDA 12.1.
    pub max_parameter_bytes: u64,
}

/// Parameter bytes that every device and driver takes.
pub const PARAMETER_BYTES: u64 = 4096;
/// Parameter bytes from compute capability 7.0 on, with a driver of CUDA 12.1 or later.
pub const LARGE_PARAMETER_BYTES: u64 = 32_764;
/// Shared memory, in bytes, that a block of any kernel has without opt-in.
pub const SHARED_BYTES_WITHOUT_OPT_IN: u64 = 48 * 1024;

impl DeviceLimits {
    /// Limits that every device of compute capability 5.0 to 12.0 grants: the floor to plan for
    /// where the device is not known.
    ///
    /// ```
    /// use gridguard::{Axis, DeviceLimits};
    /// assert_eq!(DeviceLimits::any_device().max_grid.along(Axis::Y), 65_535);
    /// ```
    #[must_use]
    pub fn any_device() -> Self {
        Self {
            name: "any CUDA device".into(),
            compute_capability: ComputeCapability::new(5, 0),
            max_grid: Dim3::new(2_147_483_647, 65_535, 65_535),
            max_block: Dim3::new(1024, 1024, 64),
            max_threads_per_block: 1024,
            warp_size: 32,
            max_registers_per_block: 32_768,
            register_allocation_unit: 256,
            warp_allocation_granularity: 4,
            max_shared_bytes_per_block: SHARED_BYTES_WITHOUT_OPT_IN,
            max_shared_bytes_per_block_opt_in: SHARED_BYTES_WITHOUT_OPT_IN,
            reserved_shared_bytes_per_block: 0,
            shared_bytes_per_multiprocessor: 64 * 1024,
            multiprocessors: 1,
            max_threads_per_multiprocessor: 1024,
            max_blocks_per_multiprocessor: 16,
            registers_per_multiprocessor: 32_768,
            l2_bytes: 0,
            memory_bytes: 0,
            cooperative_launch: false,
            cluster_launch: false,
            max_portable_cluster_blocks: 0,
            max_parameter_bytes: PARAMETER_BYTES,
        }
    }

    /// Whether a launch may begin before the one before it in its stream has ended: programmatic
    /// dependent launch, from compute capability 9.0 on.
    #[must_use]
    pub fn overlapping_launches(&self) -> bool {
        self.compute_capability >= ComputeCapability::new(9, 0)
    }
}

/// What one compiled kernel allows.
///
/// `FA` below stands for `CU_FUNC_ATTRIBUTE_`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KernelLimits {
    /// The kernel's name.
    pub name: String,
    /// Threads of a block, by launch bounds and registers: `FA MAX_THREADS_PER_BLOCK`; `u64::MAX`
    /// where not known.
    pub max_threads_per_block: u64,
    /// Registers of a thread: `FA NUM_REGS`; 0 where not known.
    pub registers_per_thread: u64,
    /// Shared memory, in bytes, that the kernel declares itself: `FA SHARED_SIZE_BYTES`.
    pub static_shared_bytes: u64,
    /// Dynamic shared memory, in bytes, that a launch may ask for now: `FA
    /// MAX_DYNAMIC_SHARED_SIZE_BYTES`. Without opt-in 48 KiB less the static part.
    pub max_dynamic_shared_bytes: u64,
    /// Local memory of a thread in bytes: `FA LOCAL_SIZE_BYTES`.
    pub local_bytes_per_thread: u64,
    /// The cluster that `__cluster_dims__` fixes: `FA REQUIRED_CLUSTER_WIDTH`, `_HEIGHT`, `_DEPTH`.
    pub required_cluster: Option<Dim3>,
    /// Whether a launch must name a cluster: `FA CLUSTER_SIZE_MUST_BE_SET`.
    pub cluster_must_be_set: bool,
    /// Whether clusters above the portable size are allowed: `FA
    /// NON_PORTABLE_CLUSTER_SIZE_ALLOWED`.
    pub non_portable_cluster_allowed: bool,
}

impl KernelLimits {
    /// A kernel of which nothing is known but its name: the device alone limits it, and dynamic
    /// shared memory stands at the 48 KiB that need no opt-in.
    #[must_use]
    pub fn unknown(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            max_threads_per_block: u64::MAX,
            registers_per_thread: 0,
            static_shared_bytes: 0,
            max_dynamic_shared_bytes: SHARED_BYTES_WITHOUT_OPT_IN,
            local_bytes_per_thread: 0,
            required_cluster: None,
            cluster_must_be_set: false,
            non_portable_cluster_allowed: false,
        }
    }
}
