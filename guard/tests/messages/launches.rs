//! The violations of one launch.

use gridguard::{
    Axis, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, OccupancyLimits, validate,
    validate_co_resident,
};

use crate::{Snapshot, blocks_along, by_row, on_h200};

/// `request` for a kernel without known limits on an H200.
fn plain(request: LaunchRequest, text: &'static str) -> Snapshot {
    of_kernel(|_| {}, request, text)
}

fn of_kernel(
    change: impl FnOnce(&mut KernelLimits),
    request: LaunchRequest,
    text: &'static str,
) -> Snapshot {
    let violations = validate(&request, &on_h200(change)).expect_err("it breaks a rule");
    (violations, text)
}

/// `request` on an H200 with this occupancy.
fn co_resident(
    blocks: u64,
    cluster_blocks: u64,
    request: LaunchRequest,
    text: &'static str,
) -> Snapshot {
    let occupancy = OccupancyLimits { blocks: Some(blocks), cluster_blocks: Some(cluster_blocks) };
    let violations =
        validate_co_resident(&request, &on_h200(|_| {}), &occupancy).expect_err("too many");
    (violations, text)
}

/// `request` on a device with the lowest limits.
fn anywhere(request: LaunchRequest, text: &'static str) -> Snapshot {
    let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("attention"));
    let violations = validate(&request, &limits).expect_err("it breaks a rule");
    (violations, text)
}

const ONE: LaunchRequest = LaunchRequest::new(Dim3::ONE, Dim3::ONE);

fn threads(x: u64, y: u64, z: u64) -> LaunchRequest {
    LaunchRequest::new(Dim3::ONE, Dim3::new(x, y, z))
}

pub(crate) fn snapshots() -> Vec<Snapshot> {
    [grids(), blocks(), local_memory(), shared_memory(), clusters(), features()].concat()
}

fn grids() -> Vec<Snapshot> {
    vec![
        plain(
            blocks_along(Axis::X, 1 << 31),
            "grid.x is 2147483648 blocks, the limit is 2147483647 (NVIDIA H200): split axis x \
             into 2 launches of 1073741824",
        ),
        plain(
            blocks_along(Axis::Y, 76_800),
            "grid.y is 76800 blocks, the limit is 65535 (NVIDIA H200): split axis y into 2 \
             launches of 38400, or fold it into x",
        ),
        plain(
            LaunchRequest::new(Dim3::new(2_147_483_647, 65_536, 1), Dim3::ONE),
            "grid.y is 65536 blocks, the limit is 65535 (NVIDIA H200): split axis y into 2 \
             launches of 32768",
        ),
        plain(
            blocks_along(Axis::Z, 196_606),
            "grid.z is 196606 blocks, the limit is 65535 (NVIDIA H200): split axis z into 4 \
             launches of 49152, or fold it into x",
        ),
        plain(
            blocks_along(Axis::Y, u64::MAX),
            "grid.y is 18446744073709551615 blocks, the limit is 65535 (NVIDIA H200): use fewer \
             blocks, each looping over several items",
        ),
        plain(
            LaunchRequest::new(Dim3::new(0, 1, 0), Dim3::ONE),
            "grid.x is 0 blocks, the minimum is 1 (CUDA): skip the launch if there is nothing to \
             do, or declare a batch axis\n\
             grid.z is 0 blocks, the minimum is 1 (CUDA): skip the launch if there is nothing to \
             do, or declare a batch axis",
        ),
        plain(
            LaunchRequest::new(Dim3::new(1, 65_536, 0), Dim3::ONE),
            "grid.y is 65536 blocks, the limit is 65535 (NVIDIA H200): split axis y into 2 \
             launches of 32768, or fold it into x\n\
             grid.z is 0 blocks, the minimum is 1 (CUDA): skip the launch if there is nothing to \
             do, or declare a batch axis",
        ),
    ]
}

