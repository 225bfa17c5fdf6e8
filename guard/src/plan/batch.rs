//! Batch axes: which axis of a grid holds independent items, and what each item needs.

use core::num::NonZeroU64;

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::limits::kernel::KernelLimits;
use crate::limits::launch::LaunchLimits;

/// Declares that the blocks along one axis of the grid belong to independent items, so that the launch may be split
/// along it.
///
/// ```
/// use gridguard::{Axis, BatchAxis};
/// // 15,360 items of 5 heads each on y: 76,800 blocks.
/// let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);
/// assert_eq!(batch.blocks(15_360), Some(76_800));
/// ```
///
/// # What a kernel sees of a chunk
///
/// Each chunk is a separate launch. Along the axis, `blockIdx` begins at 0 and `gridDim` is the size of the chunk, not
/// of the batch. Pointers to items point to the chunk's first item; `offset` is the number of this item, and `length`
/// the number of the chunk's items. Every other value is the same in all chunks. A kernel may be split if it finds its
/// items by these values alone:
///
/// - It takes the number of items from a `length` argument. A total that is passed by value stays the total.
///   If several items share a block, the last block of a chunk then runs past the chunk's end. A loop with a
///   stride of `gridDim` runs on through the batch. If blocks share items, a split launch of [`RawArgs`](crate::RawArgs) or `Args` rejects an integer
///   that equals their number ([`ArgsError::TotalInChunks`](crate::ArgsError::TotalInChunks)), unless it
///   is passed with [`constant`](crate::RawArgs::constant). Totals of another unit, such as elements,
///   and those in a struct are not found.
/// - It computes an item's number in the whole batch, for example to index a table that is passed whole, as `offset`
///   plus the item's number in the chunk.
/// - It finds no item by the block index of another axis, which means the same in every chunk.
///
/// A kernel that the guard rewrote (feature `ptx`, `Guard::load_ptx`) needs none of this. If its code contradicts a
/// declared batch, it is not split into chunks.
///
/// ```
/// use gridguard::{Axis, BatchAxis, RawArgs};
/// // __global__ void scale(float *x, float by, unsigned long long n) {
/// //     auto item = blockIdx.x * 8ull + threadIdx.y;
/// //     if (item < n) x[item * 32 + threadIdx.x] *= by;
/// // }
/// let batch = BatchAxis::new(Axis::X, 1_000_001).items_per_block(8);
/// let mut args = RawArgs::new();
/// args.items_at(0x7f00_0000_0000, 32 * 4).value(0.5_f32).length(); // not .value(1_000_001_u64)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[must_use]
pub struct BatchAxis {
    axis: Axis,
    items: u64,
    /// Every `items_per_block` items need `blocks_per_item` blocks: one of the two is 1, unless
    /// several parts of items share a block.
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    blocks_per_item: NonZeroU64,
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    items_per_block: NonZeroU64,
    #[cfg_attr(feature = "serde", serde(default = "one"))]
    align: NonZeroU64,
    #[cfg_attr(feature = "serde", serde(default))]
    elements_per_item: u64,
    #[cfg_attr(feature = "serde", serde(default = "wide_index", deserialize_with = "index_bits"))]
    pub(crate) index_bits: u32,
    #[cfg_attr(feature = "serde", serde(default))]
    workspace_bytes_per_item: u64,
    /// `None` if no limit was declared.
    memory_bytes: Option<u64>,
    #[cfg_attr(feature = "serde", serde(default))]
    foldable: bool,
}

/// The ratio of items to blocks along the axis, in lowest terms: `items` items need `blocks` blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRatio {
    items: u64,
    blocks: u64,
}

impl BlockRatio {
    /// One block per item.
    pub(crate) const ONE: Self = Self { items: 1, blocks: 1 };

    /// Whether a block may work on several items.
    #[cfg(feature = "cuda")]
    pub(crate) const fn shares_blocks(self) -> bool {
        self.items > 1
    }

    /// Blocks that `items` need, the last one possibly in part; `None` past u64.
    #[inline]
    pub(crate) fn blocks(self, items: u64) -> Option<u64> {
        if self.items == 1 {
            return items.checked_mul(self.blocks);
        }
        let blocks = u128::from(items) * u128::from(self.blocks);
        u64::try_from(blocks.div_ceil(u128::from(self.items))).ok()
    }

