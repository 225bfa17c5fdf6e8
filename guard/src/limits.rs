//! What a device and a kernel allow, as plain data.
//!
//! Nothing here queries anything: [`crate::cuda`] fills these from the driver, `catalog` from
//! the limits catalogue, tests by hand.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

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

/// One kernel's limits on one device: what a launch is validated against.
///
/// Cheap to clone. Each has an identity that validated launches carry, so that a launch validated
/// for one kernel cannot be sent to another.
#[derive(Clone, Debug)]
pub struct LaunchLimits {
    id: u64,
    device: Arc<DeviceLimits>,
    kernel: Arc<KernelLimits>,
    plain: PlainCeilings,
    ceilings: Ceilings,
}

/// What most launches are held against and nothing else: those without cluster, grid-wide
/// synchronisation or an early beginning. Less than a cache line; the rules themselves read
/// [`Ceilings`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainCeilings {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Of device, launch bounds and registers the lowest; 0 where no plain launch is legal.
    pub(crate) threads: u32,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) parameter_bytes: u32,
}

/// What validation compares with, prepared once and kept together: on the way of a launch each
/// look elsewhere may be a cache miss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ceilings {
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) device_threads: u64,
    /// Threads by launch bounds, where they are known.
    pub(crate) kernel_threads: Option<u64>,
    /// Threads of a block whose registers still fit, where these are known.
    pub(crate) register_threads: Option<u64>,
    pub(crate) dynamic_shared_bytes: u64,
    /// Dynamic bytes that still fit beside the static ones; `None` where these alone do not.
    pub(crate) shared_room_bytes: Option<u64>,
    pub(crate) cluster_blocks: u64,
    pub(crate) parameter_bytes: u64,
    pub(crate) required_cluster: Option<Dim3>,
    pub(crate) cluster_must_be_set: bool,
    pub(crate) cluster_launch: bool,
    pub(crate) cooperative_launch: bool,
}

/// The largest cluster of a kernel that allows non-portable sizes (16 passes on an H200, 32 never).
pub(crate) const NON_PORTABLE_CLUSTER_BLOCKS: u64 = 16;

impl LaunchLimits {
    /// The limits of `kernel` on `device`.
    #[must_use]
    pub fn new(device: impl Into<Arc<DeviceLimits>>, kernel: KernelLimits) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let device = device.into();
        let ceilings = Ceilings::new(&device, &kernel);
        let plain = PlainCeilings::of(&ceilings);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, device, kernel: Arc::new(kernel), plain, ceilings }
    }

    /// The same limits where the launcher opts in to large dynamic shared memory by itself: the
    /// device's opt-in ceiling less the static part counts.
    #[must_use]
    pub fn with_automatic_opt_in(self) -> Self {
        let mut kernel = KernelLimits::clone(&self.kernel);
        let room = self.ceilings.shared_room_bytes.unwrap_or(0);
        kernel.max_dynamic_shared_bytes = kernel.max_dynamic_shared_bytes.max(room);
        Self::new(self.device, kernel)
    }

    /// The device's part.
    #[must_use]
    pub fn device(&self) -> &DeviceLimits {
        &self.device
    }

    /// The kernel's part.
    #[must_use]
    pub fn kernel(&self) -> &KernelLimits {
        &self.kernel
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) const fn plain(&self) -> &PlainCeilings {
        &self.plain
    }

    pub(crate) const fn ceilings(&self) -> &Ceilings {
        &self.ceilings
    }

    /// Registers that a warp takes, rounded up by the allocator; 0 where not known.
    pub(crate) fn registers_per_warp(&self) -> u64 {
        registers_per_warp(&self.device, &self.kernel)
    }

    /// Registers that a block of `threads` takes, with both roundings of the allocator.
    pub(crate) fn registers_per_block(&self, threads: u128) -> u128 {
        let warp = u128::from(self.device.warp_size.max(1));
        let warps = threads.div_ceil(warp);
        let granularity = u128::from(self.device.warp_allocation_granularity.max(1));
        let warps = warps.div_ceil(granularity).saturating_mul(granularity);
        warps.saturating_mul(u128::from(self.registers_per_warp()))
    }
}

