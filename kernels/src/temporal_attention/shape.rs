//! The shape of q, k, v and out.

use crate::element::ElementType;
use crate::error::KernelError;
use crate::extent::Extent;
use crate::operation::{check_elements, check_size};

/// The largest head dimension. Above 160, a tile of the general kernel is larger than a block's shared memory on Turing,
/// the oldest architecture.
pub const MAX_HEAD_DIM: u64 = 512;

/// Queries or keys in a tile of the tensor cores.
pub(super) const ROWS: u64 = 16;
/// Columns of an instruction of the tensor cores.
pub(super) const COLUMNS: u64 = 8;
/// The most frames, and the most keys, of the flash and warpgroup variants, and of the gradients.
pub const MAX_LONG_FRAMES: u64 = 512;
/// The widest heads of warpgroup instructions, of more than one block of keys, and of f32 without tensor cores, which would
/// spill registers with wider ones unless one tile has all queries and keys.
pub(super) const NARROW_HEAD_DIM: u64 = 128;

/// The shape `[items, heads, frames, head_dim]` of q and out, and `[items, heads, keys, head_dim]` of k and v. v and out
/// may have [another head dimension](Self::with_value_dim).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub(super) items: u64,
    pub(super) heads: u64,
    pub(super) frames: u64,
    pub(super) keys: u64,
    pub(super) head_dim: u64,
    pub(super) value_dim: u64,
}

impl Shape {
    /// The shape with `frames` keys, if a kernel supports it.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for no heads, no frames, or a head dimension outside 1 to 512;
    /// [`KernelError::TooLarge`] if 64 bits cannot count the bytes. Zero items are allowed.
    pub fn new(items: u64, heads: u64, frames: u64, head_dim: u64) -> Result<Self, KernelError> {
        let shape = Self { items, heads, frames, keys: frames, head_dim, value_dim: head_dim };
        check_size("heads", heads, 1..=u64::from(u32::MAX))?;
        check_size("frames", frames, 1..=u64::from(u32::MAX))?;
        check_size("head_dim", head_dim, 1..=MAX_HEAD_DIM)?;
        check_elements(&shape.dims())?;
        Ok(shape)
    }

    /// The same with another number of keys and values, as in cross-attention.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for no keys, [`KernelError::TooLarge`] if 64 bits cannot count the bytes.
    pub fn with_keys(self, keys: u64) -> Result<Self, KernelError> {
        let shape = Self { keys, ..self };
        check_size("keys", keys, 1..=u64::from(u32::MAX))?;
        check_elements(&shape.key_dims())?;
        check_elements(&shape.value_dims())?;
        Ok(shape)
    }

    /// The same with another head dimension of v and out, which [`Variant::Flash`](super::Variant::Flash) takes.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] outside 1 to 512, [`KernelError::TooLarge`] if 64 bits cannot count the bytes.
    pub fn with_value_dim(self, value_dim: u64) -> Result<Self, KernelError> {
        let shape = Self { value_dim, ..self };
        check_size("value_dim", value_dim, 1..=MAX_HEAD_DIM)?;
        check_elements(&shape.value_dims())?;
        check_elements(&shape.out_dims())?;
        Ok(shape)
    }

    /// Independent positions: batch x height x width.
    pub const fn items(&self) -> u64 {
        self.items
    }

    /// Heads of an item.
    pub const fn heads(&self) -> u64 {
        self.heads
    }

    /// Frames: the queries of each head.
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Keys and values of each head. If attention runs over the frames themselves, their number.
    pub const fn keys(&self) -> u64 {
        self.keys
    }

    /// Elements of a head of q and k.
    pub const fn head_dim(&self) -> u64 {
        self.head_dim
    }

    /// Elements of a head of v and out.
    pub const fn value_dim(&self) -> u64 {
        self.value_dim
    }

    /// The dimensions of q, slowest first.
    pub const fn dims(&self) -> [u64; 4] {
        [self.items, self.heads, self.frames, self.head_dim]
    }

    /// The dimensions of k, slowest first.
    pub const fn key_dims(&self) -> [u64; 4] {
        [self.items, self.heads, self.keys, self.head_dim]
    }

    /// The dimensions of v, slowest first.
    pub const fn value_dims(&self) -> [u64; 4] {
        [self.items, self.heads, self.keys, self.value_dim]
    }

    /// The dimensions of out, slowest first.
    pub const fn out_dims(&self) -> [u64; 4] {
        [self.items, self.heads, self.frames, self.value_dim]
    }

    /// The dimensions of a tensor of [`Folded`](super::Folded) by its position.
    pub(super) const fn tensor_dims(&self, tensor: usize) -> [u64; 4] {
        match (has_keys(tensor), has_values(tensor)) {
            (false, false) => self.dims(),
            (true, false) => self.key_dims(),
            (true, true) => self.value_dims(),
            (false, true) => self.out_dims(),
        }
    }

    /// Whether the heads of k and v have the same width.
    pub(super) const fn has_equal_widths(&self) -> bool {
        self.head_dim == self.value_dim
    }

    /// Whether profiles may have entries for it: their keys have one length and one head dimension.
    #[cfg(feature = "cuda")]
    pub(super) const fn is_in_profiles(&self) -> bool {
        self.keys == self.frames && self.has_equal_widths()
    }

