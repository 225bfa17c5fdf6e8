//! Turns broken rules into violations with values, limits and remedies.

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::violation::{Owner, Remedy, Violation, Violations};
use crate::limits::LOCAL_BYTES_PER_THREAD;
use crate::limits::launch::{LaunchLimits, NON_PORTABLE_CLUSTER_BLOCKS};

/// The violations of the `broken` rules. `co_resident` is the most blocks of a cooperative grid,
/// `cluster_blocks` the largest cluster that occupancy allows.
#[cold]
pub(crate) fn violations(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    (co_resident, cluster_blocks): (Option<u64>, Option<u64>),
    broken: RuleSet,
) -> Violations {
    let mut violations = Violations::of_request(request);
    for rule in Rule::ALL.iter().copied().filter(|rule| broken.contains(*rule)) {
        let mut report = |axis, requested: u128, limit, owner, remedy| {
            violations.push(Violation { rule, axis, requested, limit, owner, remedy });
        };
        match rule {
            Rule::CooperativeResidency => {
                let (blocks, limit) = (request.grid.volume(), co_resident.unwrap_or(0));
                report(None, blocks, limit, device(limits), Remedy::ShrinkGrid);
            }
            Rule::ClusterUnsupported
            | Rule::ClusterSize
            | Rule::ClusterDividesGrid
            | Rule::ClusterRequired
            | Rule::ClusterResidency => {
                cluster_violation(rule, request, limits, cluster_blocks, &mut report);
            }
            _ => violation(rule, request, limits, &mut report),
        }
    }
    violations
}

type Report<'a> = dyn FnMut(Option<Axis>, u128, u64, Owner, Remedy) + 'a;

fn device(limits: &LaunchLimits) -> Owner {
    Owner::Device(limits.device().name.clone())
}

fn kernel(limits: &LaunchLimits) -> Owner {
    Owner::Kernel(limits.kernel().name.clone())
}

fn violation(rule: Rule, request: &LaunchRequest, limits: &LaunchLimits, report: &mut Report<'_>) {
    let LaunchRequest { grid, block, .. } = *request;
    let thresholds = limits.thresholds();
    let threads = block.volume();
    let dynamic_bytes = thresholds.opt_in_dynamic_bytes.unwrap_or(0);
    match rule {
        Rule::GridDimX | Rule::GridDimY | Rule::GridDimZ => {
            for axis in Axis::ALL.into_iter().filter(|axis| Rule::grid_dim(*axis) == rule) {
                let remedy = match request.cooperative {
                    true => Remedy::ShrinkGrid,
                    false => split_axis(axis, grid, thresholds.grid),
                };
                let (blocks, limit) = (grid.along(axis), thresholds.grid.along(axis));
                report(Some(axis), blocks.into(), limit, device(limits), remedy);
            }
        }
        Rule::GridDimZero => zeros(grid, &Remedy::SkipLaunch, report),
        Rule::BlockDimX | Rule::BlockDimY | Rule::BlockDimZ => {
            for axis in Axis::ALL.into_iter().filter(|axis| Rule::block_dim(*axis) == rule) {
                let (threads, limit) = (block.along(axis), thresholds.block.along(axis));
                report(Some(axis), threads.into(), limit, device(limits), Remedy::MoveThreads);
            }
        }
        Rule::BlockDimZero => zeros(block, &Remedy::AtLeastOne, report),
        Rule::ThreadsPerBlock => {
            let limit = thresholds.device_threads;
            report(None, threads, limit, device(limits), Remedy::SmallerBlocks { threads: limit });
        }
        Rule::KernelThreadsPerBlock => {
            let limit = thresholds.kernel_threads.unwrap_or(u64::MAX);
            report(None, threads, limit, kernel(limits), Remedy::SmallerBlocks { threads: limit });
        }
        Rule::RequiredBlock => {
            let required = limits.kernel().required_block.unwrap_or(block);
            let differs = |axis: &Axis| block.along(*axis) != required.along(*axis);
            for axis in Axis::ALL.into_iter().filter(differs) {
                let (threads, limit) = (block.along(axis), required.along(axis));
                let remedy = Remedy::UseBlock { block: required };
                report(Some(axis), threads.into(), limit, kernel(limits), remedy);
            }
        }
        Rule::RegistersPerBlock => {
            let fitting = thresholds.register_threads.unwrap_or(0);
            let remedy =
                Remedy::FewerRegisters { threads: u64::try_from(fitting).unwrap_or(u64::MAX) };
            let registers = limits.registers_per_block(threads);
            let limit = limits.device().max_registers_per_block;
            report(None, registers, limit, device(limits), remedy);
        }
        Rule::LocalMemory => {
            let bytes = limits.kernel().local_bytes_per_thread;
            let limit = limits.device().max_local_bytes_per_thread();
            let (owner, resident_threads) = match limit {
                LOCAL_BYTES_PER_THREAD => (Owner::Cuda, None),
                _ => (device(limits), Some(limits.device().resident_threads())),
            };
            let remedy = Remedy::LessLocalMemory { resident_threads };
            report(None, bytes.into(), limit, owner, remedy);
        }
        Rule::SharedMemoryTotal => {
            let static_bytes = limits.kernel().static_shared_bytes;
            let total = u128::from(static_bytes) + u128::from(request.dynamic_shared_bytes);
            let remedy = Remedy::LessSharedMemory { dynamic_bytes, static_bytes };
            report(None, total, limits.device().shared_bytes_limit(), device(limits), remedy);
        }
        Rule::DynamicSharedMemoryOptIn => {
            let (bytes, limit) = (request.dynamic_shared_bytes, thresholds.dynamic_shared_bytes);
            let remedy = Remedy::OptIn { device_bytes: dynamic_bytes };
            report(None, bytes.into(), limit, kernel(limits), remedy);
        }
        Rule::CooperativeUnsupported => {
            report(None, 1, 0, device(limits), Remedy::NotCooperative);
        }
        Rule::DependentUnsupported => report(None, 1, 0, device(limits), Remedy::NotDependent),
        Rule::ParameterBytes => {
            let (bytes, limit) = (request.parameter_bytes, thresholds.parameter_bytes);
            report(None, bytes.into(), limit, device(limits), Remedy::PassByPointer);
        }
        // `cluster_violation` and the planner report the others.
        _ => {}
    }
}