    /// Items that fit into `blocks`, saturated.
    #[inline]
    fn items(self, blocks: u64) -> u64 {
        if self.items == 1 {
            return blocks / self.blocks;
        }
        let items = u128::from(blocks) * u128::from(self.items) / u128::from(self.blocks);
        u64::try_from(items).unwrap_or(u64::MAX)
    }
}

/// The most elements that a kernel with signed 32-bit indices addresses.
pub(crate) const INDEX_32_ELEMENTS: u64 = 2_147_483_647;

impl BatchAxis {
    /// `items` independent items along `axis`, one block each. A number that is no u64 counts as `u64::MAX`, which no
    /// grid covers.
    pub fn new(axis: Axis, items: impl TryInto<u64>) -> Self {
        Self {
            axis,
            items: items.try_into().unwrap_or(u64::MAX),
            blocks_per_item: NonZeroU64::MIN,
            items_per_block: NonZeroU64::MIN,
            align: NonZeroU64::MIN,
            elements_per_item: 0,
            index_bits: 64,
            workspace_bytes_per_item: 0,
            memory_bytes: None,
            foldable: false,
        }
    }

    /// Each item needs `blocks` consecutive blocks, such as one per head. Zero counts as one.
    pub fn blocks_per_item(self, blocks: impl TryInto<u64>) -> Self {
        self.blocks_per_items(blocks.try_into().unwrap_or(u64::MAX), 1)
    }

    /// Each block works on `items` consecutive items. The last block of each chunk may have fewer items, so the kernel
    /// must read the count from a `length` argument. Zero counts as one.
    pub fn items_per_block(self, items: impl TryInto<u64>) -> Self {
        self.blocks_per_items(1, items.try_into().unwrap_or(u64::MAX))
    }

    /// Every `items` consecutive items need `blocks` blocks, such as 5 heads of 4 items in blocks of
    /// 4 problems each; the last block may have fewer. Zero counts as one.
    ///
    /// ```
    /// use gridguard::{Axis, BatchAxis};
    /// let batch = BatchAxis::new(Axis::Y, 6).blocks_per_items(5, 4);
    /// assert_eq!(batch.blocks(6), Some(8)); // 30 problems, 4 in a block
    /// ```
    pub const fn blocks_per_items(mut self, blocks: u64, items: u64) -> Self {
        self.blocks_per_item = at_least_one(blocks);
        self.items_per_block = at_least_one(items);
        self
    }

    /// Chunks start only at multiples of `items`. Zero counts as one.
    pub const fn align(mut self, items: u64) -> Self {
        self.align = at_least_one(items);
        self
    }

    /// The kernel computes offsets in signed 32-bit integers, and each item has `elements_per_item` elements. A chunk
    /// then addresses at most 2^31 - 1 elements.
    pub const fn index_32_bits(mut self, elements_per_item: u64) -> Self {
        self.elements_per_item = elements_per_item;
        self.index_bits = 32;
        self
    }

    /// Each item of a launch needs `bytes_per_item` of workspace, out of `memory_bytes`.
    pub const fn workspace(mut self, bytes_per_item: u64, memory_bytes: u64) -> Self {
        self.workspace_bytes_per_item = bytes_per_item;
        self.memory_bytes = Some(memory_bytes);
        self
    }

    /// The kernel computes a flat block index such as `blockIdx.x + gridDim.x * (blockIdx.y +
    /// gridDim.y * blockIdx.z)`, so that its result is the same with the axis moved to x.
    pub const fn foldable(mut self) -> Self {
        self.foldable = true;
        self
    }

    /// The axis that holds the items.
    pub const fn axis(&self) -> Axis {
        self.axis
    }

    /// The number of items.
    pub const fn items(&self) -> u64 {
        self.items
    }

    /// Blocks along the axis that `items` need, or `None` past u64.
    #[inline]
    pub fn blocks(&self, items: u64) -> Option<u64> {
        self.share().blocks(items)
    }

    /// The most items of a launch of `blocks` along the axis, within the index width and the
    /// workspace memory.
    pub fn items_within(&self, blocks: u64) -> u64 {
        self.items_in(blocks).min(self.item_cap())
    }

    /// Whether the grid of `request` has exactly the blocks that the items need.
    #[inline]
    pub(crate) fn covers(&self, request: &LaunchRequest) -> bool {
        self.blocks(self.items) == Some(request.grid.along(self.axis))
    }