    /// The widest heads.
    pub(super) const fn widest(&self) -> u64 {
        if self.head_dim > self.value_dim { self.head_dim } else { self.value_dim }
    }

    /// The dimensions of the scores, and of a bias: `[items, heads, frames, keys]`.
    pub const fn score_dims(&self) -> [u64; 4] {
        [self.items, self.heads, self.frames, self.keys]
    }

    /// The extent of one bias, `[frames, keys]` and contiguous, for every item and head.
    pub const fn shared_bias(&self) -> Extent<4> {
        Extent::strided(self.score_dims(), [0, 0, self.keys, 1])
    }

    /// Whether a bias of this extent is shared by all items and heads. The strides of axes of one element do not
    /// matter.
    pub(super) fn is_shared_bias(&self, bias: &Extent<4>) -> bool {
        let mut axes = bias.dims.into_iter().zip(bias.strides).zip(self.shared_bias().strides);
        axes.all(|((size, stride), shared)| size == 1 || stride == shared)
    }

    /// The macros of a kernel compiled for the shape.
    pub(super) const fn macros(&self) -> [(&'static str, u64); 3] {
        [("FRAMES", self.frames), ("KEYS", self.keys), ("HEAD_DIM", self.head_dim)]
    }

    /// The longer one of queries and keys.
    pub(super) const fn longest(&self) -> u64 {
        if self.frames > self.keys { self.frames } else { self.keys }
    }

    /// Attention problems: items times heads.
    pub const fn problems(&self) -> u64 {
        self.items * self.heads
    }

    /// Elements of one problem in q, and in out if v is as wide as k.
    pub const fn elements_per_problem(&self) -> u64 {
        self.frames * self.head_dim
    }

    /// Elements of one problem in k, and in v if it is as wide.
    pub const fn key_elements_per_problem(&self) -> u64 {
        self.keys * self.head_dim
    }

    /// Elements of one item in q, and in out if v is as wide as k.
    pub const fn elements_per_item(&self) -> u64 {
        self.heads * self.elements_per_problem()
    }

    /// Elements of q, and of out if v is as wide as k.
    pub const fn elements(&self) -> u64 {
        self.items * self.elements_per_item()
    }

    /// Bytes that any implementation must move: q, k and v read once, out written once.
    pub fn least_bytes(&self, element: ElementType) -> u128 {
        let rows = u128::from(self.frames) + u128::from(self.keys);
        let elements = rows * u128::from(self.head_dim + self.value_dim);
        u128::from(self.problems()) * elements * u128::from(element.bytes())
    }

    /// The usual scale of attention: 1 / sqrt(head dimension).
    pub fn scale(&self) -> f32 {
        // At most 512, which f32 holds exactly.
        let head_dim = u16::try_from(self.head_dim).unwrap_or(u16::MAX);
        f32::from(head_dim).sqrt().recip()
    }
}

/// Whether a tensor of [`Folded`](super::Folded) has keys instead of frames, by its position: k, v, dk and dv do.
pub(super) const fn has_keys(tensor: usize) -> bool {
    matches!(tensor % 4, 1 | 2)
}

/// Whether a tensor of [`Folded`](super::Folded) has the head dimension of v, by its position: v, out or grad, and dv.
pub(super) const fn has_values(tensor: usize) -> bool {
    matches!(tensor, 2 | 3 | 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_bytes_are_three_reads_and_one_write() {
        let shape = Shape::new(15_360, 5, 16, 64).expect("legal");
        assert_eq!(shape.least_bytes(ElementType::F16), 629_145_600);
        let cross = shape.with_keys(80).expect("legal");
        assert_eq!(cross.least_bytes(ElementType::F16), 3 * 629_145_600);
        let wide = cross.with_value_dim(128).expect("legal");
        assert_eq!(wide.least_bytes(ElementType::F16), 3 * 629_145_600 / 2 * 3);
        assert_eq!(wide.out_dims(), [15_360, 5, 16, 128]);
        assert_eq!(wide.value_dims(), [15_360, 5, 80, 128]);
    }

    #[test]
    fn shapes_that_no_kernel_supports_are_errors() {
        let dimension = |shape: Result<Shape, KernelError>| match shape.expect_err("refused") {
            KernelError::Dimension { dimension, .. } => dimension,
            other => panic!("{other}"),
        };
        assert_eq!(dimension(Shape::new(1, 0, 16, 64)), "heads");
        assert_eq!(dimension(Shape::new(1, 1, 0, 64)), "frames");
        assert_eq!(dimension(Shape::new(1, 1, 16, 513)), "head_dim");
        let shape = Shape::new(1, 1, 16, 64).expect("legal");
        assert_eq!(dimension(shape.with_keys(0)), "keys");
        assert_eq!(dimension(shape.with_value_dim(0)), "value_dim");
        assert_eq!(dimension(shape.with_value_dim(513)), "value_dim");
        let error = Shape::new(u64::MAX, 5, 16, 64).expect_err("too large");
        assert_eq!(
            error.to_string(),
            "a tensor of shape [18446744073709551615, 5, 16, 64] has more bytes than 64 bits can \
             count"
        );
        assert!(Shape::new(0, 5, 16, 64).is_ok());
    }
}
