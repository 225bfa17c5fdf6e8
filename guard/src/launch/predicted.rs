//! Predicts the error code that the driver returns for a launch that breaks rules.
//!
//! The order of the driver's checks was derived from random launches on an NVIDIA H200 with driver
//! 580.159.04. `RULES.md` has their number.

use crate::launch::rule::{
    COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_CLUSTER_SIZE, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES,
    Rule,
};
use crate::launch::violation::{Remedy, Violation, Violations};
use crate::limits::LOCAL_BYTES_PER_THREAD;
use crate::limits::launch::NON_PORTABLE_CLUSTER_BLOCKS;

/// Shared memory, in bytes, that the driver adds for each block.
const RESERVED_BYTES: u128 = 1024;

impl Violations {
    /// The `CUresult` that the driver returns for a launch that breaks these rules, if it checks any of
    /// them.
    ///
    /// The driver checks in this order:
    ///
    /// 1. the block and the launch bounds,
    /// 2. zeros in the cluster,
    /// 3. the grid,
    /// 4. the cluster, unless its kernel allows non-portable sizes,
    /// 5. for a cooperative launch, whether all blocks can be co-resident, for whatever reason (720),
    /// 6. for other launches, local and shared memory, then registers, then a cluster that is too large for
    ///    the device.
    ///
    /// `None` also in these cases:
    ///
    /// - The kernel requires another block, or needs more local memory than the device has. These cases were
    ///   not measured.
    /// - The shared memory of a cooperative launch overflows the driver's 32-bit sum. An H200 returned 1 or
    ///   720.
    /// - A cooperative launch has too much local memory. An H200 returned 720 for a grid that cannot be
    ///   co-resident and 1 for other grids, and the driver states no occupancy for such a kernel.
    ///
    /// ```
    /// use gridguard::{DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, validate};
    ///
    /// let mut device = DeviceLimits::any_device();
    /// device.cooperative_launch = true;
    /// let limits = LaunchLimits::new(device, KernelLimits::unknown("reduce"));
    /// let plain = LaunchRequest::new(Dim3::ONE, Dim3::ONE).dynamic_shared_bytes(1 << 20);
    /// let code = |request| validate(&request, &limits).unwrap_err().driver_code();
    /// assert_eq!(code(plain), Some(1)); // CUDA_ERROR_INVALID_VALUE
    /// assert_eq!(code(plain.cooperative()), Some(720)); // CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    /// ```
    pub fn driver_code(&self) -> Option<i32> {
        let any = |rules: &[Rule]| rules.iter().any(|rule| self.contains(*rule));
        let local = self.of(Rule::LocalMemory);
        let exceeds_device = local.is_some_and(|local| local.limit != LOCAL_BYTES_PER_THREAD);
        if exceeds_device || self.contains(Rule::RequiredBlock) {
            return None;
        }
        if any(&BLOCK) || self.exceeds_launch_bounds() {
            return Some(INVALID_VALUE);
        }
        if self.of(Rule::ClusterSize).is_some_and(|violation| violation.requested == 0) {
            return Some(INVALID_CLUSTER_SIZE);
        }
        if any(&GRID) {
            return Some(INVALID_VALUE);
        }
        if any(&[Rule::ClusterDividesGrid, Rule::ClusterRequired])
            || self.exceeds_portable_cluster()
        {
            return Some(INVALID_CLUSTER_SIZE);
        }
        let cluster_too_large = any(&[Rule::ClusterSize, Rule::ClusterResidency]);
        let registers = self.contains(Rule::RegistersPerBlock);
        let shared = any(&[Rule::SharedMemoryTotal, Rule::DynamicSharedMemoryOptIn]);
        if self.cooperative {
            let none_fits = cluster_too_large || registers;
            if !none_fits && self.wraps_shared_memory() {
                return None;
            }
            if none_fits || shared || self.contains(Rule::CooperativeResidency) {
                return Some(COOPERATIVE_LAUNCH_TOO_LARGE);
            }
            return None;
        }
        if shared || local.is_some() {
            return Some(INVALID_VALUE);
        }
        if registers {
            return Some(LAUNCH_OUT_OF_RESOURCES);
        }
        cluster_too_large.then_some(INVALID_CLUSTER_SIZE)
    }

    fn of(&self, rule: Rule) -> Option<&Violation> {
        self.iter().find(|violation| violation.rule == rule)
    }

