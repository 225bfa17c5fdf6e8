//! Broken rules in words and numbers.

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::violation::{Owner, Remedy, Violation, Violations};
use crate::limits::{LaunchLimits, NON_PORTABLE_CLUSTER_BLOCKS};

/// Every broken rule in words and numbers.
#[cold]
pub(crate) fn explain(
    request: &LaunchRequest,
    limits: &LaunchLimits,
    broken: RuleSet,
) -> Violations {
    let mut violations = Violations::default();
    for rule in Rule::ALL {
        if broken.contains(*rule) {
            explain_rule(*rule, request, limits, &mut violations);
        }
    }
    violations
}

fn explain_rule(rule: Rule, request: &LaunchRequest, limits: &LaunchLimits, out: &mut Violations) {
    let LaunchRequest { grid, block, .. } = *request;
    let device = limits.device();
    let kernel = limits.kernel();
    let ceilings = limits.ceilings();
    let of_device = || Owner::Device(device.name.clone());
    let of_kernel = || Owner::Kernel(kernel.name.clone());
    let threads = block.volume();
    let mut report = |axis, requested: u128, limit, owner, remedy| {
        out.push(Violation { rule, axis, requested, limit, owner, remedy });
    };
    match rule {
        Rule::GridDimX | Rule::GridDimY | Rule::GridDimZ => {
            for axis in Axis::ALL.into_iter().filter(|axis| Rule::grid_dim(*axis) == rule) {
                let (blocks, limit) = (grid.along(axis), ceilings.grid.along(axis));
                let remedy = match request.cooperative {
                    true => Remedy::ShrinkGrid,
                    false => split_axis(axis, grid, ceilings.grid),
                };
                report(Some(axis), blocks.into(), limit, of_device(), remedy);
            }
        }
        Rule::GridDimZero => {
            for axis in Axis::ALL.into_iter().filter(|axis| grid.along(*axis) == 0) {
                report(Some(axis), 0, 1, Owner::Cuda, Remedy::SkipLaunch);
            }
        }
        Rule::BlockDimX | Rule::BlockDimY | Rule::BlockDimZ => {
            for axis in Axis::ALL.into_iter().filter(|axis| Rule::block_dim(*axis) == rule) {
                let (threads, limit) = (block.along(axis), ceilings.block.along(axis));
                report(Some(axis), threads.into(), limit, of_device(), Remedy::MoveThreads);
            }
        }
        Rule::BlockDimZero => {
            for axis in Axis::ALL.into_iter().filter(|axis| block.along(*axis) == 0) {
                report(Some(axis), 0, 1, Owner::Cuda, Remedy::AtLeastOne);
            }
        }
        Rule::ThreadsPerBlock => {
            let limit = ceilings.device_threads;
            report(None, threads, limit, of_device(), Remedy::SmallerBlocks { threads: limit });
        }
        Rule::KernelThreadsPerBlock => {
            let limit = ceilings.kernel_threads.unwrap_or(u64::MAX);
            report(None, threads, limit, of_kernel(), Remedy::SmallerBlocks { threads: limit });
        }
        Rule::RegistersPerBlock => {
            let threads_that_fit = ceilings.register_threads.unwrap_or(0);
            let threads_that_fit = u64::try_from(threads_that_fit).unwrap_or(u64::MAX);
            let remedy = Remedy::FewerRegisters { threads: threads_that_fit };
            let registers = limits.registers_per_block(threads);
            report(None, registers, device.max_registers_per_block, of_device(), remedy);
        }
        Rule::SharedMemoryTotal => {
            let static_bytes = kernel.static_shared_bytes;
            let dynamic_bytes = ceilings.shared_room_bytes.unwrap_or(0);
            let total = u128::from(static_bytes) + u128::from(request.dynamic_shared_bytes);
            let limit =
                device.max_shared_bytes_per_block_opt_in.max(device.max_shared_bytes_per_block);
            let remedy = Remedy::LessSharedMemory { dynamic_bytes, static_bytes };
            report(None, total, limit, of_device(), remedy);
        }
        Rule::DynamicSharedMemoryOptIn => {
            let requested = request.dynamic_shared_bytes.into();
            let device_bytes = ceilings.shared_room_bytes.unwrap_or(0);
            let limit = ceilings.dynamic_shared_bytes;
            report(None, requested, limit, of_kernel(), Remedy::OptIn { device_bytes });
        }
        Rule::CooperativeUnsupported => report(None, 1, 0, of_device(), Remedy::NotCooperative),
        Rule::DependentUnsupported => report(None, 1, 0, of_device(), Remedy::NotDependent),
        Rule::ParameterBytes => {
            let limit = device.max_parameter_bytes;
            let requested = request.parameter_bytes.into();
            report(None, requested, limit, of_device(), Remedy::PassByPointer);
        }
        Rule::ClusterUnsupported
        | Rule::ClusterSize
        | Rule::ClusterDividesGrid
        | Rule::ClusterRequired => explain_cluster_rule(rule, request, limits, out),
        // Explained where what the device holds at once is known.
        Rule::ClusterResidency | Rule::CooperativeResidency => {}
        // Broken by plans, not by a single request; the planner explains them.
        Rule::IndexWidth
        | Rule::WorkspaceMemory
        | Rule::BatchCoversGrid
        | Rule::SplitCooperative
        | Rule::SplitCluster
        | Rule::SplitAlignment
        | Rule::SplitItem
        | Rule::FoldUnavailable => {}
    }
}

