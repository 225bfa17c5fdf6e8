//! The violations of one launch.

use gridguard::{
    Axis, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, OccupancyLimits,
    Violations, validate, validate_co_resident,
};

use super::{blocks_along, by_row, on_h200};

/// `request` for a kernel without known limits on an H200.
fn plain(request: LaunchRequest) -> Violations {
    of_kernel(|_| {}, request)
}

fn of_kernel(change: impl FnOnce(&mut KernelLimits), request: LaunchRequest) -> Violations {
    validate(&request, &on_h200(change)).expect_err("it breaks a rule")
}

/// `request` on an H200 with this occupancy.
fn co_resident(blocks: u64, cluster_blocks: u64, request: LaunchRequest) -> Violations {
    let occupancy = OccupancyLimits { blocks: Some(blocks), cluster_blocks: Some(cluster_blocks) };
    validate_co_resident(&request, &on_h200(|_| {}), &occupancy).expect_err("too many")
}

/// `request` on a device with the lowest limits.
fn anywhere(request: LaunchRequest) -> Violations {
    let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("attention"));
    validate(&request, &limits).expect_err("it breaks a rule")
}

const ONE: LaunchRequest = LaunchRequest::new(Dim3::ONE, Dim3::ONE);

fn threads(x: u64, y: u64, z: u64) -> LaunchRequest {
    LaunchRequest::new(Dim3::ONE, Dim3::new(x, y, z))
}

pub(crate) fn violations() -> Vec<Violations> {
    [grids(), blocks(), local_memory(), shared_memory(), clusters(), features()].concat()
}

fn grids() -> Vec<Violations> {
    vec![
        plain(blocks_along(Axis::X, 1 << 31)),
        plain(blocks_along(Axis::Y, 76_800)),
        plain(LaunchRequest::new(Dim3::new(2_147_483_647, 65_536, 1), Dim3::ONE)),
        plain(blocks_along(Axis::Z, 196_606)),
        plain(blocks_along(Axis::Y, u64::MAX)),
        plain(LaunchRequest::new(Dim3::new(0, 1, 0), Dim3::ONE)),
        plain(LaunchRequest::new(Dim3::new(1, 65_536, 0), Dim3::ONE)),
    ]
}

fn blocks() -> Vec<Violations> {
    vec![
        plain(threads(1025, 1, 1)),
        plain(threads(1, 1025, 1)),
        plain(threads(1, 1, 65)),
        plain(threads(0, 1, 0)),
        plain(threads(32, 33, 1)),
        of_kernel(|kernel| kernel.max_threads_per_block = Some(128), threads(129, 1, 1)),
        of_kernel(|kernel| kernel.registers_per_thread = 210, threads(257, 1, 1)),
        of_kernel(|kernel| kernel.registers_per_thread = 1000, threads(32, 1, 1)),
    ]
}

fn local_memory() -> Vec<Violations> {
    let mut kernel = KernelLimits::unknown("attention");
    kernel.local_bytes_per_thread = 128 << 10;
    let a10 = gridguard::catalog::gpu("a10").expect("catalogued").limits.clone();
    let of_a_small_device = validate(&ONE, &LaunchLimits::new(a10.clone(), kernel.clone()));
    assert!(of_a_small_device.is_ok(), "13.5 of 24 GiB");
    kernel.local_bytes_per_thread = 256 << 10;
    let too_much = validate(&ONE, &LaunchLimits::new(a10, kernel)).expect_err("27 of 24 GiB");
    vec![of_kernel(|kernel| kernel.local_bytes_per_thread = 512 << 10, ONE), too_much]
}

fn shared_memory() -> Vec<Violations> {
    vec![
        plain(ONE.dynamic_shared_bytes(49_153)),
        plain(ONE.dynamic_shared_bytes(232_449)),
        of_kernel(|kernel| kernel.static_shared_bytes = 48_000, ONE.dynamic_shared_bytes(184_449)),
        of_kernel(|kernel| kernel.static_shared_bytes = 300_000, ONE),
    ]
}

fn clusters() -> Vec<Violations> {
    let eight = blocks_along(Axis::X, 64);
    let own = |kernel: &mut KernelLimits| kernel.required_cluster = Some(Dim3::new(2, 1, 1));
    vec![
        anywhere(eight.cluster(Dim3::new(2, 2, 1))),
        plain(eight.cluster(Dim3::new(16, 1, 1))),
        of_kernel(
            |kernel| kernel.required_block = Some(Dim3::new(64, 2, 1)),
            LaunchRequest::new(Dim3::ONE, Dim3::new(64, 1, 1)),
        ),
        of_kernel(
            |kernel| kernel.non_portable_cluster_allowed = true,
            eight.cluster(Dim3::new(32, 1, 1)),
        ),
        plain(eight.cluster(Dim3::new(0, 1, 1))),
        of_kernel(
            |kernel| kernel.required_cluster = Some(Dim3::new(9, 1, 1)),
            blocks_along(Axis::X, 18),
        ),
        of_kernel(|kernel| kernel.cluster_must_be_set = true, eight.cluster(Dim3::new(0, 0, 0))),
        plain(blocks_along(Axis::X, 9).cluster(Dim3::new(8, 1, 1))),
        of_kernel(own, blocks_along(Axis::X, 7)),
        of_kernel(own, eight.cluster(Dim3::new(4, 1, 1))),
        of_kernel(|kernel| kernel.cluster_must_be_set = true, eight),
    ]
}

fn features() -> Vec<Violations> {
    vec![
        co_resident(
            264,
            8,
            LaunchRequest::new(Dim3::new(265, 1, 1), Dim3::new(1024, 1, 1)).cooperative(),
        ),
        co_resident(264, 4, blocks_along(Axis::X, 64).cluster(Dim3::new(8, 1, 1))),
        plain(LaunchRequest::new(Dim3::new(8, 65_534, 1), Dim3::new(65, 1, 1)).cooperative()),
        anywhere(ONE.cooperative()),
        of_kernel(by_row, blocks_along(Axis::Y, 40_000)),
        anywhere(ONE.dependent()),
        anywhere(ONE.parameter_bytes(4097)),
        plain(ONE.parameter_bytes(32_765)),
    ]
}
