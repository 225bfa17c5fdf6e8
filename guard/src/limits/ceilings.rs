//! What launches are compared with, prepared from limits.

use super::{DeviceLimits, KernelLimits};
use crate::dim::Dim3;

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
    pub(crate) register_threads: Option<u128>,
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

impl Ceilings {
    pub(super) fn new(device: &DeviceLimits, kernel: &KernelLimits) -> Self {
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
    pub(super) fn of(ceilings: &Ceilings) -> Self {
        let needs_cluster = ceilings.required_cluster.is_some() || ceilings.cluster_must_be_set;
        let by_registers = ceilings.register_threads;
        let by_registers = by_registers.map(|threads| u64::try_from(threads).unwrap_or(u64::MAX));
        let of_kernel = [ceilings.kernel_threads, by_registers].into_iter().flatten();
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

pub(super) fn registers_per_warp(device: &DeviceLimits, kernel: &KernelLimits) -> u128 {
    let unit = u128::from(device.register_allocation_unit.max(1));
    let exact = u128::from(kernel.registers_per_thread) * u128::from(device.warp_size);
    exact.div_ceil(unit).saturating_mul(unit)
}

/// The most threads of a block whose registers fit, where registers are known.
fn register_threads(device: &DeviceLimits, kernel: &KernelLimits) -> Option<u128> {
    let per_warp = registers_per_warp(device, kernel);
    if per_warp == 0 {
        return None;
    }
    let granularity = u128::from(device.warp_allocation_granularity.max(1));
    let warps = u128::from(device.max_registers_per_block) / per_warp / granularity * granularity;
    Some(warps * u128::from(device.warp_size))
}
