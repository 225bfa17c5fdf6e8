//! A second implementation of the rules, naive and in `u128`, to compare the guard with.

use std::collections::BTreeSet;

use gridguard::{Axis, DeviceLimits, Dim3, IndexLimit, KernelLimits, LaunchRequest, Rule};

use super::generate::Batch;

/// The largest size that the driver takes.
const DRIVER: u64 = 0xffff_ffff;
/// Elements that signed 32-bit indices reach.
const INDEX_32: u128 = 2_147_483_647;

/// A product that is only compared: past u128 it is above every limit.
fn volume(dim: Dim3) -> u128 {
    let [x, y, z] = [dim.x, dim.y, dim.z].map(u128::from);
    x.saturating_mul(y).saturating_mul(z)
}

fn grid_rule(axis: Axis) -> Rule {
    match axis {
        Axis::X => Rule::GridDimX,
        Axis::Y => Rule::GridDimY,
        Axis::Z => Rule::GridDimZ,
    }
}

/// The rules that `request` breaks as one launch.
pub(super) fn broken(
    request: &LaunchRequest,
    device: &DeviceLimits,
    kernel: &KernelLimits,
) -> BTreeSet<Rule> {
    let mut broken = BTreeSet::new();
    let mut breaks = |rule, is_broken| {
        if is_broken {
            broken.insert(rule);
        }
    };
    let LaunchRequest { grid, block, .. } = *request;
    let block_rules = [Rule::BlockDimX, Rule::BlockDimY, Rule::BlockDimZ];
    for (axis, block_rule) in Axis::ALL.into_iter().zip(block_rules) {
        let at_most = |limit: Dim3| limit.along(axis).min(DRIVER);
        breaks(grid_rule(axis), grid.along(axis) > at_most(device.max_grid));
        breaks(Rule::GridDimZero, grid.along(axis) == 0);
        breaks(block_rule, block.along(axis) > at_most(device.max_block));
        breaks(Rule::BlockDimZero, block.along(axis) == 0);
    }
    let threads = volume(block);
    breaks(Rule::ThreadsPerBlock, threads > device.max_threads_per_block.into());
    let bounds = kernel.max_threads_per_block;
    breaks(Rule::KernelThreadsPerBlock, bounds.is_some_and(|most| threads > most.into()));
    breaks(Rule::RequiredBlock, kernel.required_block.is_some_and(|own| own != block));
    breaks(
        Rule::RegistersPerBlock,
        registers(threads, device, kernel) > device.max_registers_per_block.into(),
    );
    let local = u128::from(kernel.local_bytes_per_thread);
    let [memory, multiprocessors, resident] =
        [device.memory_bytes, device.multiprocessors, device.max_threads_per_multiprocessor]
            .map(u128::from);
    let resident = (multiprocessors * resident).min(u64::MAX.into());
    let of_all = local.saturating_mul(resident);
    breaks(Rule::LocalMemory, local > 523_712 || memory > 0 && of_all > memory);

    let dynamic = u128::from(request.dynamic_shared_bytes);
    let total = u128::from(kernel.static_shared_bytes) + dynamic;
    let ceiling = device.max_shared_bytes_per_block.max(device.max_shared_bytes_per_block_opt_in);
    let too_much = total > ceiling.into();
    breaks(Rule::SharedMemoryTotal, too_much);
    // Without opt-in, what the static part leaves of the default.
    let default = device.max_shared_bytes_per_block.saturating_sub(kernel.static_shared_bytes);
    let opted_in = kernel.max_dynamic_shared_bytes.unwrap_or(default).min(DRIVER);
    breaks(Rule::DynamicSharedMemoryOptIn, !too_much && dynamic > opted_in.into());

    breaks(Rule::CooperativeUnsupported, request.cooperative && !device.cooperative_launch);
    let co_resident = co_resident_blocks(request, device, kernel);
    let too_many = co_resident > 0 && volume(grid) > co_resident;
    breaks(Rule::CooperativeResidency, request.cooperative && too_many);
    let early = device.compute_capability.major < 9;
    breaks(Rule::DependentUnsupported, request.dependent && early);
    breaks(Rule::IndexWrap, kernel.index.iter().any(|index| wraps(index, grid, block)));
    breaks(Rule::ParameterBytes, request.parameter_bytes > device.max_parameter_bytes);

    // All zeros name no cluster.
    let named = request.cluster.filter(|cluster| *cluster != Dim3::new(0, 0, 0));
    match named.or(kernel.required_cluster) {
        None => breaks(Rule::ClusterRequired, kernel.cluster_must_be_set),
        Some(cluster) if !device.cluster_launch => {
            breaks(Rule::ClusterUnsupported, cluster != Dim3::ONE);
        }
        Some(cluster) => {
            let own = kernel.required_cluster;
            breaks(Rule::ClusterRequired, own.is_some_and(|own| own != cluster));
            let most = if kernel.non_portable_cluster_allowed {
                device.max_portable_cluster_blocks.max(16)
            } else {
                device.max_portable_cluster_blocks
            };
            for axis in Axis::ALL {
                let (blocks, unit) = (grid.along(axis), cluster.along(axis));
                breaks(Rule::ClusterSize, unit == 0);
                breaks(Rule::ClusterDividesGrid, unit != 0 && blocks % unit != 0);
            }
            breaks(Rule::ClusterSize, volume(cluster) > most.into());
        }
    }
    broken
}

