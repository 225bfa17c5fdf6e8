//! Checks a request against every rule of launches, without allocation.

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::launch::rule::Rule;
use crate::limits::IndexLimit;
use crate::limits::launch::{LaunchLimits, Thresholds};
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
    let thresholds = limits.thresholds();
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
    at_most(Rule::ThreadsPerBlock, None, threads, thresholds.device_threads);
    if let Some(launch_bounds) = thresholds.kernel_threads {
        at_most(Rule::KernelThreadsPerBlock, None, threads, launch_bounds);
    }
    at_most(Rule::ParameterBytes, None, parameter_bytes.into(), thresholds.parameter_bytes);
    along(Rule::GridDimZero, grid, Dim3::ONE, |size, least| size < least, &mut broken);
    along(Rule::BlockDimZero, block, Dim3::ONE, |size, least| size < least, &mut broken);
    if let Some(required) = thresholds.required_block {
        along(Rule::RequiredBlock, block, required, |size, only| size != only, &mut broken);
    }
    if thresholds.register_threads.is_some_and(|most| threads > most) {
        let limit = limits.device().max_registers_per_block;
        broken(Rule::RegistersPerBlock, None, limits.registers_per_block(threads), limit);
    }
    if thresholds.too_much_local_memory {
        let bytes = limits.kernel().local_bytes_per_thread;
        let limit = limits.device().max_local_bytes_per_thread();
        broken(Rule::LocalMemory, None, bytes.into(), limit);
    }
    if thresholds.opt_in_dynamic_bytes.is_none_or(|most| dynamic_shared_bytes > most) {
        let fixed = u128::from(limits.kernel().static_shared_bytes);
        let (total, limit) =
            (fixed + u128::from(dynamic_shared_bytes), limits.device().shared_bytes_limit());
        broken(Rule::SharedMemoryTotal, None, total, limit);
    } else if dynamic_shared_bytes > thresholds.dynamic_shared_bytes {
        // Opting in helps only if the device has enough shared memory.
        let limit = thresholds.dynamic_shared_bytes;
        broken(Rule::DynamicSharedMemoryOptIn, None, dynamic_shared_bytes.into(), limit);
    }
    let exceeded = |index: &IndexLimit| Some((index.exceeded(grid, block)?, index.most));
    if let Some(((axis, reach), most)) = limits.kernel().index.iter().find_map(exceeded) {
        broken(Rule::IndexWrap, Some(axis), reach, most);
    }
    if cooperative && !thresholds.cooperative_launch {
        broken(Rule::CooperativeUnsupported, None, 1, 0);
    }
    if cooperative
        && let Some(most) = co_resident_blocks(request, limits, occupancy)
        && grid.volume() > most.into()
    {
        broken(Rule::CooperativeResidency, None, grid.volume(), most);
    }
    if dependent && !limits.device().dependent_launch() {
        broken(Rule::DependentUnsupported, None, 1, 0);
    }
    match request.cluster_with(limits.kernel()) {
        Some(cluster) => check_cluster(grid, cluster, thresholds, occupancy, &mut broken),
        None if thresholds.cluster_must_be_set => broken(Rule::ClusterRequired, None, 0, 1),
        None => {}
    }
}

#[cold]
fn check_cluster(
    grid: Dim3,
    cluster: Dim3,
    thresholds: &Thresholds,
    occupancy: &OccupancyLimits,
    broken: &mut impl FnMut(Rule, Option<Axis>, u128, u64),
) {
    let blocks = cluster.volume();
    // Checks compiled-in clusters too, because compilers accept 9 and 17 blocks (H200).
    let too_large = blocks > thresholds.cluster_blocks.into();
    if thresholds.cluster_launch {
        if let Some(required) = thresholds.required_cluster {
            along(Rule::ClusterRequired, cluster, required, |size, only| size != only, broken);
        }
        along(Rule::ClusterSize, cluster, Dim3::ONE, |size, least| size < least, broken);
        if too_large {
            broken(Rule::ClusterSize, None, blocks, thresholds.cluster_blocks);
        }
        let leaves_rest =
            |blocks: u64, unit| blocks.checked_rem(unit).is_some_and(|rest| rest != 0);
        along(Rule::ClusterDividesGrid, grid, cluster, leaves_rest, broken);
    } else if cluster != Dim3::ONE {
        broken(Rule::ClusterUnsupported, None, blocks, 0);
    }
    if let Some(resident) = occupancy.cluster_blocks
        && blocks > resident.into()
        && !(thresholds.cluster_launch && too_large)
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