    /// Registers also limit a kernel's threads, but the driver checks them later. It checks the launch bounds
    /// first if they are lower.
    fn exceeds_launch_bounds(&self) -> bool {
        let Some(bounds) = self.of(Rule::KernelThreadsPerBlock) else {
            return false;
        };
        match self.of(Rule::RegistersPerBlock).map(|violation| &violation.remedy) {
            Some(Remedy::FewerRegisters { threads }) => bounds.limit < *threads,
            _ => true,
        }
    }

    /// Whether the cluster is larger than its kernel allows. For kernels that allow non-portable sizes the
    /// driver checks occupancy later.
    fn exceeds_portable_cluster(&self) -> bool {
        self.of(Rule::ClusterSize)
            .is_some_and(|violation| violation.limit < NON_PORTABLE_CLUSTER_BLOCKS)
    }

    /// Whether the driver's 32-bit sum of shared memory wraps.
    fn wraps_shared_memory(&self) -> bool {
        self.of(Rule::SharedMemoryTotal).is_some_and(|violation| {
            violation.requested.saturating_add(RESERVED_BYTES) > u32::MAX.into()
        })
    }
}

const BLOCK: [Rule; 5] =
    [Rule::BlockDimX, Rule::BlockDimY, Rule::BlockDimZ, Rule::BlockDimZero, Rule::ThreadsPerBlock];
const GRID: [Rule; 4] = [Rule::GridDimX, Rule::GridDimY, Rule::GridDimZ, Rule::GridDimZero];

#[cfg(test)]
#[cfg(feature = "catalog")]
mod tests {
    use crate::catalog;
    use crate::dim::Dim3;
    use crate::launch::request::LaunchRequest;
    use crate::launch::validate::validate;
    use crate::limits::{KernelLimits, LaunchLimits};

    /// A kernel of the conformance test: its bounds, registers and static shared memory, and its
    /// dynamic shared memory.
    type Kernel = (u64, u64, u64, u64);

    const PLAIN: Kernel = (1024, 4, 0, 49_152);
    const OPTED_IN: Kernel = (1024, 4, 0, 232_448);
    const STATIC_48K: Kernel = (1024, 10, 49_152, 183_296);
    const LIVE_60: Kernel = (896, 72, 0, 49_152);
    const LIVE_200: Kernel = (256, 254, 0, 49_152);
    const BOUNDED_128: Kernel = (128, 4, 0, 49_152);
    /// Launch bounds below the register limit.
    const BOUNDED_128_LIVE_200: Kernel = (128, 254, 0, 49_152);

    fn limits((threads, registers, fixed, dynamic): Kernel) -> KernelLimits {
        let mut kernel = KernelLimits::unknown("k");
        kernel.max_threads_per_block = Some(threads);
        kernel.registers_per_thread = registers;
        kernel.static_shared_bytes = fixed;
        kernel.max_dynamic_shared_bytes = Some(dynamic);
        kernel
    }

    fn predicted(
        kernel: KernelLimits,
        grid: [u64; 3],
        block: [u64; 3],
        shared: u64,
        cluster: Option<[u64; 3]>,
        cooperative: bool,
    ) -> Option<i32> {
        let dim = |[x, y, z]: [u64; 3]| Dim3::new(x, y, z);
        let mut request = LaunchRequest::new(dim(grid), dim(block)).dynamic_shared_bytes(shared);
        request.cluster = cluster.map(dim);
        request.cooperative = cooperative;
        let device = catalog::gpu("h200").expect("in the catalogue").limits.clone();
        let violations = validate(&request, &LaunchLimits::new(device, kernel))
            .expect_err("the driver rejected it");
        violations.driver_code()
    }

