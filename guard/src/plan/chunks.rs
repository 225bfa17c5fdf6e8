//! Divides items into consecutive chunks: an exact cover, balanced and aligned.

/// Consecutive items of a batch that one launch works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Chunk {
    /// The chunk's index in its plan, from 0.
    pub index: u64,
    /// The first item.
    pub start: u64,
    /// The number of items, at least one.
    pub items: u64,
}

impl Chunk {
    /// The only chunk of `items`.
    #[cfg(feature = "cuda")]
    pub(crate) const fn only(items: u64) -> Self {
        Self { index: 0, start: 0, items }
    }

    /// The item after the last one.
    pub const fn end(&self) -> u64 {
        self.start.saturating_add(self.items)
    }
}

/// The chunks of a batch, in order.
///
/// Every item is in exactly one chunk. Every chunk begins at a multiple of the alignment, and every chunk but the last
/// is a multiple of it. Sizes differ by at most one alignment unit.
///
/// ```
/// use gridguard::Chunks;
/// let sizes: Vec<u64> = Chunks::balanced(15_360, 13_107, 1).iter().map(|chunk| chunk.items).collect();
/// assert_eq!(sizes, [7680, 7680]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Chunks {
    items: u64,
    align: u64,
    /// Alignment units of a smaller chunk. Larger chunks have one unit more, and come last.
    units: u64,
    /// The index of the first chunk with one unit more.
    first_larger: u64,
    launches: u64,
}

impl Chunks {
    /// One chunk of all items; none of zero items.
    pub(crate) fn one(items: u64) -> Self {
        Self::balanced(items, items, 1)
    }

    /// Divides `items` into the fewest chunks of whole alignment units of at most `cap` items; the end
    /// of the batch may shorten the last one. A `cap` below `align` counts as one unit, an `align` of
    /// zero as one.
    #[inline]
    pub fn balanced(items: u64, cap: u64, align: u64) -> Self {
        let align = align.max(1);
        // Divisions are most of the cost; a batch without alignment needs two, one chunk none.
        let (all_units, cap) = match align {
            1 => (items, cap),
            _ => (items.div_ceil(align), cap / align),
        };
        let (launches, units) = if all_units <= cap {
            (all_units.min(1), all_units)
        } else {
            let launches = all_units.div_ceil(cap.max(1));
            (launches, all_units.checked_div(launches).unwrap_or(0))
        };
        // Larger chunks come last, so that the end of the batch shortens a larger one and sizes differ
        // by at most one unit.
        let larger = all_units - units * launches;
        Self { items, align, units, first_larger: launches - larger, launches }
    }

    /// The items of all chunks.
    pub const fn items(&self) -> u64 {
        self.items
    }

    /// The number of chunks.
    pub const fn launches(&self) -> u64 {
        self.launches
    }

    /// The items of the largest chunk; 0 if there is none.
    #[inline]
    pub fn largest(&self) -> u64 {
        let Some(others) = self.launches.checked_sub(1) else { return 0 };
        let larger = self.launches - self.first_larger;
        let last = self.items - (self.units * others + larger.saturating_sub(1)) * self.align;
        if others == 0 {
            return last;
        }
        // The end of the batch may make the last chunk shorter than the one before.
        let before = (self.units + u64::from(larger > 1)) * self.align;
        last.max(before)
    }

    /// The chunks, in order.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Chunk> + use<> {
        (0..self.launches).map_while(move |index| self.at(index))
    }

    /// The chunk at `index`, from 0.
    #[inline]
    pub fn at(&self, index: u64) -> Option<Chunk> {
        if index >= self.launches {
            return None;
        }
        // `index` units cover at most all items, so only the last product can exceed u64, and the end of the batch cuts
        // that unit.
        let units_before = self.units * index + index.saturating_sub(self.first_larger);
        let units = self.units + u64::from(index >= self.first_larger);
        let start = units_before.saturating_mul(self.align);
        let end = (units_before + units).saturating_mul(self.align).min(self.items);
        Some(Chunk { index, start, items: end - start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(items: u64, cap: u64, align: u64) -> Vec<u64> {
        Chunks::balanced(items, cap, align).iter().map(|chunk| chunk.items).collect()
    }

    #[test]
    fn zero_items_are_no_chunk() {
        assert_eq!(Chunks::balanced(0, 7, 1).launches(), 0);
        assert_eq!(Chunks::balanced(0, 7, 1).largest(), 0);
    }

    #[test]
    fn chunks_are_balanced_and_the_shortened_one_is_a_larger_one() {
        assert_eq!(sizes(10, 4, 1), [3, 3, 4]);
        assert_eq!(sizes(10, 8, 4), [4, 6]);
        assert_eq!(sizes(8, 8, 4), [8]);
        assert_eq!(sizes(9, 8, 4), [4, 5]);
    }

    #[test]
    fn the_boundary_of_a_grid_axis_is_exact() {
        assert_eq!(sizes(65_535, 65_535, 1), [65_535]);
        assert_eq!(sizes(65_536, 65_535, 1), [32_768, 32_768]);
        assert_eq!(sizes(131_071, 65_535, 1), [43_690, 43_690, 43_691]);
        assert_eq!(sizes(196_606, 65_535, 1), [49_151, 49_151, 49_152, 49_152]);
    }

    #[test]
    fn the_largest_of_sizes_near_u64_max_is_found_without_iterating() {
        let chunks = Chunks::balanced(u64::MAX, 65_535, 8);
        assert_eq!(chunks.launches(), u64::MAX.div_ceil(8).div_ceil(8191));
        assert!(chunks.largest() <= 65_535);
        let last = chunks.at(chunks.launches() - 1).map(|chunk| chunk.end());
        assert_eq!(last, Some(u64::MAX));
    }
}
