//! The CUDA occupancy calculation: blocks of a kernel that can be resident at the same time.

use super::device::ComputeCapability;
use super::launch::{LaunchLimits, registers_per_warp};
use crate::dim::Dim3;

/// Co-resident blocks of a kernel with one block size and shared memory size. They limit cooperative launches
/// and launches with a cluster.
///
/// For a loaded kernel the driver reports them (`Kernel::occupancy` of the feature `cuda`). If `blocks` is
/// unknown, validation uses [`LaunchLimits::co_resident_blocks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OccupancyLimits {
    /// Co-resident blocks on the whole device, with or without a cluster: the maximum grid of a cooperative
    /// launch. `None` if unknown.
    pub blocks: Option<u64>,
    /// Blocks of the largest cluster. `None` if unknown, or without a cluster.
    pub cluster_blocks: Option<u64>,
}

impl OccupancyLimits {
    /// Unknown limits.
    pub const UNKNOWN: Self = Self { blocks: None, cluster_blocks: None };
}

/// From this compute capability on, shared memory is allocated in units of 128 bytes.
const FINE_SHARED_MEMORY: ComputeCapability = ComputeCapability::new(8, 0);
/// The allocation unit of shared memory, in bytes, from 8.0 on. No driver attribute; from
/// `cuda_occupancy.h`.
const FINE_SHARED_UNIT_BYTES: u128 = 128;
/// The allocation unit before 8.0.
const COARSE_SHARED_UNIT_BYTES: u128 = 256;

impl LaunchLimits {
    /// The number of blocks of `block` threads with `dynamic_shared_bytes` that can be resident on one
    /// multiprocessor. Warps, registers, shared memory and block slots limit it. 0 for a block that does not
    /// fit.
    ///
    /// It is an upper bound if registers are unknown, and for launches with clusters, which may leave
    /// multiprocessors unused.
    ///
    /// ```
    /// use gridguard::{DeviceLimits, Dim3, KernelLimits, LaunchLimits};
    ///
    /// let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("k"));
    /// assert_eq!(limits.blocks_per_multiprocessor(Dim3::new(128, 1, 1), 0), 8); // 1,024 threads
    /// ```
    pub fn blocks_per_multiprocessor(&self, block: Dim3, dynamic_shared_bytes: u64) -> u64 {
        let device = self.device();
        let warp = u128::from(device.warp_size.max(1));
        let warps = block.volume().div_ceil(warp);
        let by_warps = u128::from(device.max_threads_per_multiprocessor) / warp;
        let Some(by_warps) = by_warps.checked_div(warps) else {
            return 0;
        };
        let by_registers = self.blocks_by_registers(block.volume(), warps);
        u64::try_from(by_warps.min(by_registers))
            .unwrap_or(u64::MAX)
            .min(self.blocks_by_shared_memory(dynamic_shared_bytes))
            .min(device.max_blocks_per_multiprocessor)
    }

    /// [`Self::blocks_per_multiprocessor`] times the multiprocessors of the device. If registers are known,
    /// it equals the driver's limit for a cooperative launch without a cluster.
    ///
    /// `None` if the number of multiprocessors is unknown, or no block fits, which other rules report.
    pub fn co_resident_blocks(&self, block: Dim3, dynamic_shared_bytes: u64) -> Option<u64> {
        let multiprocessors = self.device().multiprocessors;
        let blocks = self.blocks_per_multiprocessor(block, dynamic_shared_bytes);
        Some(blocks.saturating_mul(multiprocessors)).filter(|blocks| *blocks > 0)
    }

    /// Each warp allocates its registers from one partition of the register file.
    fn blocks_by_registers(&self, threads: u128, warps: u128) -> u128 {
        let device = self.device();
        if self.registers_per_block(threads) > device.max_registers_per_block.into() {
            return 0;
        }
        let partitions = u128::from(device.warp_allocation_granularity.max(1));
        let of_partition = u128::from(device.registers_per_multiprocessor) / partitions;
        of_partition
            .checked_div(registers_per_warp(device, self.kernel()))
            .map_or(u128::MAX, |warps_per_partition| warps_per_partition * partitions / warps)
    }

