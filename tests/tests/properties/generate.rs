//! Numbers, limits, requests and batches where mistakes live: small, at the limits, at the end of
//! u64.

use gridguard::{
    Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchRequest, Strategy as Way,
};
use proptest::prelude::*;

/// Blocks on y and z.
const YZ: u64 = 65_535;

/// Any size.
pub(crate) fn size() -> BoxedStrategy<u64> {
    prop_oneof![
        6 => 0..20_u64,
        3 => 0..5000_u64,
        4 => (1..6_u64, -3..4_i64).prop_map(|(times, off)| (times * YZ).saturating_add_signed(off)),
        2 => (0..64_u32, -2..3_i64).prop_map(|(bit, off)| (1_u64 << bit).saturating_add_signed(off)),
        1 => (0..40_u64).prop_map(|off| u64::MAX - off),
        1 => any::<u64>(),
    ].boxed()
}

/// Mostly a size that is legal where small numbers are.
fn modest() -> BoxedStrategy<u64> {
    prop_oneof![8 => 1..9_u64, 2 => 1..1100_u64, 1 => size()].boxed()
}

pub(crate) fn dim() -> BoxedStrategy<Dim3> {
    (size(), modest(), modest(), 0..3_usize)
        .prop_map(|(large, a, b, place)| {
            let mut sizes = [large, a, b];
            sizes.rotate_right(place);
            Dim3::new(sizes[0], sizes[1], sizes[2])
        })
        .boxed()
}

fn small_dim() -> BoxedStrategy<Dim3> {
    (modest(), modest(), modest()).prop_map(Dim3::from).boxed()
}

/// GPUs of the catalogue, the least of all devices, and made-up ones with small numbers.
pub(crate) fn device() -> BoxedStrategy<DeviceLimits> {
    let gpus = gridguard::catalog::gpus().expect("the catalogue parses");
    let known = (0..gpus.len()).prop_map(|place| DeviceLimits::clone(&gpus[place].limits));
    let made_up = (dim(), small_dim(), size(), size(), any::<(bool, bool)>()).prop_map(
        |(max_grid, max_block, threads, shared, (cooperative, clusters))| DeviceLimits {
            max_grid,
            max_block,
            max_threads_per_block: threads,
            max_shared_bytes_per_block: shared / 2,
            max_shared_bytes_per_block_opt_in: shared,
            cooperative_launch: cooperative,
            cluster_launch: clusters,
            max_portable_cluster_blocks: if clusters { 8 } else { 0 },
            ..DeviceLimits::any_device()
        },
    );
    prop_oneof![4 => known, 1 => Just(DeviceLimits::any_device()), 3 => made_up].boxed()
}

pub(crate) fn kernel() -> BoxedStrategy<KernelLimits> {
    let threads = prop_oneof![3 => Just(u64::MAX), 2 => Just(256), 1 => size()];
    let registers = prop_oneof![2 => Just(0), 4 => 1..256_u64, 1 => size()];
    let shared = prop_oneof![3 => Just(0), 1 => size()];
    let dynamic = prop_oneof![3 => Just(49_152), 1 => Just(u64::MAX), 1 => size()];
    let cluster = prop_oneof![6 => Just(None), 1 => small_dim().prop_map(Some)];
    let flags = (prop::bool::weighted(0.1), any::<bool>());
    (threads, registers, shared, dynamic, cluster, flags)
        .prop_map(|(threads, registers, shared, dynamic, cluster, (must, non_portable))| {
            KernelLimits {
                max_threads_per_block: threads,
                registers_per_thread: registers,
                static_shared_bytes: shared,
                max_dynamic_shared_bytes: dynamic,
                required_cluster: cluster,
                cluster_must_be_set: must,
                non_portable_cluster_allowed: non_portable,
                ..KernelLimits::unknown("k")
            }
        })
        .boxed()
}

