//! The shape of a block.

#[cfg(feature = "cuda")]
use gridguard_pipeline::ProductShape;

use crate::element::ElementType;
use crate::error::KernelError;
use crate::operation::{VECTOR_BYTES, check_elements, check_size};
use crate::temporal_attention::{Shape, WIDE_HEAD_DIM};

/// The shape `[items, frames, channels]` of a block's input and output, and its heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockShape {
    channels: u64,
    attention: Shape,
}

impl BlockShape {
    /// The shape, if the kernels support it.
    ///
    /// # Errors
    ///
    /// [`KernelError::NotMultiple`] if the heads do not divide the channels, or these are no multiple of 8,
    /// so that rows are whole vectors of 16 bytes; [`KernelError::Dimension`] and
    /// [`KernelError::TooLarge`] as of [`Shape::new`] and for more than 65,536 channels. Zero items are
    /// allowed.
    pub fn new(items: u64, frames: u64, channels: u64, heads: u64) -> Result<Self, KernelError> {
        check_size("heads", heads, 1..=channels.max(1))?;
        check_size("channels", channels, 1..=MAX_CHANNELS)?;
        for (is_multiple, of) in [
            (channels.is_multiple_of(heads), format!("the {heads} heads")),
            (channels.is_multiple_of(GRANULE), GRANULE.to_string()),
        ] {
            if !is_multiple {
                let (dimension, given) = ("channels", channels);
                return Err(KernelError::NotMultiple { dimension, given, of });
            }
        }
        check_size("head_dim", channels / heads, 1..=WIDE_HEAD_DIM)?;
        let attention = Shape::new(items, heads, frames, channels / heads)?;
        check_elements(&[items, frames, UP, channels])?;
        Ok(Self { channels, attention })
    }

    /// Independent positions: batch x height x width.
    pub const fn items(&self) -> u64 {
        self.attention.items()
    }

    /// Frames, over which attention runs.
    pub const fn frames(&self) -> u64 {
        self.attention.frames()
    }

    /// Channels of a frame: heads times the elements of a head.
    pub const fn channels(&self) -> u64 {
        self.channels
    }

    /// Heads of each attention.
    pub const fn heads(&self) -> u64 {
        self.attention.heads()
    }

    /// Rows of the products: items times frames.
    pub const fn rows(&self) -> u64 {
        self.items() * self.frames()
    }

    /// Elements of an item.
    pub const fn elements_per_item(&self) -> u64 {
        self.frames() * self.channels
    }

    /// Elements of the input, and of the output.
    pub const fn elements(&self) -> u64 {
        self.items() * self.elements_per_item()
    }

    /// Elements of a head.
    pub const fn head_dim(&self) -> u64 {
        self.attention.head_dim()
    }

    /// The shape of each attention.
    pub const fn attention(&self) -> Shape {
        self.attention
    }

    /// The products over the rows of an item: to q, k and v, from attention, before the gate, and after the gate.
    #[cfg(feature = "cuda")]
    pub const fn products(&self) -> [ProductShape; 4] {
        let (rows, channels) = (self.frames(), self.channels);
        let plain =
            ProductShape { rows, inner: channels, columns: channels, bias: true, residual: true };
        [
            ProductShape { columns: 3 * channels, bias: false, residual: false, ..plain },
            plain,
            ProductShape { columns: UP * channels, residual: false, ..plain },
            ProductShape { inner: GATED * channels, ..plain },
        ]
    }

    /// Floating-point operations of the products and of attention, each multiplication and addition counted.
    pub fn operations(&self) -> u128 {
        let [rows, channels, frames] = [self.rows(), self.channels, self.frames()].map(u128::from);
        // q, k, v and out twice, up and down; then scores and values of both attentions.
        2 * rows * channels * (channels * (2 * 4 + 8 + 4) + 2 * 2 * frames)
    }

    /// Bytes that any implementation must move: input read, output written.
    pub fn least_bytes(&self, element: ElementType) -> u128 {
        2 * u128::from(self.elements()) * u128::from(element.bytes())
    }
}

/// Wide models have a few thousand.
const MAX_CHANNELS: u64 = 1 << 16;
/// Channels are multiples of this number, so that rows of every type are whole vectors.
const GRANULE: u64 = VECTOR_BYTES / 2;
/// Columns of the product before the gate, in channels: value and gate.
pub(super) const UP: u64 = 8;
/// Columns after the gate, in channels.
pub(super) const GATED: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_that_the_kernels_do_not_support_are_errors() {
        let refused = |frames, channels, heads| {
            BlockShape::new(1, frames, channels, heads).expect_err("refused").to_string()
        };
        assert_eq!(refused(16, 320, 7), "channels is 320, not a multiple of the 7 heads");
        assert_eq!(refused(16, 20, 5), "channels is 20, not a multiple of 8");
        assert_eq!(refused(16, 320, 1), "head_dim is 320, the kernel takes 1 to 160");
        assert_eq!(refused(0, 320, 5), "frames is 0, the kernel takes 1 to 4294967295");
        assert_eq!(refused(16, 320, 0), "heads is 0, the kernel takes 1 to 320");
        assert_eq!(refused(16, 0, 1), "channels is 0, the kernel takes 1 to 65536");
        assert!(refused(1 << 32, 320, 5).starts_with("frames is"));
        let large = BlockShape::new(1 << 40, 1 << 20, 320, 5).expect_err("too large").to_string();
        assert!(large.contains("more bytes than 64 bits can count"), "{large}");
        assert!(BlockShape::new(0, 16, 320, 5).is_ok());
    }

    #[test]
    fn the_operations_are_those_of_six_products_and_two_attentions() {
        let shape = BlockShape::new(10, 16, 320, 5).expect("legal");
        let product = |columns: u128, inner: u128| 2 * 160 * columns * inner;
        let products = 2 * (product(960, 320) + product(320, 320)) + product(2560, 320);
        let attention = 2 * 2 * (2 * 10 * 5 * 16 * 16 * 64);
        assert_eq!(shape.operations(), products + product(320, 1280) + attention);
    }
}