fn cluster_violation(
    rule: Rule,
    request: &LaunchRequest,
    limits: &LaunchLimits,
    cluster_blocks: Option<u64>,
    report: &mut Report<'_>,
) {
    let required = limits.kernel().required_cluster;
    let use_cluster = Remedy::UseCluster { cluster: required };
    let Some(cluster) = request.cluster_with(limits.kernel()) else {
        return report(None, 0, 1, kernel(limits), use_cluster);
    };
    let blocks = cluster.volume();
    match rule {
        Rule::ClusterUnsupported => report(None, blocks, 0, device(limits), Remedy::NoCluster),
        Rule::ClusterSize if cluster.has_zero() => zeros(cluster, &Remedy::AtLeastOne, report),
        Rule::ClusterSize => {
            let non_portable = !limits.kernel().non_portable_cluster_allowed
                && blocks <= NON_PORTABLE_CLUSTER_BLOCKS.into();
            let limit = limits.thresholds().cluster_blocks;
            report(None, blocks, limit, device(limits), Remedy::SmallerCluster { non_portable });
        }
        Rule::ClusterResidency => {
            let limit = cluster_blocks.unwrap_or(0);
            report(None, blocks, limit, device(limits), Remedy::LighterCluster);
        }
        Rule::ClusterDividesGrid => {
            for axis in Axis::ALL {
                let (blocks, unit) = (request.grid.along(axis), cluster.along(axis));
                if blocks.checked_rem(unit).is_some_and(|rest| rest != 0) {
                    let padded = blocks.div_ceil(unit).saturating_mul(unit);
                    let remedy = Remedy::PadGrid { blocks: padded };
                    report(Some(axis), blocks.into(), unit, Owner::Cluster(cluster), remedy);
                }
            }
        }
        // The cluster differs from the required one.
        _ => {
            let required = required.unwrap_or(cluster);
            let differs = |axis: &Axis| cluster.along(*axis) != required.along(*axis);
            for axis in Axis::ALL.into_iter().filter(differs) {
                let (blocks, limit) = (cluster.along(axis), required.along(axis));
                report(Some(axis), blocks.into(), limit, kernel(limits), use_cluster.clone());
            }
        }
    }
}

/// Reports each axis along which `size` is zero.
fn zeros(size: Dim3, remedy: &Remedy, report: &mut Report<'_>) {
    for axis in Axis::ALL.into_iter().filter(|axis| size.along(*axis) == 0) {
        report(Some(axis), 0, 1, Owner::Cuda, remedy.clone());
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