/// Whether an index that depends on an axis of the grid exceeds its limit.
fn wraps(index: &IndexLimit, grid: Dim3, block: Dim3) -> bool {
    let sizes = [grid.x, grid.y, grid.z, block.x, block.y, block.z].map(i128::from);
    let mut reach = 0_i128;
    for term in &index.terms {
        let mut product = i128::from(term.factor);
        for (size, exponent) in sizes.into_iter().zip(term.grid.into_iter().chain(term.block)) {
            for _ in 0..exponent {
                product = product.saturating_mul(size);
            }
        }
        reach = reach.saturating_add(product);
    }
    let has_grid = index.terms.iter().any(|term| term.grid != [0; 3]);
    has_grid && reach > index.most.into()
}

/// Blocks that can be co-resident on the device; 0 where not one fits or the device's size is unknown.
fn co_resident_blocks(
    request: &LaunchRequest,
    device: &DeviceLimits,
    kernel: &KernelLimits,
) -> u128 {
    let threads = volume(request.block);
    let warp = u128::from(device.warp_size.max(1));
    let warps = threads.div_ceil(warp);
    if warps == 0 {
        return 0;
    }
    let by_warps = u128::from(device.max_threads_per_multiprocessor) / warp / warps;
    let partitions = u128::from(device.warp_allocation_granularity.max(1));
    let by_registers = match registers(1, device, kernel) / partitions {
        0 => u128::MAX,
        _ if registers(threads, device, kernel) > device.max_registers_per_block.into() => 0,
        of_warp => {
            let partition = u128::from(device.registers_per_multiprocessor) / partitions;
            partition / of_warp * partitions / warps
        }
    };
    let unit: u128 = if device.compute_capability.major >= 8 { 128 } else { 256 };
    let shared = [
        kernel.static_shared_bytes,
        request.dynamic_shared_bytes,
        device.reserved_shared_bytes_per_block,
    ];
    let shared = shared.map(u128::from).iter().sum::<u128>().div_ceil(unit) * unit;
    let by_shared =
        u128::from(device.shared_bytes_per_multiprocessor).checked_div(shared).unwrap_or(u128::MAX);
    let most = by_warps.min(by_registers).min(by_shared);
    let most = most.min(device.max_blocks_per_multiprocessor.into());
    (most * u128::from(device.multiprocessors)).min(u64::MAX.into())
}

/// Registers of a block of `threads`: whole units for each warp, whole groups of warps.
fn registers(threads: u128, device: &DeviceLimits, kernel: &KernelLimits) -> u128 {
    // A unit of zero counts as one.
    let up = |number: u128, unit: u64| {
        let unit = u128::from(unit.max(1));
        number.div_ceil(unit).saturating_mul(unit)
    };
    let warp = u128::from(device.warp_size);
    let of_warp =
        up(u128::from(kernel.registers_per_thread) * warp, device.register_allocation_unit);
    up(threads.div_ceil(warp.max(1)), device.warp_allocation_granularity).saturating_mul(of_warp)
}

impl Batch {
    /// Blocks that so many items take, zero counting as one.
    fn shares(&self) -> (u128, u128) {
        let (blocks, items) = self.share;
        (blocks.max(1).into(), items.max(1).into())
    }

    /// Blocks along the axis that `items` take.
    pub(super) fn blocks(&self, items: u64) -> u128 {
        let (blocks, of_items) = self.shares();
        (u128::from(items) * blocks).div_ceil(of_items)
    }

    /// Whether a chunk that starts at `item` starts a block.
    pub(super) fn starts_a_block(&self, item: u64) -> bool {
        let (blocks, of_items) = self.shares();
        (u128::from(item) * blocks).is_multiple_of(of_items)
    }

    /// Whether `items` of one launch keep to the index width and the workspace.
    pub(super) fn holds(&self, items: u64) -> bool {
        let items = u128::from(items);
        let indexed = self.elements.is_none_or(|each| items * u128::from(each) <= INDEX_32);
        let worked =
            self.workspace.is_none_or(|(each, memory)| items * u128::from(each) <= memory.into());
        indexed && worked
    }

    /// The most items of a launch of at most `blocks` along the axis.
    pub(super) fn most_items(&self, blocks: u64) -> u128 {
        let (share, of_items) = self.shares();
        let by_blocks = u128::from(blocks) * of_items / share;
        let each = self.elements.filter(|each| *each > 0);
        let by_index = each.map_or(u128::MAX, |each| INDEX_32 / u128::from(each));
        let each = self.workspace.filter(|(each, _)| *each > 0);
        let by_workspace = each.map_or(u128::MAX, |(each, memory)| (memory / each).into());
        by_blocks.min(by_index).min(by_workspace)
    }

    /// The smallest chunk, in items, that starts the next one at the alignment, at a block of its
    /// own and at a whole cluster of `cluster` blocks; none past u64.
    pub(super) fn unit(&self, cluster: u64) -> Option<u64> {
        let (blocks, of_items) = self.shares();
        // Items and blocks end together at regular intervals.
        let whole = of_items / gcd(blocks, of_items);
        let align = u128::from(self.align.max(1));
        let aligned = u64::try_from(align / gcd(align, whole) * whole).ok()?;
        let cluster = u128::from(cluster.max(1));
        let times = cluster / gcd(self.blocks(aligned), cluster);
        u64::try_from(u128::from(aligned) * times).ok()
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    let (mut rest, mut divisor) = (a, b);
    while rest != 0 {
        (rest, divisor) = (divisor % rest, rest);
    }
    divisor
}
