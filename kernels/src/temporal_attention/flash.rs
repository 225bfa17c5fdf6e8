//! How `flash_attention.cu` divides a problem: tiles of queries, blocks of keys, and shared memory.

use super::shape::{COLUMNS, MAX_LONG_FRAMES, NARROW_HEAD_DIM, ROWS, Shape};
use crate::element::ElementType;
use crate::operation::VECTOR_BYTES;

/// The most keys of wide heads, whose sums are computed by blocks of columns: a block of keys has all of them.
const MAX_WIDE_KEYS: u64 = 128;
/// The widest heads of which a warp can keep the sums of two tiles in registers.
pub(super) const PAIRED_HEAD_DIM: u64 = 64;
/// The most warps that share a problem.
const MAX_WARPS: u64 = 16;
/// A problem that needs more shared memory is loaded in blocks of keys. Every device with compute capability 8.0 has as
/// much.
const RESIDENT_BYTES: u64 = 99 << 10;

/// Whether the kernel takes the shape. The shared memory of a device may be too small for it.
pub(super) const fn takes(shape: &Shape, element: ElementType) -> bool {
    let most_keys = if shape.widest() <= NARROW_HEAD_DIM { MAX_LONG_FRAMES } else { MAX_WIDE_KEYS };
    let vector = VECTOR_BYTES / element.bytes();
    shape.head_dim.is_multiple_of(vector)
        && shape.value_dim.is_multiple_of(vector)
        && shape.frames <= MAX_LONG_FRAMES
        && shape.keys <= most_keys
}

/// The division for a shape, a type and a number of warps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// Tiles of queries that a warp multiplies with the same keys.
    tiles: u64,
    /// The most steps of 16 keys whose scores fit into the registers of a warp.
    max_steps: u64,
    /// Whether blocks of keys are loaded one after another.
    pub(super) streamed: bool,
    /// Dynamic shared memory of a problem.
    pub(super) bytes: u64,
}

impl Division {
    pub(super) fn of(shape: &Shape, element: ElementType, warps: u64) -> Self {
        let Shape { frames, keys, head_dim, value_dim, .. } = *shape;
        let widest = shape.widest();
        let (row_tiles, key_steps) = (frames.div_ceil(ROWS), keys.div_ceil(ROWS));
        let is_single = element == ElementType::F32;
        // With more keys than these, some architectures would spill registers.
        let is_long = keys > MAX_WIDE_KEYS;
        let is_paired = row_tiles > 1
            && warps <= row_tiles.div_ceil(2)
            && widest <= PAIRED_HEAD_DIM
            && !(is_single && is_long);
        let tiles = if is_paired { 2 } else { 1 };
        let max_steps = match widest {
            _ if widest > NARROW_HEAD_DIM => 8,
            _ if is_paired && (is_single || (is_long && shape.longest() > 256)) => 2,
            _ if is_paired => 4,
            ..=64 if is_single => 6,
            ..=96 if is_single => 4,
            _ if is_single && !is_long => 2,
            _ if is_single => 1,
            97.. if is_long => 4,
            _ => 8,
        };
        let blocks = key_steps.div_ceil(max_steps);
        let value_tiles = value_dim.div_ceil(COLUMNS);
        let columns = if blocks > 1 || value_tiles <= 10 { value_tiles } else { 8 };
        let tile = |columns: u64| ROWS * columns * element.bytes();
        // f16 and bf16 stage a block of columns in the memory of the queries.
        let staged = if is_single { 0 } else { tile(columns * COLUMNS) };
        let query = tile(head_dim).max(staged);
        let key_and_value = tile(head_dim) + tile(value_dim);
        let resident = row_tiles * query + key_steps * key_and_value;
        let streamed = resident > RESIDENT_BYTES && blocks > 1;
        let in_blocks = warps * tiles * query + 2 * key_steps.div_ceil(blocks) * key_and_value;
        let bytes = if streamed { in_blocks } else { resident };
        Self { tiles, max_steps, streamed, bytes }
    }

    pub(super) fn macros(&self) -> [(&'static str, u64); 4] {
        let Self { tiles, max_steps, streamed, .. } = *self;
        [
            ("QUERY_TILES", tiles),
            ("MAX_STEPS", max_steps),
            ("STREAMED", streamed.into()),
            ("WARPGROUP", 0),
        ]
    }
}

/// The most warps that share a problem.
pub(super) fn most_warps(shape: &Shape) -> u64 {
    shape.frames.div_ceil(ROWS).min(MAX_WARPS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temporal_attention::Variant;

    const F16: ElementType = ElementType::F16;
    const F32: ElementType = ElementType::F32;

    fn division(frames: u64, keys: u64, head_dim: u64, element: ElementType) -> (u64, Division) {
        let shape = Shape::new(1, 1, frames, head_dim).expect("legal");
        let shape = shape.with_keys(keys).expect("legal");
        let warps = Variant::Flash.default_parameters(&shape, element).warps;
        (warps, Division::of(&shape, element, warps))
    }

    #[test]
    fn the_shared_memory_of_a_problem_is_that_of_the_source() {
        let bytes = |frames, keys, head_dim, element| {
            let (warps, division) = division(frames, keys, head_dim, element);
            (warps, division.tiles, division.streamed, division.bytes)
        };
        assert_eq!(bytes(16, 16, 64, F16), (1, 1, false, 6144));
        assert_eq!(bytes(16, 16, 512, F16), (1, 1, false, 49_152));
        assert_eq!(bytes(24, 24, 80, F32), (2, 1, false, 30_720));
        assert_eq!(bytes(81, 81, 40, F32), (6, 1, false, 46_080));
        assert_eq!(bytes(128, 128, 64, F32), (4, 2, false, 98_304));
        assert_eq!(bytes(512, 512, 64, F16), (8, 2, true, 49_152));
        assert_eq!(bytes(512, 512, 128, F16), (8, 1, true, 98_304));
        // q and k of 16 rows each, and v of as many.
        let shape = Shape::new(1, 1, 16, 192).expect("legal").with_value_dim(128).expect("legal");
        assert!(takes(&shape, F16));
        assert_eq!(Division::of(&shape, F16, 1).bytes, 16 * 2 * (2 * 192 + 128));
        assert!(!takes(&shape.with_value_dim(130).expect("legal"), F16));
    }

    #[test]
    fn wide_heads_have_one_block_of_keys() {
        for head_dim in [136, 256, 512] {
            for element in ElementType::ALL {
                let (_, division) = division(128, MAX_WIDE_KEYS, head_dim, element);
                assert!(division.max_steps * ROWS >= MAX_WIDE_KEYS && !division.streamed);
            }
        }
        let wide = Shape::new(1, 1, 16, 136).expect("legal").with_keys(129).expect("legal");
        assert!(!takes(&wide, F16));
    }
}
