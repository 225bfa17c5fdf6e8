//! Generates sizes, limits, requests and batches: small, close to a limit, and close to `u64::MAX`.

use gridguard::{
    Axis, BatchAxis, Choice, ComputeCapability, DeviceLimits, Dim3, IndexLimit, IndexTerm,
    KernelLimits, LaunchRequest, Strategy,
};

use super::bytes::Bytes;

/// Blocks on y and z.
const YZ: u64 = 65_535;

/// Any size.
pub(super) fn size(from: &mut Bytes<'_>) -> u64 {
    match from.one_of([6, 3, 4, 2, 1, 1]) {
        0 => from.within(0..20),
        1 => from.within(0..5000),
        2 => (from.within(1..6) * YZ).saturating_add_signed(from.around_zero(3)),
        3 => (1_u64 << from.within(0..64)).saturating_add_signed(from.around_zero(2)),
        4 => u64::MAX - from.within(0..40),
        _ => from.any(),
    }
}

/// A size that is mostly small.
fn modest(from: &mut Bytes<'_>) -> u64 {
    match from.one_of([8, 2, 1]) {
        0 => from.within(1..9),
        1 => from.within(1..1100),
        _ => size(from),
    }
}

fn dim(from: &mut Bytes<'_>) -> Dim3 {
    let mut sizes = [size(from), modest(from), modest(from)];
    sizes.rotate_right(from.one_of([1, 1, 1]));
    let [x, y, z] = sizes;
    Dim3::new(x, y, z)
}

fn small_dim(from: &mut Bytes<'_>) -> Dim3 {
    Dim3::new(modest(from), modest(from), modest(from))
}

/// A device from the catalogue, the minimum of all devices, or a synthetic one, whose limits may be
/// any numbers that a file can hold.
pub(super) fn device(from: &mut Bytes<'_>) -> DeviceLimits {
    let gpus = gridguard::catalog::gpus().expect("the catalogue parses");
    match from.one_of([4, 1, 3, 1]) {
        0 => {
            let gpus_count = u64::try_from(gpus.len()).expect("few");
            let place = usize::try_from(from.within(0..gpus_count)).expect("few");
            DeviceLimits::clone(&gpus[place].limits)
        }
        1 => DeviceLimits::any_device(),
        2 => synthetic_device(from),
        _ => DeviceLimits {
            compute_capability: ComputeCapability::new(if from.one_in(2) { 9 } else { 5 }, 0),
            warp_size: size(from),
            max_registers_per_block: size(from),
            register_allocation_unit: size(from),
            warp_allocation_granularity: size(from),
            max_portable_cluster_blocks: size(from),
            max_parameter_bytes: size(from),
            multiprocessors: size(from),
            max_threads_per_multiprocessor: size(from),
            max_blocks_per_multiprocessor: size(from),
            registers_per_multiprocessor: size(from),
            shared_bytes_per_multiprocessor: size(from),
            reserved_shared_bytes_per_block: size(from),
            ..synthetic_device(from)
        },
    }
}

fn synthetic_device(from: &mut Bytes<'_>) -> DeviceLimits {
    let (shared, clusters) = (size(from), from.one_in(2));
    DeviceLimits {
        max_grid: dim(from),
        max_block: small_dim(from),
        max_threads_per_block: size(from),
        max_shared_bytes_per_block: shared / 2,
        max_shared_bytes_per_block_opt_in: shared,
        cooperative_launch: from.one_in(2),
        cluster_launch: clusters,
        max_portable_cluster_blocks: if clusters { 8 } else { 0 },
        ..DeviceLimits::any_device()
    }
}

pub(super) fn kernel(from: &mut Bytes<'_>) -> KernelLimits {
    KernelLimits {
        max_threads_per_block: match from.one_of([3, 2, 1]) {
            0 => None,
            1 => Some(256),
            _ => Some(size(from)),
        },
        registers_per_thread: match from.one_of([2, 4, 1]) {
            0 => 0,
            1 => from.within(1..256),
            _ => size(from),
        },
        static_shared_bytes: from.maybe(4, size).unwrap_or(0),
        max_dynamic_shared_bytes: match from.one_of([3, 1, 1]) {
            0 => None,
            1 => Some(u64::MAX),
            _ => Some(size(from)),
        },
        required_cluster: from.maybe(7, small_dim),
        cluster_must_be_set: from.one_in(10),
        non_portable_cluster_allowed: from.one_in(2),
        required_block: from.maybe(15, small_dim),
        ..KernelLimits::unknown("k")
    }
}

/// Limits of indices, mostly none.
pub(super) fn index(from: &mut Bytes<'_>) -> Vec<IndexLimit> {
    let exponents = |from: &mut Bytes<'_>| [0; 3].map(|_: u8| u8::from(from.one_in(3)));
    let limit = |from: &mut Bytes<'_>| {
        let (factor, grid, block) = (size(from), exponents(from), exponents(from));
        let factor = i64::try_from(factor).unwrap_or(i64::MAX);
        let constant = IndexTerm { factor: -factor, ..IndexTerm::default() };
        let terms = vec![IndexTerm { factor, grid, block }, constant];
        IndexLimit { terms, most: if from.one_in(2) { 2_147_483_647 } else { size(from) } }
    };
    match from.one_of([5, 2, 1]) {
        0 => Vec::new(),
        1 => vec![limit(from)],
        _ => vec![limit(from), limit(from)],
    }
}

