//! Checks a request against every rule of launches, without allocation.

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::launch::rule::Rule;
use crate::limits::IndexLimit;
use crate::limits::launch::LaunchLimits;
use crate::limits::occupancy::OccupancyLimits;

/// Checks every rule of launches. Calls `broken` with the rule, its axis, the requested value and the limit, for
/// each axis along which a rule is broken.
#[inline(always)]
pub(super) fn check_each(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    occupancy: &OccupancyLimits,
    mut broken: impl FnMut(Rule, Option<Axis>, u128, u64),
) {
    let &LaunchRequest {
        grid,
        block,
        dynamic_shared_bytes,
        // `cluster_with` reads it.
        cluster: _,
        cooperative,
        parameter_bytes,
        // The driver accepts any priority.
        priority: _,
        dependent,
    } = request;
    let (device, kernel, thresholds) = (limits.device(), limits.kernel(), limits.thresholds());
    let threads = block.volume();
    let mut at_most = |rule, axis, requested: u128, limit: u64| {
        if requested > limit.into() {
            broken(rule, axis, requested, limit);
        }
    };
    for axis in Axis::ALL {
        let (blocks, most) = (grid.along(axis), thresholds.grid.along(axis));
        at_most(Rule::grid_dim(axis), Some(axis), blocks.into(), most);
        let (threads, most) = (block.along(axis), thresholds.block.along(axis));
        at_most(Rule::block_dim(axis), Some(axis), threads.into(), most);
    }
    at_most(Rule::ThreadsPerBlock, None, threads, device.max_threads_per_block);
    if let Some(launch_bounds) = kernel.max_threads_per_block {
        at_most(Rule::KernelThreadsPerBlock, None, threads, launch_bounds);
    }
    at_most(Rule::ParameterBytes, None, parameter_bytes.into(), device.max_parameter_bytes);
    along(Rule::GridDimZero, grid, Dim3::ONE, |size, least| size < least, &mut broken);
    along(Rule::BlockDimZero, block, Dim3::ONE, |size, least| size < least, &mut broken);
    if let Some(required) = kernel.required_block {
        along(Rule::RequiredBlock, block, required, |size, only| size != only, &mut broken);
    }
    if thresholds.register_threads.is_some_and(|most| threads > most) {
        let limit = device.max_registers_per_block;
        broken(Rule::RegistersPerBlock, None, limits.registers_per_block(threads), limit);
    }
    if thresholds.too_much_local_memory {
        let bytes = kernel.local_bytes_per_thread;
        let limit = device.max_local_bytes_per_thread();
        broken(Rule::LocalMemory, None, bytes.into(), limit);
    }
    if thresholds.opt_in_dynamic_bytes.is_none_or(|most| dynamic_shared_bytes > most) {
        let fixed = u128::from(kernel.static_shared_bytes);
        let (total, limit) =
            (fixed + u128::from(dynamic_shared_bytes), device.shared_bytes_limit());
        broken(Rule::SharedMemoryTotal, None, total, limit);
    } else if dynamic_shared_bytes > thresholds.dynamic_shared_bytes {
        // Opting in helps only if the device has enough shared memory.
        let limit = thresholds.dynamic_shared_bytes;
        broken(Rule::DynamicSharedMemoryOptIn, None, dynamic_shared_bytes.into(), limit);
    }
    let exceeded = |index: &IndexLimit| Some((index.exceeded(grid, block)?, index.most));
    if let Some(((axis, reach), most)) = kernel.index.iter().find_map(exceeded) {
        broken(Rule::IndexWrap, Some(axis), reach, most);
    }
    if cooperative && !device.cooperative_launch {
        broken(Rule::CooperativeUnsupported, None, 1, 0);
    }
    if cooperative
        && let Some(most) = co_resident_blocks(request, limits, occupancy)
        && grid.volume() > most.into()
    {
        broken(Rule::CooperativeResidency, None, grid.volume(), most);
    }
    if dependent && !device.dependent_launch() {
        broken(Rule::DependentUnsupported, None, 1, 0);
    }
    match request.cluster_with(kernel) {
        Some(cluster) => check_cluster(grid, cluster, limits, occupancy, &mut broken),
        None if kernel.cluster_must_be_set => broken(Rule::ClusterRequired, None, 0, 1),
        None => {}
    }
}

#[cold]
fn check_cluster(
    grid: Dim3,
    cluster: Dim3,
    limits: &LaunchLimits,
    occupancy: &OccupancyLimits,
    broken: &mut impl FnMut(Rule, Option<Axis>, u128, u64),
) {
    let (blocks, supported) = (cluster.volume(), limits.device().cluster_launch);
    let most = limits.thresholds().cluster_blocks;
    // Checks compiled-in clusters too, because compilers accept 9 and 17 blocks (H200).
    let too_large = blocks > most.into();
    if supported {
        if let Some(required) = limits.kernel().required_cluster {
            along(Rule::ClusterRequired, cluster, required, |size, only| size != only, broken);
        }
        along(Rule::ClusterSize, cluster, Dim3::ONE, |size, least| size < least, broken);
        if too_large {
            broken(Rule::ClusterSize, None, blocks, most);
        }
        let leaves_rest =
            |blocks: u64, unit| blocks.checked_rem(unit).is_some_and(|rest| rest != 0);
        along(Rule::ClusterDividesGrid, grid, cluster, leaves_rest, broken);
    } else if cluster != Dim3::ONE {
        broken(Rule::ClusterUnsupported, None, blocks, 0);
    }
    if let Some(resident) = occupancy.cluster_blocks
        && blocks > resident.into()
        && !(supported && too_large)
    {
        broken(Rule::ClusterResidency, None, blocks, resident);
    }
}

/// Reports each axis along which `breaks` is true of `size` and `limit`.
#[inline(always)]
fn along(
    rule: Rule,
    size: Dim3,
    limit: Dim3,
    breaks: impl Fn(u64, u64) -> bool,
    broken: &mut impl FnMut(Rule, Option<Axis>, u128, u64),
) {
    for axis in Axis::ALL {
        let (requested, limit) = (size.along(axis), limit.along(axis));
        if breaks(requested, limit) {
            broken(rule, Some(axis), requested.into(), limit);
        }
    }
}

/// The most blocks of a cooperative `request`: the driver's number if known, else an estimate.
fn co_resident_blocks(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    occupancy: &OccupancyLimits,
) -> Option<u64> {
    if occupancy.blocks.is_some() || !limits.thresholds().estimates_occupancy {
        return occupancy.blocks;
    }
    limits.co_resident_blocks(request.block, request.dynamic_shared_bytes)
}
