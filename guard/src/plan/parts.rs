//! Divides the grid of a rewritten kernel into the parts that are launched.

use crate::dim::{Axis, Dim3, saturated};
use crate::plan::chunks::{Chunk, Chunks};

/// The parts of a grid, balanced along each axis. They are ordered by x, then y, then z.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GridParts {
    grid: Dim3,
    along: [Chunks; 3],
}

/// One part of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GridPart {
    /// The part's index, and its range of linear block indices in the order of the parts.
    pub(crate) blocks: Chunk,
    pub(crate) first: [u32; 3],
    pub(crate) size: [u32; 3],
}

impl GridParts {
    /// Divides `grid` into the fewest parts of at most `largest` blocks along each axis, and at least one `cluster`.
    /// Parts keep clusters whole; zero counts as one.
    pub(crate) fn new(grid: Dim3, largest: Dim3, cluster: Dim3) -> Self {
        let along = Axis::ALL.map(|axis| {
            Chunks::balanced(grid.along(axis), largest.along(axis), cluster.along(axis))
        });
        Self { grid, along }
    }

    /// The size of the largest part.
    pub(crate) fn largest(&self) -> Dim3 {
        let [x, y, z] = self.along.map(|chunks| chunks.largest());
        Dim3::new(x, y, z)
    }

    /// The number of parts; saturated at a number that no device would ever finish.
    pub(crate) fn count(&self) -> u64 {
        let counts = self.along.map(|chunks| chunks.launches());
        counts.into_iter().fold(1, u64::saturating_mul)
    }

    /// The part at `index`, from 0. `None` past the last one, and past 32 bits.
    pub(crate) fn at(&self, index: u64) -> Option<GridPart> {
        let [x, y, z] = self.along;
        // Both are below 2^32, and an index has no more than 64 bits.
        let row = x.launches().checked_mul(y.launches()).filter(|row| *row > 0)?;
        let (in_x, in_y) = (index % x.launches(), index % row / x.launches());
        let (x, y, z) = (x.at(in_x)?, y.at(in_y)?, z.at(index / row)?);
        let first = Dim3::new(x.start, y.start, z.start);
        let size = Dim3::new(x.items, y.items, z.items);
        // The blocks of all earlier parts: whole layers, whole rows of this layer, blocks of this row.
        let layers = self.grid.with(Axis::Z, z.start).volume();
        let rows = Dim3::new(self.grid.x, y.start, z.items).volume();
        let before = Dim3::new(x.start, y.items, z.items).volume();
        let start = layers.saturating_add(rows).saturating_add(before);
        let blocks = Chunk { index, start: saturated(start), items: saturated(size.volume()) };
        Some(GridPart { blocks, first: first.narrow()?, size: size.narrow()? })
    }

    /// All blocks, saturated.
    pub(crate) fn blocks(&self) -> u64 {
        saturated(self.grid.volume())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// How often each block of a small grid is in a part.
    fn visits(grid: Dim3, parts: &GridParts) -> Vec<u32> {
        let place = |[x, y, z]: [u64; 3]| {
            usize::try_from(x + grid.x * (y + grid.y * z)).expect("a small grid")
        };
        let mut visits = vec![0; usize::try_from(grid.volume()).expect("a small grid")];
        let mut start = 0;
        for index in 0..parts.count() {
            let part = parts.at(index).expect("below their number");
            assert_eq!((part.blocks.index, part.blocks.start), (index, start));
            start += part.blocks.items;
            let ([x, y, z], [w, h, d]) = (part.first.map(u64::from), part.size.map(u64::from));
            assert_eq!(part.blocks.items, w * h * d);
            for block in (0..w * h * d).map(|at| [x + at % w, y + at / w % h, z + at / w / h]) {
                visits[place(block)] += 1;
            }
        }
        assert_eq!((start, parts.at(parts.count())), (parts.blocks(), None));
        visits
    }

    proptest! {
        #[test]
        fn every_block_is_in_one_part_within_the_largest(
            clusters in [1_u64..20, 1..20, 1..20], largest in [1_u64..22, 1..22, 1..22],
            cluster in [1_u64..4, 1..4, 1..4],
        ) {
            let grid = [0, 1, 2].map(|axis| (clusters[axis] / cluster[axis]).max(1) * cluster[axis]);
            let largest = [0, 1, 2].map(|axis| largest[axis].max(cluster[axis]));
            let [grid, largest, cluster] =
                [grid, largest, cluster].map(|[x, y, z]| Dim3::new(x, y, z));
            let parts = GridParts::new(grid, largest, cluster);
            prop_assert!(visits(grid, &parts).iter().all(|count| *count == 1));
            let all: Vec<_> = (0..parts.count()).filter_map(|index| parts.at(index)).collect();
            for axis in Axis::ALL {
                prop_assert!(parts.largest().along(axis) <= largest.along(axis));
                let ends = all.iter().flat_map(|part| [part.first, part.size]);
                let mut ends = ends.map(|blocks| Dim3::from(blocks).along(axis));
                prop_assert!(ends.all(|blocks| blocks % cluster.along(axis) == 0));
                let sizes = all.iter().map(|part| Dim3::from(part.size).along(axis));
                prop_assert_eq!(sizes.max(), Some(parts.largest().along(axis)));
            }
            // The largest part stands for them all.
            let again = GridParts::new(grid, parts.largest(), cluster);
            prop_assert_eq!(again.count(), parts.count());
            prop_assert!((0..parts.count()).all(|index| again.at(index) == parts.at(index)));
        }
    }

    #[test]
    fn a_grid_of_2_to_the_96_blocks_has_first_and_later_parts() {
        let most = u64::from(u32::MAX);
        let grid = Dim3::new(most, most, most);
        let parts = GridParts::new(grid, Dim3::new((1 << 31) - 1, 65_535, 65_535), Dim3::ONE);
        assert_eq!(parts.count(), 3 * 65_537 * 65_537);
        let last = parts.at(parts.count() - 1).expect("a last one");
        let end = |axis: usize| last.first[axis].checked_add(last.size[axis]);
        assert_eq!([0, 1, 2].map(end), [Some(u32::MAX); 3]);
        assert_eq!((parts.blocks(), last.blocks.start), (u64::MAX, u64::MAX));
        // One block a launch: more launches than 64 bits count.
        let parts = GridParts::new(grid, Dim3::ONE, Dim3::ONE);
        assert_eq!(parts.count(), u64::MAX);
        assert!(parts.at(u64::MAX - 1).is_some());
    }
}