/// Local memory per thread in bytes, mostly none or close to the limit.
pub(super) fn local_bytes(from: &mut Bytes<'_>) -> u64 {
    match from.one_of([6, 1, 1]) {
        0 => 0,
        1 => from.within(523_700..523_730),
        _ => size(from),
    }
}

pub(super) fn request(from: &mut Bytes<'_>) -> LaunchRequest {
    let grid = dim(from);
    let block = match from.one_of([3, 2, 1]) {
        0 => Dim3::new(128, 1, 1),
        1 => small_dim(from),
        _ => dim(from),
    };
    let dynamic_shared_bytes = match from.one_of([3, 1, 1]) {
        0 => 0,
        1 => size(from),
        _ => from.within(49_000..50_000),
    };
    let cluster = match from.one_of([4, 2, 1]) {
        0 => None,
        1 => Some(Dim3::new(from.within(1..5), from.within(1..5), from.within(1..3))),
        _ => Some(small_dim(from)),
    };
    let cooperative = from.one_in(7);
    let parameter_bytes = match from.one_of([3, 1]) {
        0 => from.within(0..4097),
        _ => size(from),
    };
    let priority = from.maybe(5, |from| i32::try_from(from.around_zero(9)).expect("small"));
    let dependent = from.one_in(7);
    let mut request = LaunchRequest::new(grid, block)
        .dynamic_shared_bytes(dynamic_shared_bytes)
        .parameter_bytes(parameter_bytes);
    request.cluster = cluster;
    request.cooperative = cooperative;
    request.priority = priority;
    request.dependent = dependent;
    request
}

/// A request whose sizes may be any numbers.
pub(super) fn wild_request(from: &mut Bytes<'_>) -> LaunchRequest {
    let mut number = || match from.one_of([6, 1, 1]) {
        0 => size(from),
        1 => u64::MAX,
        _ => 0,
    };
    let mut dim = || Dim3::new(number(), number(), number());
    let (grid, block, cluster) = (dim(), dim(), dim());
    let request = LaunchRequest::new(grid, block).cluster(cluster);
    let mut request = request.dynamic_shared_bytes(number()).parameter_bytes(number());
    request.cooperative = from.one_in(2);
    request
}

/// A batch axis as plain numbers. Zero blocks, items and alignment count as one.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The axis of the grid that the items are on.
    pub axis: Axis,
    /// Items of the whole launch.
    pub items: u64,
    /// Blocks, and the items that they cover.
    pub share: (u64, u64),
    /// Items that a chunk must be a multiple of.
    pub align: u64,
    /// Elements per item, for kernels with 32-bit indices.
    pub elements: Option<u64>,
    /// Workspace bytes per item, and bytes available.
    pub workspace: Option<(u64, u64)>,
    /// Whether the axis may be folded into x.
    pub foldable: bool,
}

impl Batch {
    /// The guard's own type.
    pub fn declared(&self) -> BatchAxis {
        let mut batch = BatchAxis::new(self.axis, self.items).align(self.align);
        batch = match self.share {
            (1, 1) => batch,
            (blocks, 1) => batch.blocks_per_item(blocks),
            (1, items) => batch.items_per_block(items),
            (blocks, items) => batch.blocks_per_items(blocks, items),
        };
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

pub(super) fn batch(from: &mut Bytes<'_>) -> Batch {
    Batch {
        axis: [Axis::Y, Axis::X, Axis::Z][from.one_of([3, 1, 1])],
        items: size(from),
        share: match from.one_of([2, 3, 2, 2]) {
            0 => (1, 1),
            1 => (modest(from), 1),
            2 => (1, modest(from)),
            _ => (modest(from), modest(from)),
        },
        align: match from.one_of([3, 3, 1]) {
            0 => 1,
            1 => from.within(1..65),
            _ => size(from),
        },
        elements: from.maybe(4, size),
        workspace: from.maybe(4, |from| (size(from), size(from))),
        foldable: from.one_in(2),
    }
}

/// What a caller or a profile prefers.
#[derive(Clone, Copy, Debug)]
pub struct Preference {
    /// The most items per launch.
    pub most_items: Option<u64>,
    /// The strategy, where one is preferred.
    pub strategy: Option<Strategy>,
}

impl Preference {
    /// The guard's own type.
    pub fn choice(&self) -> Choice {
        let choice = Choice::at_most(self.most_items.unwrap_or(0));
        self.strategy.map_or(choice, |strategy| choice.strategy(strategy))
    }
}

pub(super) fn preference(from: &mut Bytes<'_>) -> Preference {
    let strategies = [
        None,
        Some(Strategy::Whole),
        Some(Strategy::Chunked),
        Some(Strategy::Folded),
        Some(Strategy::Shifted),
    ];
    Preference {
        most_items: from.maybe(3, |from| if from.one_in(2) { size(from) } else { modest(from) }),
        strategy: strategies[from.one_of([4, 1, 1, 1, 1])],
    }
}