fn blocks() -> Vec<Snapshot> {
    vec![
        plain(
            threads(1025, 1, 1),
            "block.x is 1025 threads, the limit is 1024 (NVIDIA H200): move threads to another \
             axis of the block\n\
             block has 1025 threads, the limit is 1024 (NVIDIA H200): use blocks of at most 1024 \
             threads",
        ),
        plain(
            threads(1, 1025, 1),
            "block.y is 1025 threads, the limit is 1024 (NVIDIA H200): move threads to another \
             axis of the block\n\
             block has 1025 threads, the limit is 1024 (NVIDIA H200): use blocks of at most 1024 \
             threads",
        ),
        plain(
            threads(1, 1, 65),
            "block.z is 65 threads, the limit is 64 (NVIDIA H200): move threads to another axis \
             of the block",
        ),
        plain(
            threads(0, 1, 0),
            "block.x is 0 threads, the minimum is 1 (CUDA): make every axis at least 1\n\
             block.z is 0 threads, the minimum is 1 (CUDA): make every axis at least 1",
        ),
        plain(
            threads(32, 33, 1),
            "block has 1056 threads, the limit is 1024 (NVIDIA H200): use blocks of at most 1024 \
             threads",
        ),
        of_kernel(
            |kernel| kernel.max_threads_per_block = Some(128),
            threads(129, 1, 1),
            "block has 129 threads, the limit is 128 (kernel attention): use blocks of at most \
             128 threads",
        ),
        of_kernel(
            |kernel| kernel.registers_per_thread = 210,
            threads(257, 1, 1),
            "block needs 82944 registers, the limit is 65536 (NVIDIA H200): use blocks of at \
             most 256 threads, or compile the kernel for fewer registers per thread",
        ),
        of_kernel(
            |kernel| kernel.registers_per_thread = 1000,
            threads(32, 1, 1),
            "block needs 128000 registers, the limit is 65536 (NVIDIA H200): compile the kernel \
             for fewer registers per thread",
        ),
    ]
}

fn local_memory() -> Vec<Snapshot> {
    let mut kernel = KernelLimits::unknown("attention");
    kernel.local_bytes_per_thread = 128 << 10;
    let a10 = gridguard::catalog::gpu("a10").expect("catalogued").limits.clone();
    let of_a_small_device = validate(&ONE, &LaunchLimits::new(a10.clone(), kernel.clone()));
    assert!(of_a_small_device.is_ok(), "13.5 of 24 GiB");
    kernel.local_bytes_per_thread = 256 << 10;
    let too_much = validate(&ONE, &LaunchLimits::new(a10, kernel)).expect_err("27 of 24 GiB");
    vec![
        of_kernel(
            |kernel| kernel.local_bytes_per_thread = 512 << 10,
            ONE,
            "local memory per thread is 524288 bytes, the limit is 523712 (CUDA): use smaller \
             arrays per thread, or keep them in device memory",
        ),
        (
            too_much,
            "local memory per thread is 262144 bytes, the limit is 233016 (NVIDIA A10): use \
             smaller arrays per thread, or keep them in device memory: the driver reserves them for \
             all 110592 resident threads",
        ),
    ]
}

fn shared_memory() -> Vec<Snapshot> {
    vec![
        plain(
            ONE.dynamic_shared_bytes(49_153),
            "dynamic shared memory is 49153 bytes, the limit is 49152 (kernel attention): set \
             CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, up to 232448 on this device",
        ),
        plain(
            ONE.dynamic_shared_bytes(232_449),
            "static and dynamic shared memory is 232449 bytes, the limit is 232448 (NVIDIA H200): \
             request at most 232448 bytes of dynamic shared memory, since 0 bytes are static",
        ),
        of_kernel(
            |kernel| kernel.static_shared_bytes = 48_000,
            ONE.dynamic_shared_bytes(184_449),
            "static and dynamic shared memory is 232449 bytes, the limit is 232448 (NVIDIA H200): \
             request at most 184448 bytes of dynamic shared memory, since 48000 bytes are static",
        ),
        of_kernel(
            |kernel| kernel.static_shared_bytes = 300_000,
            ONE,
            "static and dynamic shared memory is 300000 bytes, the limit is 232448 (NVIDIA H200): \
             reduce the 300000 bytes of static shared memory",
        ),
    ]
}

