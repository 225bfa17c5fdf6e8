//! Maps the attributes that a driver reports to limits.

use super::device::{ComputeCapability, DeviceLimits, LARGE_PARAMETER_BYTES, PARAMETER_BYTES};
use super::kernel::KernelLimits;
use crate::dim::Dim3;

impl DeviceLimits {
    /// The limits of a device, for programs that query a driver themselves.
    ///
    /// The arguments are the results of `cuDeviceGetName`, `cuDeviceTotalMem` and `cuDriverGetVersion`.
    /// `ask(n)` returns the `CUdevice_attribute` with number `n`.
    ///
    /// # Errors
    ///
    /// The first failed query of an attribute that every supported driver knows.
    ///
    /// ```
    /// use gridguard::DeviceLimits;
    ///
    /// let ask = |attribute| match attribute {
    ///     5 | 6 | 7 => Ok(65_535),
    ///     120 => Err("unknown attribute"), // clusters, which older drivers do not know
    ///     _ => Ok(1),
    /// };
    /// let limits = DeviceLimits::from_attributes("GPU", 1 << 34, 13_000, ask)?;
    /// assert_eq!((limits.max_grid.x, limits.cluster_launch), (65_535, false));
    /// # Ok::<(), &str>(())
    /// ```
    pub fn from_attributes<E>(
        name: impl Into<String>,
        memory_bytes: u64,
        driver_version: i32,
        mut ask: impl FnMut(i32) -> Result<i32, E>,
    ) -> Result<Self, E> {
        use device_attribute as da;
        let mut ask = |number: i32| ask(number).map(natural);
        let narrow = |value: u64| u32::try_from(value).unwrap_or(0);
        let capability = ComputeCapability::new(
            narrow(ask(da::COMPUTE_CAPABILITY_MAJOR)?),
            narrow(ask(da::COMPUTE_CAPABILITY_MINOR)?),
        );
        // Older drivers lack these attributes and features.
        let cluster_launch = ask(da::CLUSTER_LAUNCH).unwrap_or(0) != 0;
        let reserved_shared_bytes = ask(da::RESERVED_SHARED_MEMORY_PER_BLOCK).unwrap_or(0);
        let oversized_shared_bytes = match driver_version >= OVERSIZED_SHARED_MEMORY_FROM {
            true => ask(da::MAX_OVERSIZED_SHARED_MEMORY_PER_BLOCK).unwrap_or(0),
            false => 0,
        };
        let large = capability.major >= 7 && driver_version >= LARGE_PARAMETERS_FROM;
        Ok(Self {
            name: name.into(),
            compute_capability: capability,
            max_grid: Dim3::new(
                ask(da::MAX_GRID_DIM_X)?,
                ask(da::MAX_GRID_DIM_Y)?,
                ask(da::MAX_GRID_DIM_Z)?,
            ),
            max_block: Dim3::new(
                ask(da::MAX_BLOCK_DIM_X)?,
                ask(da::MAX_BLOCK_DIM_Y)?,
                ask(da::MAX_BLOCK_DIM_Z)?,
            ),
            max_threads_per_block: ask(da::MAX_THREADS_PER_BLOCK)?,
            warp_size: ask(da::WARP_SIZE)?,
            max_registers_per_block: ask(da::MAX_REGISTERS_PER_BLOCK)?,
            register_allocation_unit: REGISTER_ALLOCATION_UNIT,
            warp_allocation_granularity: warp_allocation_granularity(capability),
            max_shared_bytes_per_block: ask(da::MAX_SHARED_MEMORY_PER_BLOCK)?,
            max_shared_bytes_per_block_opt_in: ask(da::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
                .max(oversized_shared_bytes),
            reserved_shared_bytes_per_block: reserved_shared_bytes,
            shared_bytes_per_multiprocessor: ask(da::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            multiprocessors: ask(da::MULTIPROCESSOR_COUNT)?,
            max_threads_per_multiprocessor: ask(da::MAX_THREADS_PER_MULTIPROCESSOR)?,
            max_blocks_per_multiprocessor: ask(da::MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            registers_per_multiprocessor: ask(da::MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            l2_bytes: ask(da::L2_CACHE_SIZE)?,
            memory_bytes,
            cooperative_launch: ask(da::COOPERATIVE_LAUNCH)? != 0,
            cluster_launch,
            max_portable_cluster_blocks: if cluster_launch { PORTABLE_CLUSTER_BLOCKS } else { 0 },
            max_parameter_bytes: if large { LARGE_PARAMETER_BYTES } else { PARAMETER_BYTES },
        })
    }
}

impl KernelLimits {
    /// The limits of a loaded function, for programs that query a driver themselves. `ask(n)` returns the
    /// `CUfunction_attribute` with number `n`.
    ///
    /// # Errors
    ///
    /// The first failed query of an attribute that every supported driver knows.
    ///
    /// ```
    /// use gridguard::KernelLimits;
    ///
    /// let ask = |attribute| if attribute < 10 { Ok(256) } else { Err("unknown attribute") };
    /// let kernel = KernelLimits::from_attributes("k", ask)?;
    /// assert_eq!(kernel.max_threads_per_block, Some(256));
    /// assert_eq!(kernel.required_cluster, None);
    /// # Ok::<(), &str>(())
    /// ```
    pub fn from_attributes<E>(
        name: impl Into<String>,
        mut ask: impl FnMut(i32) -> Result<i32, E>,
    ) -> Result<Self, E> {
        use function_attribute as fa;
        let mut ask = |number: i32| ask(number).map(natural);
        let max_threads_per_block = Some(ask(fa::MAX_THREADS_PER_BLOCK)?);
        let registers_per_thread = ask(fa::NUM_REGS)?;
        let static_shared_bytes = ask(fa::SHARED_SIZE_BYTES)?;
        let max_dynamic_shared_bytes = Some(ask(fa::MAX_DYNAMIC_SHARED_SIZE_BYTES)?);
        let local_bytes_per_thread = ask(fa::LOCAL_SIZE_BYTES)?;
        // Drivers before CUDA 12.0 lack these attributes and clusters.
        let mut ask_if_known = |number| ask(number).unwrap_or(0);
        let cluster = Dim3::new(
            ask_if_known(fa::REQUIRED_CLUSTER_WIDTH),
            ask_if_known(fa::REQUIRED_CLUSTER_HEIGHT),
            ask_if_known(fa::REQUIRED_CLUSTER_DEPTH),
        );
        Ok(Self {
            name: name.into(),
            max_threads_per_block,
            registers_per_thread,
            static_shared_bytes,
            max_dynamic_shared_bytes,
            local_bytes_per_thread,
            required_cluster: (cluster.volume() > 0).then_some(cluster),
            cluster_must_be_set: ask_if_known(fa::CLUSTER_SIZE_MUST_BE_SET) != 0,
            non_portable_cluster_allowed: ask_if_known(fa::NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0,
            // No attribute states the others.
            ..Self::default()
        })
    }
}

/// Attributes are never negative.
fn natural(value: i32) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// `CUdevice_attribute` as integers, because a driver may know other attributes than a binding.
pub(crate) mod device_attribute {
    pub(crate) const MAX_THREADS_PER_BLOCK: i32 = 1;
    pub(crate) const MAX_BLOCK_DIM_X: i32 = 2;
    pub(crate) const MAX_BLOCK_DIM_Y: i32 = 3;
    pub(crate) const MAX_BLOCK_DIM_Z: i32 = 4;
    pub(crate) const MAX_GRID_DIM_X: i32 = 5;
    pub(crate) const MAX_GRID_DIM_Y: i32 = 6;
    pub(crate) const MAX_GRID_DIM_Z: i32 = 7;
    pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK: i32 = 8;
    pub(crate) const WARP_SIZE: i32 = 10;
    pub(crate) const MAX_REGISTERS_PER_BLOCK: i32 = 12;
    pub(crate) const MULTIPROCESSOR_COUNT: i32 = 16;
    pub(crate) const COMPUTE_MODE: i32 = 20;
    pub(crate) const L2_CACHE_SIZE: i32 = 38;
    pub(crate) const MAX_THREADS_PER_MULTIPROCESSOR: i32 = 39;
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
    pub(crate) const COMPUTE_CAPABILITY_MINOR: i32 = 76;
    pub(crate) const MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: i32 = 81;
    pub(crate) const MAX_REGISTERS_PER_MULTIPROCESSOR: i32 = 82;
    pub(crate) const COOPERATIVE_LAUNCH: i32 = 95;
    pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: i32 = 97;
    pub(crate) const MAX_BLOCKS_PER_MULTIPROCESSOR: i32 = 106;
    pub(crate) const RESERVED_SHARED_MEMORY_PER_BLOCK: i32 = 111;
    pub(crate) const CLUSTER_LAUNCH: i32 = 120;
    pub(crate) const MAX_OVERSIZED_SHARED_MEMORY_PER_BLOCK: i32 = 150;
}

/// `CUfunction_attribute`.
pub(crate) mod function_attribute {
    pub(crate) const MAX_THREADS_PER_BLOCK: i32 = 0;
    pub(crate) const SHARED_SIZE_BYTES: i32 = 1;
    pub(crate) const LOCAL_SIZE_BYTES: i32 = 3;
    pub(crate) const NUM_REGS: i32 = 4;
    pub(crate) const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
    pub(crate) const PREFERRED_SHARED_MEMORY_CARVEOUT: i32 = 9;
    pub(crate) const CLUSTER_SIZE_MUST_BE_SET: i32 = 10;
    pub(crate) const REQUIRED_CLUSTER_WIDTH: i32 = 11;
    pub(crate) const REQUIRED_CLUSTER_HEIGHT: i32 = 12;
    pub(crate) const REQUIRED_CLUSTER_DEPTH: i32 = 13;
    pub(crate) const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: i32 = 14;
}

/// The first CUDA version with shared memory beyond the opt-in, which compute capability 10.7 has
/// (`CU_SHARED_MEMORY_MODE_ALLOW_OVERSIZED_SHARED_MEMORY` in the bindings of CUDA 13.4).
const OVERSIZED_SHARED_MEMORY_FROM: i32 = 13_040;
/// The first CUDA version whose kernels take 32,764 bytes of parameters.
const LARGE_PARAMETERS_FROM: i32 = 12_010;
/// Blocks of a cluster that every device with clusters supports.
const PORTABLE_CLUSTER_BLOCKS: u64 = 8;
/// Registers of a warp are allocated in multiples of this on every capability from 3.0 on.
const REGISTER_ALLOCATION_UNIT: u64 = 256;
/// Registers of a block are allocated for a multiple of the partitions of a multiprocessor: two on 6.0, four
/// on every other capability from 3.0 on (`cuda_occupancy.h`).
const fn warp_allocation_granularity(capability: ComputeCapability) -> u64 {
    match capability {
        ComputeCapability { major: 6, minor: 0 } => 2,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_p100_has_two_partitions_and_all_other_devices_have_four() {
        let of = |major, minor| warp_allocation_granularity(ComputeCapability::new(major, minor));
        assert_eq!([of(5, 2), of(6, 0), of(6, 1), of(7, 5), of(12, 1)], [4, 2, 4, 4, 4]);
    }

    #[test]
    fn oversized_shared_memory_counts_where_driver_and_device_have_it() {
        let most = |driver_version, oversized: Option<i32>| {
            let ask = |number| match number {
                device_attribute::MAX_OVERSIZED_SHARED_MEMORY_PER_BLOCK => oversized.ok_or(()),
                _ => Ok(10),
            };
            let limits = DeviceLimits::from_attributes("10.7", 1, driver_version, ask);
            limits.map(|limits| limits.max_shared_bytes_per_block_opt_in)
        };
        let bytes = Some(327 << 10);
        assert_eq!((most(13_040, bytes), most(13_030, bytes)), (Ok(327 << 10), Ok(10)));
        assert_eq!(most(13_050, None), Ok(10), "a device that does not know it");
    }
}