    #[test]
    fn recorded_launches_get_the_code_that_an_h200_returned() {
        // Kernel, grid, block, dynamic shared memory, cluster, cooperative, and the code.
        #[rustfmt::skip]
        let recorded = [
            (PLAIN, [16, 1, 1], [1, 1, 64], 232_448, Some([16, 1, 1]), false, 912),
            (PLAIN, [64, 1, 2], [30, 1, 32], 49_153, None, true, 720),
            (PLAIN, [64, 1, 2], [30, 1, 32], 49_153, None, false, 1),
            (PLAIN, [7, 1, 1], [33, 1, 1], 115_712, Some([8, 8, 3]), true, 912),
            (PLAIN, [1, 1, 65_536], [4, 16, 12], 0, Some([9, 4, 0]), false, 912),
            (PLAIN, [9, 65_536, 1], [32, 1, 1], 0, Some([2, 1, 1]), false, 1),
            (PLAIN, [34, 65_536, 1], [32, 1, 1], 0, Some([17, 1, 1]), false, 1),
            (PLAIN, [9, 1, 1], [1, 1, 65], 0, Some([2, 1, 1]), false, 1),
            (PLAIN, [9999, 1, 1], [32, 1, 1], 0, Some([2, 1, 1]), true, 912),
            (OPTED_IN, [7, 65_536, 1], [4, 3, 8], 232_448, Some([0, 0, 1]), true, 912),
            (STATIC_48K, [3, 3, 2], [189, 1, 4], 184_321, Some([1, 3, 2]), true, 720),
            (PLAIN, [8, 65_534, 1], [65, 1, 1], 0, None, true, 720),
            (PLAIN, [2773, 1, 1], [65, 1, 1], 0, None, true, 720),
            (PLAIN, [265, 1, 1], [1024, 1, 1], 0, None, true, 720),
            (LIVE_60, [16, 1, 1], [1, 897, 1], 0, None, false, 701),
            (LIVE_200, [1, 65_535, 1], [289, 1, 1], 0, None, true, 720),
            (LIVE_200, [3, 2, 2], [257, 1, 1], 232_447, None, false, 1),
            (LIVE_200, [9, 1, 1], [512, 1, 1], 0, Some([2, 1, 1]), false, 912),
            (BOUNDED_128, [1, 65_534, 1], [1, 1, 1], 49_153, Some([1, 8, 1]), false, 912),
            (BOUNDED_128_LIVE_200, [16, 1, 1], [289, 1, 1], 0, Some([1, 1, 1]), false, 1),
            (BOUNDED_128_LIVE_200, [2, 5, 3], [1, 62, 16], 232_447, None, true, 1),
            (BOUNDED_128_LIVE_200, [1, 1, 3], [16, 8, 4], 49_152, Some([3, 1, 1]), false, 1),
            (BOUNDED_128_LIVE_200, [70_000, 0, 0], [1, 64, 1], 0, Some([0, 16, 1]), false, 912),
        ];
        for (kernel, grid, block, shared, cluster, cooperative, code) in recorded {
            let predicted = predicted(limits(kernel), grid, block, shared, cluster, cooperative);
            assert_eq!(predicted, Some(code), "{grid:?} of {block:?}, {shared}, {cluster:?}");
        }
    }

    #[test]
    fn clusters_of_kernels_that_allow_large_ones_are_checked_by_occupancy() {
        let mut wide = limits(OPTED_IN);
        wide.non_portable_cluster_allowed = true;
        let of = |grid, cluster, cooperative| {
            predicted(wide.clone(), grid, [16, 1, 1], 0, Some(cluster), cooperative)
        };
        assert_eq!(of([16, 1458, 3], [16, 1, 3], true), Some(720));
        assert_eq!(of([16, 1458, 3], [16, 1, 3], false), Some(912));
        assert_eq!(of([17, 1, 3], [16, 1, 3], true), Some(912));
        let mut live = limits(LIVE_200);
        live.non_portable_cluster_allowed = true;
        let of = |threads, shared, cluster| {
            predicted(live.clone(), [64, 1, 1], [threads, 1, 1], shared, Some(cluster), false)
        };
        assert_eq!(of(256, 0, [32, 1, 1]), Some(912));
        assert_eq!(of(257, 0, [32, 1, 1]), Some(701));
        assert_eq!(of(257, 49_153, [32, 1, 1]), Some(1));
        assert_eq!(of(32, 49_153, [64, 1, 1]), Some(1));
    }

    #[test]
    fn a_compiled_in_cluster_is_checked_as_one_that_the_launch_specifies() {
        let mut kernel = limits(PLAIN);
        kernel.required_cluster = Some(Dim3::new(9, 1, 1));
        kernel.cluster_must_be_set = true;
        assert_eq!(predicted(kernel, [18, 1, 1], [32, 1, 1], 0, None, false), Some(912));
    }

    #[test]
    fn nothing_is_predicted_where_the_driver_s_sum_of_shared_memory_wraps() {
        let of = |cooperative| {
            let bytes = u32::MAX.into();
            predicted(limits(PLAIN), [1, 1, 1], [32, 1, 1], bytes, None, cooperative)
        };
        assert_eq!((of(false), of(true)), (Some(1), None));
    }
}