fn clusters() -> Vec<Snapshot> {
    let eight = blocks_along(Axis::X, 64);
    let own = |kernel: &mut KernelLimits| kernel.required_cluster = Some(Dim3::new(2, 1, 1));
    vec![
        anywhere(
            eight.cluster(Dim3::new(2, 2, 1)),
            "cluster has 4 blocks, generic CUDA device does not support clusters: launch without \
             a cluster, or on a device of compute capability 9.0 or later",
        ),
        plain(
            eight.cluster(Dim3::new(16, 1, 1)),
            "cluster has 16 blocks, the limit is 8 (NVIDIA H200): use a smaller cluster, or set \
             CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED on the kernel",
        ),
        of_kernel(
            |kernel| kernel.required_block = Some(Dim3::new(64, 2, 1)),
            LaunchRequest::new(Dim3::ONE, Dim3::new(64, 1, 1)),
            "block.y is 1 threads, kernel attention requires 2: launch with the block of 64 x 2 x 1 \
             that the kernel was compiled for",
        ),
        of_kernel(
            |kernel| kernel.non_portable_cluster_allowed = true,
            eight.cluster(Dim3::new(32, 1, 1)),
            "cluster has 32 blocks, the limit is 16 (NVIDIA H200): use a smaller cluster",
        ),
        plain(
            eight.cluster(Dim3::new(0, 1, 1)),
            "cluster.x is 0 blocks, the minimum is 1 (CUDA): make every axis at least 1",
        ),
        of_kernel(
            |kernel| kernel.required_cluster = Some(Dim3::new(9, 1, 1)),
            blocks_along(Axis::X, 18),
            "cluster has 9 blocks, the limit is 8 (NVIDIA H200): use a smaller cluster, or set \
             CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED on the kernel",
        ),
        of_kernel(
            |kernel| kernel.cluster_must_be_set = true,
            eight.cluster(Dim3::new(0, 0, 0)),
            "kernel attention requires a cluster, the launch has none: specify a cluster size for \
             the launch",
        ),
        plain(
            blocks_along(Axis::X, 9).cluster(Dim3::new(8, 1, 1)),
            "grid.x (9) is not a multiple of the cluster size (8): pad the axis to 16 blocks, or \
             use a cluster that divides it",
        ),
        of_kernel(
            own,
            blocks_along(Axis::X, 7),
            "grid.x (7) is not a multiple of the cluster size (2): pad the axis to 8 blocks, or \
             use a cluster that divides it",
        ),
        of_kernel(
            own,
            eight.cluster(Dim3::new(4, 1, 1)),
            "cluster.x is 4 blocks, kernel attention requires 2: launch with the cluster of \
             2 x 1 x 1 that the kernel was compiled for",
        ),
        of_kernel(
            |kernel| kernel.cluster_must_be_set = true,
            eight,
            "kernel attention requires a cluster, the launch has none: specify a cluster size for \
             the launch",
        ),
    ]
}

fn features() -> Vec<Snapshot> {
    vec![
        co_resident(
            264,
            8,
            LaunchRequest::new(Dim3::new(265, 1, 1), Dim3::new(1024, 1, 1)).cooperative(),
            "cooperative grid has 265 blocks, only 264 can be co-resident (NVIDIA H200): use fewer \
             blocks, each looping over several items",
        ),
        co_resident(
            264,
            4,
            blocks_along(Axis::X, 64).cluster(Dim3::new(8, 1, 1)),
            "cluster has 8 blocks, only 4 can be co-resident (NVIDIA H200): use a smaller cluster, \
             or blocks with fewer threads or less shared memory",
        ),
        plain(
            LaunchRequest::new(Dim3::new(8, 65_534, 1), Dim3::new(65, 1, 1)).cooperative(),
            "cooperative grid has 524272 blocks, only 2772 can be co-resident (NVIDIA H200): use \
             fewer blocks, each looping over several items",
        ),
        anywhere(
            ONE.cooperative(),
            "generic CUDA device does not support cooperative launch: launch without grid-wide \
             synchronization, or on another device",
        ),
        of_kernel(
            by_row,
            blocks_along(Axis::Y, 40_000),
            "a 32-bit index reaches 2621374464, the limit is 2147483647 (kernel attention): declare \
             a batch along y, whose chunks have at most 32768 blocks and pointers to their own \
             items, or compile the kernel with 64-bit indices; parts of a rewritten kernel's grid \
             wrap too",
        ),
        anywhere(
            ONE.dependent(),
            "generic CUDA device does not support programmatic dependent launch: launch without the \
             dependence, or on a device of compute capability 9.0 or later",
        ),
        anywhere(
            ONE.parameter_bytes(4097),
            "kernel parameters are 4097 bytes, the limit is 4096 (generic CUDA device): pass \
             large parameters through device memory",
        ),
        plain(
            ONE.parameter_bytes(32_765),
            "kernel parameters are 32765 bytes, the limit is 32764 (NVIDIA H200): pass large \
             parameters through device memory",
        ),
    ]
}