impl Ceilings {
    fn new(device: &DeviceLimits, kernel: &KernelLimits) -> Self {
        let DeviceLimits {
            max_grid,
            max_block,
            max_threads_per_block,
            max_shared_bytes_per_block_opt_in,
            max_shared_bytes_per_block,
            max_portable_cluster_blocks,
            cooperative_launch,
            cluster_launch,
            max_parameter_bytes,
            // Read where a violation is explained, or by occupancy and tuning, not compared here.
            name: _,
            compute_capability: _,
            warp_size: _,
            max_registers_per_block: _,
            register_allocation_unit: _,
            warp_allocation_granularity: _,
            reserved_shared_bytes_per_block: _,
            shared_bytes_per_multiprocessor: _,
            multiprocessors: _,
            max_threads_per_multiprocessor: _,
            max_blocks_per_multiprocessor: _,
            registers_per_multiprocessor: _,
            l2_bytes: _,
            memory_bytes: _,
        } = device;
        let shared_ceiling = max_shared_bytes_per_block_opt_in.max(max_shared_bytes_per_block);
        Self {
            grid: at_most_32_bits(*max_grid),
            block: at_most_32_bits(*max_block),
            device_threads: *max_threads_per_block,
            kernel_threads: Some(kernel.max_threads_per_block).filter(|most| *most < u64::MAX),
            register_threads: register_threads(device, kernel),
            dynamic_shared_bytes: kernel.max_dynamic_shared_bytes.min(u32::MAX.into()),
            shared_room_bytes: shared_ceiling.checked_sub(kernel.static_shared_bytes),
            cluster_blocks: if kernel.non_portable_cluster_allowed {
                NON_PORTABLE_CLUSTER_BLOCKS.max(*max_portable_cluster_blocks)
            } else {
                *max_portable_cluster_blocks
            },
            parameter_bytes: *max_parameter_bytes,
            required_cluster: kernel.required_cluster,
            cluster_must_be_set: kernel.cluster_must_be_set,
            cluster_launch: *cluster_launch,
            cooperative_launch: *cooperative_launch,
        }
    }
}

impl PlainCeilings {
    /// What is legal by these is legal by `ceilings`; where a number does not fit, or nothing is, the
    /// rules decide.
    fn of(ceilings: &Ceilings) -> Self {
        let needs_cluster = ceilings.required_cluster.is_some() || ceilings.cluster_must_be_set;
        let of_kernel = [ceilings.kernel_threads, ceilings.register_threads].into_iter().flatten();
        let threads = of_kernel.fold(ceilings.device_threads, u64::min);
        let shared_room_bytes = ceilings.shared_room_bytes.unwrap_or(0);
        let none = needs_cluster || ceilings.shared_room_bytes.is_none();
        Self {
            grid: ceilings.grid.narrow().unwrap_or_default(),
            block: ceilings.block.narrow().unwrap_or_default(),
            threads: if none { 0 } else { least_of_32_bits(threads) },
            dynamic_shared_bytes: least_of_32_bits(
                ceilings.dynamic_shared_bytes.min(shared_room_bytes),
            ),
            parameter_bytes: least_of_32_bits(ceilings.parameter_bytes),
        }
    }
}

/// `number`, or the largest of 32 bits below it.
fn least_of_32_bits(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The driver takes 32-bit dimensions, whatever a limits file claims.
fn at_most_32_bits(dim: Dim3) -> Dim3 {
    let most = u64::from(u32::MAX);
    Dim3::new(dim.x.min(most), dim.y.min(most), dim.z.min(most))
}

fn registers_per_warp(device: &DeviceLimits, kernel: &KernelLimits) -> u64 {
    let unit = device.register_allocation_unit.max(1);
    let exact = kernel.registers_per_thread.saturating_mul(device.warp_size);
    exact.div_ceil(unit).saturating_mul(unit)
}

/// The most threads of a block whose registers fit, where registers are known.
fn register_threads(device: &DeviceLimits, kernel: &KernelLimits) -> Option<u64> {
    let per_warp = registers_per_warp(device, kernel);
    if per_warp == 0 {
        return None;
    }
    let granularity = device.warp_allocation_granularity.max(1);
    let warps = device.max_registers_per_block / per_warp / granularity * granularity;
    Some(warps.saturating_mul(device.warp_size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_threads_round_warps_down_to_the_granularity() {
        let mut device = DeviceLimits::any_device();
        device.max_registers_per_block = 65_536;
        let mut kernel = KernelLimits::unknown("k");
        kernel.registers_per_thread = 210;
        let limits = LaunchLimits::new(device, kernel);
        // 6,912 registers a warp: nine warps fit, but warps come in fours.
        assert_eq!(limits.ceilings().register_threads, Some(256));
        assert_eq!(limits.registers_per_block(256), 8 * 6912);
        assert_eq!(limits.registers_per_block(257), 12 * 6912);
    }

    #[test]
    fn static_shared_memory_above_the_ceiling_leaves_no_room() {
        let mut kernel = KernelLimits::unknown("k");
        kernel.static_shared_bytes = 1 << 20;
        let limits = LaunchLimits::new(DeviceLimits::any_device(), kernel);
        assert_eq!(limits.ceilings().shared_room_bytes, None);
    }
}
