//! How blocks share an output that is one span of memory, cut into vectors of 16 bytes.

use crate::element::ElementType;

/// Threads of a block.
pub(crate) const THREADS: u64 = 256;
/// Vectors that a thread fetches before it stores the first: enough bytes in flight to hide the way
/// to memory.
const MOST_STEPS: u64 = 4;

/// Every `tiles` blocks serve `items` items, which lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Items of a group of blocks: several where one does not fill a block.
    pub(crate) items: u64,
    /// Blocks of a group: several where they serve one item.
    pub(crate) tiles: u64,
    /// Vectors of a thread.
    pub(crate) steps: u64,
}

impl Span {
    /// For items of `elements` elements, at least one and less than 2^62; `aligned` where every
    /// group of items begins at a multiple of 16 bytes.
    pub(crate) fn new(elements: u64, element: ElementType, aligned: bool) -> Self {
        let width = vector_elements(element);
        // A span that begins elsewhere begins with a vector that is cut.
        let cut = if aligned { 0 } else { width - 1 };
        let block = THREADS * MOST_STEPS;
        let items = ((block * width - cut) / elements.max(1)).max(1);
        let vectors = (items * elements + cut).div_ceil(width).max(1);
        let tiles = vectors.div_ceil(block);
        Self { items, tiles, steps: vectors.div_ceil(tiles * THREADS) }
    }

    /// Groups of `items` items, the last one perhaps smaller.
    pub(crate) const fn groups(&self, items: u64) -> u64 {
        items.div_ceil(self.items)
    }
}

/// Elements of 16 bytes.
pub(crate) const fn vector_elements(element: ElementType) -> u64 {
    16 / element.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_a_vector_for_every_element_and_none_is_idle() {
        for element in ElementType::ALL {
            let width = vector_elements(element);
            for aligned in [false, true] {
                for elements in (1..40_000).filter(|n| !aligned || n % width == 0) {
                    let span = Span::new(elements, element, aligned);
                    let cut = if aligned { 0 } else { width - 1 };
                    let vectors = (span.items * elements + cut).div_ceil(width);
                    let Span { items, tiles, steps } = span;
                    assert!(tiles * THREADS * steps >= vectors, "{elements} {span:?}");
                    assert!((tiles - 1) * THREADS * steps < vectors, "{elements} {span:?}");
                    assert!((1..=MOST_STEPS).contains(&steps) && (items == 1 || tiles == 1));
                }
            }
        }
    }

    #[test]
    fn small_items_share_a_block_and_blocks_share_large_items() {
        let span = |elements| Span::new(elements, ElementType::F16, true);
        assert_eq!(span(64 * 64), Span { items: 2, tiles: 1, steps: 4 });
        assert_eq!(span(96 * 96), Span { items: 1, tiles: 2, steps: 3 });
        assert_eq!(span(1 << 20), Span { items: 1, tiles: 128, steps: 4 });
        assert_eq!(span(8), Span { items: 1024, tiles: 1, steps: 4 });
        assert_eq!((span(64 * 64).groups(5), span(64 * 64).groups(0)), (3, 0));
    }
}