    #[inline]
    pub(crate) fn share(&self) -> BlockRatio {
        let (items, blocks) = (self.items_per_block.get(), self.blocks_per_item.get());
        // The common case needs no division.
        if items == 1 {
            return BlockRatio { items, blocks };
        }
        let divisor = greatest_common_divisor(items, blocks);
        BlockRatio { items: items / divisor, blocks: blocks / divisor }
    }

    /// Items that fit into `blocks` along the axis.
    pub(crate) fn items_in(&self, blocks: u64) -> u64 {
        self.share().items(blocks)
    }

    /// Whether a launch without a cluster may be folded.
    #[inline]
    pub(crate) fn is_foldable(&self) -> bool {
        self.foldable && self.axis != Axis::X
    }

    /// `request` with the batch axis moved to x, if the kernel supports it and no cluster would be
    /// torn apart.
    pub(crate) fn fold(
        &self,
        request: &LaunchRequest,
        kernel: &KernelLimits,
    ) -> Option<LaunchRequest> {
        let (axis, cluster) = (self.axis, request.cluster_with(kernel));
        let cut = cluster.is_some_and(|cluster| cluster.along(axis) != 1 || cluster.x != 1);
        if !self.is_foldable() || cut {
            return None;
        }
        // Validation reports what exceeds the limit of x.
        let x = request.grid.x.saturating_mul(request.grid.along(axis));
        let grid = request.grid.with(axis, 1).with(Axis::X, x);
        Some(LaunchRequest { grid, ..*request })
    }

    /// The smallest chunk, in items, that keeps the alignment and does not share a block with the next chunk; `None`
    /// past u64. Every chunk but the last is a multiple of this unit.
    #[inline]
    pub fn unit(&self) -> Option<u64> {
        match self.share().items {
            1 => Some(self.align.get()),
            items => least_common_multiple(self.align.get(), items),
        }
    }

    /// The items of the smallest chunk of `request`: the smallest multiple of [`Self::unit`] whose blocks make whole
    /// clusters. `None` past 64 bits.
    #[inline]
    pub fn smallest_chunk(&self, request: &LaunchRequest, limits: &LaunchLimits) -> Option<u64> {
        self.cluster_unit(request.cluster_with(limits.kernel()))
    }

    /// The smallest multiple of [`Self::unit`] whose blocks are a multiple of `cluster`.
    #[inline]
    pub(crate) fn cluster_unit(&self, cluster: Option<Dim3>) -> Option<u64> {
        let unit = self.unit()?;
        let Some(cluster) = cluster else { return Some(unit) };
        let (blocks, cluster) = (self.blocks(unit)?, cluster.along(self.axis));
        let times = cluster / greatest_common_divisor(blocks, cluster).max(1);
        unit.checked_mul(times.max(1))
    }

    /// The most items of a chunk that the kernel's indices can address, and whose workspace fits.
    #[inline]
    pub(crate) fn item_cap(&self) -> u64 {
        self.index_cap().min(self.workspace_cap())
    }

    /// The most items of a chunk that the kernel's indices can address.
    pub(crate) fn index_cap(&self) -> u64 {
        if self.index_bits > 32 {
            return u64::MAX;
        }
        INDEX_32_ELEMENTS.checked_div(self.elements_per_item).unwrap_or(u64::MAX)
    }

    /// The most items of a chunk before an index that was found in the kernel wraps.
    pub(crate) fn items_by_index(&self, request: &LaunchRequest, limits: &LaunchLimits) -> u64 {
        match limits.plain().is_indexed {
            true => self.items_in(limits.index_blocks(self.axis, request.grid, request.block)),
            false => u64::MAX,
        }
    }

    /// The most items of a chunk whose workspace fits.
    pub(crate) fn workspace_cap(&self) -> u64 {
        self.memory_bytes().checked_div(self.workspace_bytes_per_item).unwrap_or(u64::MAX)
    }

    /// The same memory limit if one was declared, else `memory_bytes`.
    #[cfg(feature = "serde")]
    pub(crate) fn or_memory(mut self, memory_bytes: u64) -> Self {
        self.memory_bytes.get_or_insert(memory_bytes);
        self
    }

    /// The batch without its first `done` items. `done` is the end of a chunk.
    pub const fn after(mut self, done: u64) -> Self {
        self.items = self.items.saturating_sub(done);
        self
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.unwrap_or(u64::MAX)
    }