pub(crate) fn request() -> BoxedStrategy<LaunchRequest> {
    let block = prop_oneof![
        3 => Just(Dim3::new(128, 1, 1)),
        2 => small_dim(),
        1 => dim(),
    ];
    let shared = prop_oneof![3 => Just(0), 1 => size(), 1 => 49_000..50_000_u64];
    let cluster = prop_oneof![
        4 => Just(None),
        2 => (1..5_u64, 1..5_u64, 1..3_u64).prop_map(|sizes| Some(sizes.into())),
        1 => small_dim().prop_map(Some),
    ];
    let parameters = prop_oneof![3 => 0..4097_u64, 1 => size()];
    let cooperative = prop::bool::weighted(0.15);
    let attributes = (prop::option::weighted(0.2, any::<i32>()), prop::bool::weighted(0.15));
    (dim(), block, shared, cluster, cooperative, parameters, attributes)
        .prop_map(|(grid, block, shared, cluster, cooperative, parameter_bytes, attributes)| {
            let (priority, dependent) = attributes;
            let mut request = LaunchRequest::new(grid, block)
                .dynamic_shared_bytes(shared)
                .parameter_bytes(parameter_bytes);
            request.cluster = cluster;
            request.cooperative = cooperative;
            request.priority = priority;
            request.dependent = dependent;
            request
        })
        .boxed()
}

/// A batch as numbers, since the guard's own tells few of them. Zero blocks, items and alignment are
/// declared as zero, and count as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) axis: Axis,
    pub(crate) items: u64,
    pub(crate) blocks_per_item: Option<u64>,
    pub(crate) items_per_block: Option<u64>,
    pub(crate) align: u64,
    /// Elements of an item, for 32-bit indices.
    pub(crate) elements: Option<u64>,
    /// Bytes of an item, and all there are.
    pub(crate) workspace: Option<(u64, u64)>,
    pub(crate) foldable: bool,
}

impl Batch {
    pub(crate) fn declared(&self) -> BatchAxis {
        let mut batch = BatchAxis::new(self.axis, self.items).align(self.align);
        if let Some(blocks) = self.blocks_per_item {
            batch = batch.blocks_per_item(blocks);
        }
        if let Some(items) = self.items_per_block {
            batch = batch.items_per_block(items);
        }
        if let Some(elements) = self.elements {
            batch = batch.index_32_bits(elements);
        }
        if let Some((bytes, memory)) = self.workspace {
            batch = batch.workspace(bytes, memory);
        }
        if self.foldable {
            batch = batch.foldable();
        }
        batch
    }
}

pub(crate) fn axis() -> BoxedStrategy<Axis> {
    prop_oneof![1 => Just(Axis::X), 3 => Just(Axis::Y), 1 => Just(Axis::Z)].boxed()
}

pub(crate) fn batch() -> BoxedStrategy<Batch> {
    // One of the two at most.
    let share = prop_oneof![
        2 => Just((None, None)),
        3 => modest().prop_map(|blocks| (Some(blocks), None)),
        2 => modest().prop_map(|items| (None, Some(items))),
    ];
    let align = prop_oneof![3 => Just(1), 3 => 1..65_u64, 1 => size()];
    let elements = prop_oneof![3 => Just(None), 1 => size().prop_map(Some)];
    let workspace = prop_oneof![3 => Just(None), 1 => (size(), size()).prop_map(Some)];
    (axis(), size(), share, align, elements, workspace, any::<bool>())
        .prop_map(
            |(
                axis,
                items,
                (blocks_per_item, items_per_block),
                align,
                elements,
                workspace,
                fold,
            )| {
                Batch {
                    axis,
                    items,
                    blocks_per_item,
                    items_per_block,
                    align,
                    elements,
                    workspace,
                    foldable: fold,
                }
            },
        )
        .boxed()
}

/// What a caller or a profile prefers, as numbers and as the guard's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preference {
    pub(crate) most_items: Option<u64>,
    pub(crate) way: Option<Way>,
}

impl Preference {
    pub(crate) fn choice(&self) -> Choice {
        let choice = Choice::at_most(self.most_items.unwrap_or(0));
        self.way.map_or(choice, |way| choice.strategy(way))
    }
}

pub(crate) fn preference() -> BoxedStrategy<Preference> {
    let most_items = prop_oneof![2 => Just(None), 1 => size().prop_map(Some)];
    let way = prop_oneof![
        4 => Just(None),
        1 => Just(Some(Way::Whole)),
        1 => Just(Some(Way::Chunked)),
        1 => Just(Some(Way::Folded)),
    ];
    (most_items, way).prop_map(|(most_items, way)| Preference { most_items, way }).boxed()
}
