//! Turns broken rules into violations with values, limits and remedies.

use crate::dim::{Axis, Dim3};
use crate::launch::check::check_each;
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::violation::{Owner, Remedy, Violation, Violations};
use crate::limits::launch::{LaunchLimits, NON_PORTABLE_CLUSTER_BLOCKS};
use crate::limits::{LOCAL_BYTES_PER_THREAD, OccupancyLimits};

/// The violations of the `broken` rules.
#[cold]
pub(crate) fn violations(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    occupancy: &OccupancyLimits,
    broken: RuleSet,
) -> Violations {
    let mut violations = Violations::of_request(request);
    check_each(request, limits, occupancy, |rule, axis, requested, limit| {
        if !broken.contains(rule) {
            return;
        }
        let owner = owner(rule, requested, limit, request, limits);
        let remedy = remedy(rule, axis, requested, limit, request, limits);
        violations.push(Violation { rule, axis, requested, limit, owner, remedy });
    });
    violations
}

fn owner(
    rule: Rule,
    requested: u128,
    limit: u64,
    request: &LaunchRequest,
    limits: &LaunchLimits,
) -> Owner {
    match rule {
        Rule::GridDimZero | Rule::BlockDimZero => Owner::Cuda,
        Rule::ClusterSize if requested == 0 => Owner::Cuda,
        Rule::LocalMemory if limit == LOCAL_BYTES_PER_THREAD => Owner::Cuda,
        Rule::ClusterDividesGrid => {
            Owner::Cluster(request.cluster_with(limits.kernel()).unwrap_or(Dim3::ONE))
        }
        Rule::KernelThreadsPerBlock
        | Rule::RequiredBlock
        | Rule::DynamicSharedMemoryOptIn
        | Rule::ClusterRequired
        | Rule::IndexWrap => Owner::Kernel(limits.kernel().name.clone()),
        _ => Owner::Device(limits.device().name.clone()),
    }
}

fn remedy(
    rule: Rule,
    axis: Option<Axis>,
    requested: u128,
    limit: u64,
    request: &LaunchRequest,
    limits: &LaunchLimits,
) -> Remedy {
    let (device, kernel, thresholds) = (limits.device(), limits.kernel(), limits.thresholds());
    let dynamic_bytes = thresholds.opt_in_dynamic_bytes.unwrap_or(0);
    let narrow = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
    match rule {
        Rule::GridDimX | Rule::GridDimY | Rule::GridDimZ if !request.cooperative => {
            split_axis(axis.unwrap_or(Axis::X), request.grid, thresholds.grid)
        }
        Rule::GridDimZero => Remedy::SkipLaunch,
        Rule::BlockDimX | Rule::BlockDimY | Rule::BlockDimZ => Remedy::MoveThreads,
        Rule::BlockDimZero => Remedy::AtLeastOne,
        Rule::ThreadsPerBlock | Rule::KernelThreadsPerBlock => {
            Remedy::SmallerBlocks { threads: limit }
        }
        Rule::RequiredBlock => {
            Remedy::UseBlock { block: kernel.required_block.unwrap_or(request.block) }
        }
        Rule::RegistersPerBlock => {
            Remedy::FewerRegisters { threads: narrow(thresholds.register_threads.unwrap_or(0)) }
        }
        Rule::LocalMemory => {
            let by_device = limit != LOCAL_BYTES_PER_THREAD;
            Remedy::LessLocalMemory {
                resident_threads: by_device.then(|| device.resident_threads()),
            }
        }
        Rule::SharedMemoryTotal => {
            Remedy::LessSharedMemory { dynamic_bytes, static_bytes: kernel.static_shared_bytes }
        }
        Rule::DynamicSharedMemoryOptIn => Remedy::OptIn { device_bytes: dynamic_bytes },
        Rule::ClusterUnsupported => Remedy::NoCluster,
        Rule::ClusterSize if requested == 0 => Remedy::AtLeastOne,
        Rule::ClusterSize => Remedy::SmallerCluster {
            non_portable: !kernel.non_portable_cluster_allowed
                && requested <= NON_PORTABLE_CLUSTER_BLOCKS.into(),
        },
        Rule::ClusterDividesGrid => Remedy::PadGrid {
            blocks: narrow(requested).div_ceil(limit.max(1)).saturating_mul(limit),
        },
        Rule::ClusterRequired => Remedy::UseCluster { cluster: kernel.required_cluster },
        Rule::ClusterResidency => Remedy::LighterCluster,
        Rule::CooperativeUnsupported => Remedy::NotCooperative,
        Rule::DependentUnsupported => Remedy::NotDependent,
        Rule::ParameterBytes => Remedy::PassByPointer,
        Rule::IndexWrap => {
            let axis = axis.unwrap_or(Axis::X);
            match limits.index_blocks(axis, request.grid, request.block) {
                0 => Remedy::WiderIndex,
                blocks => Remedy::RebasePointers { axis, blocks },
            }
        }
        // A cooperative grid. The planner reports the other rules.
        _ => Remedy::ShrinkGrid,
    }
}

fn split_axis(axis: Axis, grid: Dim3, limit: Dim3) -> Remedy {
    let blocks = grid.along(axis);
    let launches = blocks.div_ceil(limit.along(axis).max(1)).max(1);
    if launches > MOST_LAUNCHES {
        return Remedy::ShrinkGrid;
    }
    let folded = grid.x.checked_mul(blocks).is_some_and(|x| x <= limit.x);
    Remedy::SplitAxis {
        axis,
        launches,
        blocks: blocks.div_ceil(launches),
        fold: axis != Axis::X && folded,
    }
}

/// The most launches that a remedy suggests. More would take longer than a kernel that loops.
const MOST_LAUNCHES: u64 = 1 << 16;
