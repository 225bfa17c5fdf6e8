//! How many blocks of a launch a multiprocessor holds at the same time.

use crate::launch::request::LaunchRequest;
use crate::limits::{ComputeCapability, LaunchLimits};

/// Compute capability from which shared memory is given out in the smaller unit.
const FINE_SHARED_MEMORY: ComputeCapability = ComputeCapability::new(8, 0);
/// Shared memory of a block is rounded up to a multiple of so many bytes from 8.0 on. No driver
/// attribute; from the occupancy rules of the CUDA toolkit (`cuda_occupancy.h`).
const FINE_SHARED_UNIT_BYTES: u64 = 128;
/// The same before 8.0.
const COARSE_SHARED_UNIT_BYTES: u64 = 256;

impl LaunchLimits {
    /// Blocks of `request` that are resident on one multiprocessor at the same time, by threads,
    /// registers, shared memory and the limit on blocks; 0 for a block that fits nowhere.
    ///
    /// Clusters, which may leave multiprocessors unused, are not looked at. Registers that are not
    /// known limit nothing.
    ///
    /// ```
    /// use gridguard::{DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest};
    ///
    /// let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("k"));
    /// let request = LaunchRequest::new(Dim3::ONE, Dim3::new(128, 1, 1));
    /// assert_eq!(limits.resident_blocks(&request), 8); // of 1,024 threads
    /// ```
    #[must_use]
    pub fn resident_blocks(&self, request: &LaunchRequest) -> u64 {
        let device = self.device();
        let threads = u64::try_from(request.block.volume()).unwrap_or(u64::MAX);
        let warp = device.warp_size.max(1);
        let warps = threads.div_ceil(warp);
        if warps == 0 {
            return 0;
        }
        (device.max_threads_per_multiprocessor / warp / warps)
            .min(self.blocks_by_registers(threads, warps))
            .min(self.blocks_by_shared_memory(request.dynamic_shared_bytes))
            .min(device.max_blocks_per_multiprocessor)
    }

    /// Each warp takes its registers from one of the multiprocessor's partitions.
    fn blocks_by_registers(&self, threads: u64, warps: u64) -> u64 {
        let device = self.device();
        let per_warp = self.registers_per_warp();
        if per_warp == 0 {
            return u64::MAX;
        }
        if self.registers_per_block(threads.into()) > device.max_registers_per_block.into() {
            return 0;
        }
        let partitions = device.warp_allocation_granularity.max(1);
        let of_partition = device.registers_per_multiprocessor / partitions;
        // At most what it was.
        let warps_per_partition =
            u64::try_from(u128::from(of_partition) / per_warp).unwrap_or(u64::MAX);
        warps_per_partition.saturating_mul(partitions) / warps
    }

    fn blocks_by_shared_memory(&self, dynamic_bytes: u64) -> u64 {
        let device = self.device();
        let unit = match device.compute_capability >= FINE_SHARED_MEMORY {
            true => FINE_SHARED_UNIT_BYTES,
            false => COARSE_SHARED_UNIT_BYTES,
        };
        let bytes = dynamic_bytes
            .saturating_add(self.kernel().static_shared_bytes)
            .saturating_add(device.reserved_shared_bytes_per_block);
        let bytes = bytes.div_ceil(unit).saturating_mul(unit);
        device.shared_bytes_per_multiprocessor.checked_div(bytes).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
#[cfg(feature = "catalog")]
mod tests {
    use super::*;
    use crate::catalog;
    use crate::dim::Dim3;
    use crate::limits::KernelLimits;

    fn resident(threads: u64, registers: u64, dynamic_shared_bytes: u64) -> u64 {
        let mut kernel = KernelLimits::unknown("k");
        kernel.registers_per_thread = registers;
        let device = catalog::gpu("h200").expect("in the catalogue").limits.clone();
        let limits = LaunchLimits::new(device, kernel);
        let request = LaunchRequest::new(Dim3::ONE, Dim3::new(threads, 1, 1));
        limits.resident_blocks(&request.dynamic_shared_bytes(dynamic_shared_bytes))
    }

    #[test]
    fn threads_limit_a_small_kernel() {
        assert_eq!(resident(128, 32, 0), 16);
        assert_eq!(resident(1024, 32, 0), 2);
        assert_eq!(resident(33, 16, 0), 32);
        assert_eq!(resident(96, 0, 0), 21);
    }

    #[test]
    fn the_block_limit_holds_for_tiny_blocks() {
        assert_eq!(resident(1, 16, 0), 32);
    }

    #[test]
    fn registers_limit_by_warps_of_a_partition() {
        assert_eq!(resident(128, 64, 0), 8);
        assert_eq!(resident(256, 255, 0), 1);
        // 8,192 registers a warp: two warps in each of four partitions.
        assert_eq!(resident(32, 255, 0), 8);
        // 168 registers: 5,376 a warp, three in each partition.
        assert_eq!(resident(384, 168, 0), 1);
        assert_eq!(resident(1024, 255, 0), 0);
    }

    #[test]
    fn shared_memory_counts_with_what_the_system_keeps() {
        // 228 KiB a multiprocessor, 1 KiB kept of each block.
        assert_eq!(resident(128, 32, 227 * 1024), 1);
        assert_eq!(resident(128, 32, 113 * 1024), 2);
        assert_eq!(resident(128, 32, 114 * 1024), 1);
        assert_eq!(resident(128, 32, 75 * 1024), 3);
        assert_eq!(resident(128, 32, u64::MAX), 0);
    }

    #[test]
    fn no_threads_are_no_blocks() {
        assert_eq!(resident(0, 32, 0), 0);
        assert_eq!(resident(u64::MAX, 32, 0), 0);
    }
}
