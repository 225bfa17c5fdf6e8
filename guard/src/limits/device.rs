//! Limits that a device sets for every launch.

use derive_more::{Display, From, Into};

use crate::dim::Dim3;

/// A compute capability, such as 9.0 for an H200.
#[derive(Clone, Copy, Debug, Display, From, Into, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display("{major}.{minor}")]
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
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The architecture name that compilers take: `sm_90`.
    pub fn sm(self) -> String {
        format!("sm_{}{}", self.major, self.minor)
    }
}

/// The limits and resources of a device.
///
/// `DA` below stands for `CU_DEVICE_ATTRIBUTE_`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceLimits {
    /// The device name that `cuDeviceGetName` returns, such as `NVIDIA H200`.
    pub name: String,
    /// `DA COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
    pub compute_capability: ComputeCapability,
    /// Maximum blocks along each axis of a grid: `DA MAX_GRID_DIM_X`, `_Y`, `_Z`.
    pub max_grid: Dim3,
    /// Maximum threads along each axis of a block: `DA MAX_BLOCK_DIM_X`, `_Y`, `_Z`.
    pub max_block: Dim3,
    /// Maximum threads per block: `DA MAX_THREADS_PER_BLOCK`.
    pub max_threads_per_block: u64,
    /// Threads per warp: `DA WARP_SIZE`.
    pub warp_size: u64,
    /// Maximum 32-bit registers per block: `DA MAX_REGISTERS_PER_BLOCK`.
    pub max_registers_per_block: u64,
    /// Registers are allocated to a warp in multiples of this. No driver attribute; from
    /// `cuda_occupancy.h`.
    pub register_allocation_unit: u64,
    /// Register file partitions of a multiprocessor. The warps of a block are rounded up to a multiple of
    /// them. No driver attribute; from `cuda_occupancy.h`.
    pub warp_allocation_granularity: u64,
    /// Shared memory per block in bytes without opt-in: `DA MAX_SHARED_MEMORY_PER_BLOCK`.
    pub max_shared_bytes_per_block: u64,
    /// Static plus dynamic shared memory per block in bytes after the kernel opted in:
    /// `DA MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`, or the larger `DA MAX_OVERSIZED_SHARED_MEMORY_PER_BLOCK` of compute
    /// capability 10.7, for which the kernel also needs a shared memory mode.
    pub max_shared_bytes_per_block_opt_in: u64,
    /// Shared memory in bytes that the system reserves per block: `DA RESERVED_SHARED_MEMORY_PER_BLOCK`. It
    /// counts for occupancy, not for the limit of a launch.
    pub reserved_shared_bytes_per_block: u64,
    /// Shared memory per multiprocessor in bytes: `DA MAX_SHARED_MEMORY_PER_MULTIPROCESSOR`.
    pub shared_bytes_per_multiprocessor: u64,
    /// Multiprocessors: `DA MULTIPROCESSOR_COUNT`. 0 if unknown.
    pub multiprocessors: u64,
    /// Maximum resident threads per multiprocessor: `DA MAX_THREADS_PER_MULTIPROCESSOR`.
    pub max_threads_per_multiprocessor: u64,
    /// Maximum resident blocks per multiprocessor: `DA MAX_BLOCKS_PER_MULTIPROCESSOR`.
    pub max_blocks_per_multiprocessor: u64,
    /// Registers per multiprocessor: `DA MAX_REGISTERS_PER_MULTIPROCESSOR`.
    pub registers_per_multiprocessor: u64,
    /// L2 cache in bytes: `DA L2_CACHE_SIZE`.
    pub l2_bytes: u64,
    /// Memory of the device in bytes: `cuDeviceTotalMem`.
    pub memory_bytes: u64,
    /// Whether the device supports cooperative launches: `DA COOPERATIVE_LAUNCH`.
    pub cooperative_launch: bool,
    /// Whether the device supports thread block clusters: `DA CLUSTER_LAUNCH`.
    pub cluster_launch: bool,
    /// Maximum blocks of a portable cluster: 8, or 0 without cluster support.
    pub max_portable_cluster_blocks: u64,
    /// Maximum bytes of kernel parameters: 4,096, or 32,764 from compute capability 7.0 and CUDA
    /// 12.1 on.
    pub max_parameter_bytes: u64,
}

/// Kernel parameter bytes that every device and driver accepts.
pub(super) const PARAMETER_BYTES: u64 = 4096;
/// Kernel parameter bytes from compute capability 7.0 on, with a driver of CUDA 12.1 or later.
pub(super) const LARGE_PARAMETER_BYTES: u64 = 32_764;
/// The most local memory per thread, in bytes: 576 less than the 512 KiB of the CUDA programming guide. An H200
/// launches a kernel with this much and rejects 16 bytes more (driver 580.159.04, `facts.json`).
pub const LOCAL_BYTES_PER_THREAD: u64 = 512 * 1024 - 576;
/// Shared memory per block, in bytes, that needs no opt-in on any device.
const SHARED_BYTES_WITHOUT_OPT_IN: u64 = 48 * 1024;

impl DeviceLimits {
    /// The lowest limits among devices of compute capability 5.0 to 12.0, for launches on an unknown device.
    ///
    /// ```
    /// use gridguard::{Axis, DeviceLimits};
    /// assert_eq!(DeviceLimits::any_device().max_grid.along(Axis::Y), 65_535);
    /// ```
    pub fn any_device() -> Self {
        Self {
            name: "generic CUDA device".into(),
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

    /// Whether the device supports programmatic dependent launch: from compute capability 9.0 on.
    pub fn dependent_launch(&self) -> bool {
        self.compute_capability >= ComputeCapability::new(9, 0)
    }

    /// Threads that can be resident on the whole device; 0 if unknown.
    pub const fn resident_threads(&self) -> u64 {
        self.multiprocessors.saturating_mul(self.max_threads_per_multiprocessor)
    }

    /// Maximum local memory per thread in bytes: 523,712, or less if the device's memory is small. For every
    /// launch the driver reserves local memory for all resident threads (H200: a launch of 32 threads with
    /// 64 KiB each reserved 64 KiB for all 270,336).
    pub fn max_local_bytes_per_thread(&self) -> u64 {
        let known = Some(self.memory_bytes).filter(|bytes| *bytes > 0);
        let fitting = known.and_then(|bytes| bytes.checked_div(self.resident_threads()));
        fitting.unwrap_or(u64::MAX).min(LOCAL_BYTES_PER_THREAD)
    }

    /// Maximum static plus dynamic shared memory per block in bytes, with opt-in if supported.
    pub(crate) fn shared_bytes_limit(&self) -> u64 {
        self.max_shared_bytes_per_block_opt_in.max(self.max_shared_bytes_per_block)
    }
}
