//! Which axis of a grid holds independent items, and what each item takes.

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;

/// The promise that the blocks along one axis of the grid belong to independent items, so that
/// the launch may be split there.
///
/// ```
/// use gridguard::{Axis, BatchAxis};
/// // 15,360 items of 5 heads each on y: 76,800 blocks.
/// let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);
/// assert_eq!(batch.blocks(15_360), Some(76_800));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[must_use]
pub struct BatchAxis {
    axis: Axis,
    items: u64,
    share: Share,
    #[cfg_attr(feature = "serde", serde(deserialize_with = "at_least_one"))]
    align: u64,
    elements_per_item: u64,
    index_bits: u32,
    workspace_bytes_per_item: u64,
    memory_bytes: u64,
    fold: bool,
}

/// How items and blocks relate along the axis: every `items` of them take `blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "(u64, u64)", into = "(u64, u64)"))]
pub(crate) struct Share {
    items: u64,
    blocks: u64,
}

impl Share {
    /// A block for each item.
    pub(crate) const ONE: Self = Self { items: 1, blocks: 1 };

    /// In lowest terms; zero counts as one.
    fn new(items: u64, blocks: u64) -> Self {
        let (items, blocks) = (items.max(1), blocks.max(1));
        let divisor = greatest_common_divisor(items, blocks);
        Self { items: items / divisor, blocks: blocks / divisor }
    }

    /// Blocks that `items` take, the last one perhaps in part; `None` past u64.
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

impl From<(u64, u64)> for Share {
    fn from((items, blocks): (u64, u64)) -> Self {
        Self::new(items, blocks)
    }
}

impl From<Share> for (u64, u64) {
    fn from(share: Share) -> Self {
        (share.items, share.blocks)
    }
}

/// The most elements that a kernel with signed 32-bit indices addresses.
pub(crate) const INDEX_32_ELEMENTS: u64 = 2_147_483_647;

impl BatchAxis {
    /// `items` independent items along `axis`, one block each.
    pub const fn new(axis: Axis, items: u64) -> Self {
        Self {
            axis,
            items,
            share: Share::ONE,
            align: 1,
            elements_per_item: 0,
            index_bits: 64,
            workspace_bytes_per_item: 0,
            memory_bytes: u64::MAX,
            fold: false,
        }
    }

    /// Each item takes `blocks` consecutive blocks, such as one for each head. Zero counts as one.
    pub fn blocks_per_item(self, blocks: u64) -> Self {
        self.blocks_per_items(blocks, 1)
    }

    /// Each block takes `items` consecutive items; the last one may have fewer. Zero counts as one.
    pub fn items_per_block(self, items: u64) -> Self {
        self.blocks_per_items(1, items)
    }

    /// Every `items` consecutive items take `blocks` blocks, such as 5 heads of 4 items in blocks of
    /// 4 problems each; the last block may have less to do. Zero counts as one.
    ///
    /// ```
    /// use gridguard::{Axis, BatchAxis};
    /// let batch = BatchAxis::new(Axis::Y, 6).blocks_per_items(5, 4);
    /// assert_eq!(batch.blocks(6), Some(8)); // 30 problems, 4 in a block
    /// ```
    pub fn blocks_per_items(mut self, blocks: u64, items: u64) -> Self {
        self.share = Share::new(items, blocks);
        self
    }

    /// Chunks start at multiples of `items` only. Zero counts as one.
    pub const fn align(mut self, items: u64) -> Self {
        self.align = if items == 0 { 1 } else { items };
        self
    }

    /// The kernel computes offsets in signed 32-bit integers and each item has so many elements:
    /// a chunk then addresses at most 2^31 - 1 of them.
    pub const fn index_32_bits(mut self, elements_per_item: u64) -> Self {
        self.elements_per_item = elements_per_item;
        self.index_bits = 32;
        self
    }

    /// Each item of a launch needs so many bytes of workspace, out of `memory_bytes`.
    pub const fn workspace(mut self, bytes_per_item: u64, memory_bytes: u64) -> Self {
        self.workspace_bytes_per_item = bytes_per_item;
        self.memory_bytes = memory_bytes;
        self
    }

    /// As [`Self::workspace`], out of so many `free_bytes` of a device, of which a tenth stays free:
    /// for allocations of others meanwhile, and for what the driver rounds up.
    ///
    /// ```
    /// use gridguard::{Axis, BatchAxis};
    /// // 4 KiB an item, 1 MiB is free: 230 items, where 256 would take all of it.
    /// let batch = BatchAxis::new(Axis::Y, 1000).workspace_within_free(4096, 1 << 20);
    /// assert_eq!(batch.items_within(65_535), 230);
    /// ```
    pub const fn workspace_within_free(self, bytes_per_item: u64, free_bytes: u64) -> Self {
        /// What stays free is one part of so many.
        const KEPT_FREE: u64 = 10;
        self.workspace(bytes_per_item, free_bytes - free_bytes.div_ceil(KEPT_FREE))
    }

    /// The kernel numbers its blocks `blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y *
    /// blockIdx.z)` or the like, so that it gives the same answer with the axis moved to x.
    pub const fn foldable(mut self) -> Self {
        self.fold = true;
        self
    }

    /// The axis that holds the items.
    #[must_use]
    pub const fn axis(&self) -> Axis {
        self.axis
    }

    /// How many items there are.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.items
    }