    pub(crate) fn elements(&self, items: u64) -> u128 {
        u128::from(self.elements_per_item) * u128::from(items)
    }

    pub(crate) fn workspace_bytes(&self, items: u64) -> u128 {
        u128::from(self.workspace_bytes_per_item) * u128::from(items)
    }
}

#[cfg(feature = "serde")]
const fn one() -> NonZeroU64 {
    NonZeroU64::MIN
}

#[cfg(feature = "serde")]
const fn wide_index() -> u32 {
    64
}

#[cfg(feature = "serde")]
fn index_bits<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    use serde::de::{Deserialize, Error, Unexpected};
    match u32::deserialize(from)? {
        bits @ (32 | 64) => Ok(bits),
        bits => Err(D::Error::invalid_value(Unexpected::Unsigned(bits.into()), &"32 or 64")),
    }
}

const fn at_least_one(number: u64) -> NonZeroU64 {
    match NonZeroU64::new(number) {
        Some(number) => number,
        None => NonZeroU64::MIN,
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

pub(crate) fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    (a / greatest_common_divisor(a, b).max(1)).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_items_a_block_round_blocks_up_and_chunks_to_whole_blocks() {
        let batch = BatchAxis::new(Axis::X, 100).items_per_block(8).align(12);
        assert_eq!(batch.blocks(100), Some(13));
        assert_eq!(batch.unit(), Some(24));
    }

    #[test]
    fn several_blocks_for_several_items_keep_chunks_to_whole_blocks() {
        // 5 heads per item, 4 problems per block.
        let batch = BatchAxis::new(Axis::Y, 15_361).blocks_per_items(5, 4);
        assert_eq!(batch.blocks(15_361), Some(19_202));
        assert_eq!(batch.unit(), Some(4));
        assert_eq!(batch.items_in(65_535), 52_428);
        assert_eq!(batch.blocks(52_428), Some(65_535));
        // In lowest terms: 6 heads, 4 problems per block.
        let batch = BatchAxis::new(Axis::Y, 8).blocks_per_items(6, 4);
        assert_eq!((batch.unit(), batch.blocks(8)), (Some(2), Some(12)));
        assert_eq!(BatchAxis::new(Axis::Y, u64::MAX).blocks_per_items(5, 4).blocks(u64::MAX), None);
    }

    #[test]
    fn a_cluster_widens_the_unit_until_its_blocks_divide() {
        let on_y = |batch: BatchAxis, y| batch.cluster_unit(Some(Dim3::new(1, y, 1)));
        let batch = BatchAxis::new(Axis::Y, 100).blocks_per_item(6);
        assert_eq!(on_y(batch, 4), Some(2));
        assert_eq!(on_y(batch, 1), Some(1));
        assert_eq!(on_y(batch.align(5), 4), Some(10));
    }

    #[test]
    fn caps_are_absent_where_nothing_is_declared() {
        let batch = BatchAxis::new(Axis::Y, 100);
        assert_eq!((batch.index_cap(), batch.workspace_cap()), (u64::MAX, u64::MAX));
        assert_eq!(batch.index_32_bits(1 << 20).index_cap(), 2047);
        assert_eq!(batch.workspace(1000, 9999).workspace_cap(), 9);
        assert_eq!(batch.workspace(1000, 9999).items_within(65_535), 9);
        assert_eq!(batch.items_within(65_535), 65_535);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_batch_axis_survives_serialization_and_zeros_are_rejected() {
        let batch = BatchAxis::new(Axis::Y, 15_361).blocks_per_items(5, 4).align(12).foldable();
        let text = serde_json::to_string(&batch).expect("JSON");
        let parse = |text: &str| serde_json::from_str::<BatchAxis>(text);
        assert_eq!(parse(&text).expect("an axis"), batch);
        let least = parse(r#"{"axis": "y", "items": 8}"#).expect("defaults");
        assert_eq!(least, BatchAxis::new(Axis::Y, 8));
        for field in ["blocks_per_item", "items_per_block", "align", "index_bits"] {
            let zero = format!(r#"{{"axis": "y", "items": 8, "{field}": 0}}"#);
            let error = parse(&zero).expect_err(field).to_string();
            assert!(error.starts_with("invalid value: integer `0`"), "{error}");
        }
    }
}