    fn blocks_by_shared_memory(&self, dynamic_bytes: u64) -> u64 {
        let device = self.device();
        let unit = match device.compute_capability >= FINE_SHARED_MEMORY {
            true => FINE_SHARED_UNIT_BYTES,
            false => COARSE_SHARED_UNIT_BYTES,
        };
        let bytes = [
            dynamic_bytes,
            self.kernel().static_shared_bytes,
            device.reserved_shared_bytes_per_block,
        ];
        let bytes: u128 = bytes.map(u128::from).iter().sum();
        let blocks = u128::from(device.shared_bytes_per_multiprocessor)
            .checked_div(bytes.div_ceil(unit) * unit);
        blocks.and_then(|blocks| u64::try_from(blocks).ok()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
#[cfg(feature = "catalog")]
mod tests {
    use super::*;
    use crate::catalog;
    use crate::limits::kernel::KernelLimits;

    fn on(gpu: &str, registers: u64, static_shared_bytes: u64) -> LaunchLimits {
        let mut kernel = KernelLimits::unknown("k");
        kernel.registers_per_thread = registers;
        kernel.static_shared_bytes = static_shared_bytes;
        LaunchLimits::new(catalog::gpu(gpu).expect("catalogued").limits.clone(), kernel)
    }

    fn per_multiprocessor(gpu: &str, threads: u64, registers: u64, shared_bytes: u64) -> u64 {
        on(gpu, registers, 0).blocks_per_multiprocessor(Dim3::new(threads, 1, 1), shared_bytes)
    }

    fn on_h200(threads: u64, registers: u64, shared_bytes: u64) -> u64 {
        per_multiprocessor("h200", threads, registers, shared_bytes)
    }

    #[test]
    fn warps_limit_a_small_kernel() {
        assert_eq!(on_h200(128, 32, 0), 16);
        assert_eq!(on_h200(1024, 32, 0), 2);
        assert_eq!(on_h200(33, 16, 0), 32);
        assert_eq!(on_h200(96, 0, 0), 21);
    }

    #[test]
    fn block_slots_limit_tiny_blocks() {
        assert_eq!(on_h200(1, 16, 0), 32);
    }

    #[test]
    fn registers_limit_by_warps_of_a_partition() {
        assert_eq!(on_h200(128, 64, 0), 8);
        assert_eq!(on_h200(256, 255, 0), 1);
        // 8,192 registers per warp: two warps in each of four partitions.
        assert_eq!(on_h200(32, 255, 0), 8);
        // 168 registers: 5,376 per warp, three in each partition.
        assert_eq!(on_h200(384, 168, 0), 1);
        assert_eq!(on_h200(1024, 255, 0), 0);
        // 257 threads of 210 registers need more than a block can have.
        assert_eq!(on_h200(257, 210, 0), 0);
    }

    #[test]
    fn shared_memory_limits_with_the_part_that_the_system_reserves() {
        // 228 KiB per multiprocessor, 1 KiB reserved for each block.
        assert_eq!(on_h200(128, 32, 227 * 1024), 1);
        assert_eq!(on_h200(128, 32, 113 * 1024), 2);
        assert_eq!(on_h200(128, 32, 114 * 1024), 1);
        assert_eq!(on_h200(128, 32, 75 * 1024), 3);
        assert_eq!(on_h200(128, 32, u64::MAX), 0);
    }

    #[test]
    fn no_threads_are_no_blocks() {
        assert_eq!(on_h200(0, 32, 0), 0);
        assert_eq!(on_h200(u64::MAX, 32, 0), 0);
    }

    #[test]
    fn each_architecture_has_its_own_occupancy() {
        // Blocks of 128 threads with 32 registers and 16 KiB of shared memory, of 1,024 threads, and
        // of one warp with 128 registers.
        for (gpu, expected) in [
            ("v100", [6, 2, 16]),
            ("t4", [4, 1, 16]),
            ("a100", [9, 2, 16]),
            ("rtx-3090", [5, 1, 16]),
            ("orin", [9, 1, 16]),
            ("l4", [5, 1, 16]),
            ("h100", [13, 2, 16]),
            ("b200", [13, 2, 16]),
            ("rtx-5090", [5, 1, 16]),
        ] {
            let blocks = [
                per_multiprocessor(gpu, 128, 32, 16_384),
                per_multiprocessor(gpu, 1024, 32, 0),
                per_multiprocessor(gpu, 32, 128, 0),
            ];
            assert_eq!(blocks, expected, "{gpu}");
        }
    }

    #[test]
    fn shared_memory_is_allocated_in_128_bytes_from_8_0_on_and_in_256_before() {
        // 19,584 is an odd multiple of 128: 19,712 are allocated, which fit four times.
        assert_eq!(per_multiprocessor("v100", 32, 0, 19_584), 4);
        // With the reserved 1,024 bytes 23,936, an odd multiple of 128 that fits seven times.
        assert_eq!(per_multiprocessor("a100", 32, 0, 22_912), 7);
        assert_eq!(per_multiprocessor("a100", 32, 0, 22_913), 6);
    }

    #[test]
    fn co_resident_blocks_are_those_that_an_h200_accepted() {
        // Registers, then the largest cooperative grid of 32, 65 and 1,024 threads per block: one block
        // more returned 720, and so did any grid of a block that does not fit.
        for (registers, largest) in [
            (8, [Some(4224), Some(2772), Some(264)]),
            (43, [Some(4224), Some(1716), Some(132)]),
            (76, [Some(3168), Some(1056), None]),
            (111, [Some(2112), Some(660), None]),
            (146, [Some(1584), Some(528), None]),
            (181, [Some(1056), Some(264), None]),
            (251, [Some(1056), Some(264), None]),
        ] {
            let limits = on("h200", registers, 0);
            let blocks = |threads| limits.co_resident_blocks(Dim3::new(threads, 1, 1), 0);
            assert_eq!([32, 65, 1024].map(blocks), largest, "{registers} registers");
        }
    }

    #[test]
    fn a_block_that_does_not_fit_has_no_co_residency_limit() {
        let limits = on("h200", 210, 0);
        assert_eq!(limits.co_resident_blocks(Dim3::new(257, 1, 1), 0), None);
        assert_eq!(limits.co_resident_blocks(Dim3::new(0, 1, 1), 0), None);
        assert_eq!(on("h200", 16, 0).co_resident_blocks(Dim3::ONE, u64::MAX), None);
    }
}