    /// Blocks along the axis that `items` take, or `None` past u64.
    #[must_use]
    pub fn blocks(&self, items: u64) -> Option<u64> {
        self.share.blocks(items)
    }

    /// The most items of a launch of `blocks` along the axis whose elements the index reaches and
    /// whose workspace fits.
    #[must_use]
    pub fn items_within(&self, blocks: u64) -> u64 {
        self.items_in(blocks).min(self.index_cap()).min(self.workspace_cap())
    }

    pub(crate) const fn share(&self) -> Share {
        self.share
    }

    /// Items that fit into `blocks` along the axis.
    pub(crate) fn items_in(&self, blocks: u64) -> u64 {
        self.share.items(blocks)
    }

    /// `request` with the batch axis moved to x, where the kernel takes it so and no block of
    /// `cluster` would move away from another.
    pub(crate) fn fold(
        &self,
        request: &LaunchRequest,
        cluster: Option<Dim3>,
    ) -> Option<LaunchRequest> {
        let axis = self.axis;
        let cut = cluster.is_some_and(|cluster| cluster.along(axis) != 1 || cluster.x != 1);
        if !self.fold || axis == Axis::X || cut {
            return None;
        }
        // Past u64 it is past the limit of x, which says so.
        let x = request.grid.x.saturating_mul(request.grid.along(axis));
        let grid = request.grid.with(axis, 1).with(Axis::X, x);
        Some(LaunchRequest { grid, ..*request })
    }

    /// The smallest chunk, in items, that keeps the alignment and does not share a block with the
    /// next chunk; `None` past u64. Chunks are multiples of it, but for the last one.
    #[must_use]
    pub fn unit(&self) -> Option<u64> {
        least_common_multiple(self.align, self.share.items)
    }

    /// The smallest multiple of [`Self::unit`] whose blocks are a multiple of `cluster`.
    pub(crate) fn cluster_unit(&self, cluster: u64) -> Option<u64> {
        let unit = self.unit()?;
        let blocks = self.blocks(unit)?;
        let times = cluster / greatest_common_divisor(blocks, cluster).max(1);
        unit.checked_mul(times.max(1))
    }

    /// The most items of a chunk whose elements a 32-bit index reaches.
    pub(crate) fn index_cap(&self) -> u64 {
        if self.index_bits > 32 {
            return u64::MAX;
        }
        INDEX_32_ELEMENTS.checked_div(self.elements_per_item).unwrap_or(u64::MAX)
    }

    /// The most items of a chunk whose workspace fits.
    pub(crate) fn workspace_cap(&self) -> u64 {
        self.memory_bytes.checked_div(self.workspace_bytes_per_item).unwrap_or(u64::MAX)
    }

    /// The items from `done` on, which is where a chunk starts.
    pub(crate) const fn after(mut self, done: u64) -> Self {
        self.items = self.items.saturating_sub(done);
        self
    }

    pub(crate) const fn index_bits(&self) -> u32 {
        self.index_bits
    }

    pub(crate) const fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(crate) fn elements(&self, items: u64) -> u128 {
        u128::from(self.elements_per_item) * u128::from(items)
    }

    pub(crate) fn workspace_bytes(&self, items: u64) -> u128 {
        u128::from(self.workspace_bytes_per_item) * u128::from(items)
    }
}

/// An alignment as [`BatchAxis::align`] takes it.
#[cfg(feature = "serde")]
fn at_least_one<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    <u64 as serde::Deserialize>::deserialize(from).map(|items| items.max(1))
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
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
        // 5 heads of each item, 4 problems in a block.
        let batch = BatchAxis::new(Axis::Y, 15_361).blocks_per_items(5, 4);
        assert_eq!(batch.blocks(15_361), Some(19_202));
        assert_eq!(batch.unit(), Some(4));
        assert_eq!(batch.items_in(65_535), 52_428);
        assert_eq!(batch.blocks(52_428), Some(65_535));
        // In lowest terms: 6 heads, 4 problems in a block.
        let batch = BatchAxis::new(Axis::Y, 8).blocks_per_items(6, 4);
        assert_eq!((batch.unit(), batch.blocks(8)), (Some(2), Some(12)));
        assert_eq!(BatchAxis::new(Axis::Y, u64::MAX).blocks_per_items(5, 4).blocks(u64::MAX), None);
    }

    #[test]
    fn a_cluster_widens_the_unit_until_its_blocks_divide() {
        let batch = BatchAxis::new(Axis::Y, 100).blocks_per_item(6);
        assert_eq!(batch.cluster_unit(4), Some(2));
        assert_eq!(batch.cluster_unit(1), Some(1));
        assert_eq!(batch.align(5).cluster_unit(4), Some(10));
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
    fn data_gives_the_same_axis_and_never_one_that_divides_by_zero() {
        let batch = BatchAxis::new(Axis::Y, 15_361).blocks_per_items(5, 4).align(12).foldable();
        let text = serde_json::to_string(&batch).expect("data");
        assert_eq!(serde_json::from_str::<BatchAxis>(&text).expect("an axis"), batch);
        let zeros = text.replace("[4,5]", "[0,0]").replace("\"align\":12", "\"align\":0");
        assert_ne!(zeros, text);
        let batch: BatchAxis = serde_json::from_str(&zeros).expect("an axis");
        assert_eq!((batch.unit(), batch.items_in(10)), (Some(1), 10));
    }
}