fn explain_cluster_rule(
    rule: Rule,
    request: &LaunchRequest,
    limits: &LaunchLimits,
    out: &mut Violations,
) {
    let kernel = limits.kernel();
    let of_device = || Owner::Device(limits.device().name.clone());
    let of_kernel = || Owner::Kernel(kernel.name.clone());
    let mut report = |axis, requested: u128, limit, owner, remedy| {
        out.push(Violation { rule, axis, requested, limit, owner, remedy });
    };
    let use_cluster = Remedy::UseCluster { cluster: kernel.required_cluster };
    let Some(cluster) = request.cluster_with(kernel) else {
        report(None, 0, 1, of_kernel(), use_cluster);
        return;
    };
    match rule {
        Rule::ClusterUnsupported => {
            report(None, cluster.volume(), 0, of_device(), Remedy::NoCluster);
        }
        Rule::ClusterSize if cluster.has_zero() => {
            for axis in Axis::ALL.into_iter().filter(|axis| cluster.along(*axis) == 0) {
                report(Some(axis), 0, 1, Owner::Cuda, Remedy::AtLeastOne);
            }
        }
        Rule::ClusterSize => {
            let limit = limits.ceilings().cluster_blocks;
            let non_portable = !kernel.non_portable_cluster_allowed
                && cluster.volume() <= NON_PORTABLE_CLUSTER_BLOCKS.into();
            let remedy = Remedy::SmallerCluster { non_portable };
            report(None, cluster.volume(), limit, of_device(), remedy);
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
        Rule::ClusterRequired => match (request.named_cluster(), kernel.required_cluster) {
            (Some(cluster), Some(required)) => {
                let differs = |axis: &Axis| cluster.along(*axis) != required.along(*axis);
                for axis in Axis::ALL.into_iter().filter(differs) {
                    let (blocks, limit) = (cluster.along(axis), required.along(axis));
                    report(Some(axis), blocks.into(), limit, of_kernel(), use_cluster.clone());
                }
            }
            _ => report(None, 0, 1, of_kernel(), use_cluster),
        },
        _ => {}
    }
}

fn split_axis(axis: Axis, grid: Dim3, limit: Dim3) -> Remedy {
    let blocks = grid.along(axis);
    let launches = blocks.div_ceil(limit.along(axis).max(1)).max(1);
    let folded = grid.x.checked_mul(blocks).is_some_and(|x| x <= limit.x);
    Remedy::SplitAxis {
        axis,
        launches,
        blocks: blocks.div_ceil(launches),
        fold: axis != Axis::X && folded,
    }
}
