//! Temporal attention, forward: `softmax(scale * q k^T) v` over the frames of each item and head.
//!
//! Video diffusion attends over time at every position of the feature map: batch x height x width
//! items, each of a few heads, each a short sequence of frames. With items x heads on grid y, a
//! 40 x 64 map of 5 heads and batch 6 asks for 76,800 blocks where 65,535 are allowed.

#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "host")]
mod host;
mod reference;

use gridguard::{Axis, BatchAxis, ComputeCapability, Dim3, LaunchRequest};

#[cfg(feature = "cuda")]
pub use device::TemporalAttention;
#[cfg(feature = "host")]
pub use host::run_on_host;
pub use reference::{Deviation, reference, tolerance};

use crate::element::ElementType;
use crate::error::KernelError;

/// Threads of a block of the general kernel.
const THREADS: u64 = 128;
/// Threads of a block of the short kernel.
const WARP: u64 = 32;
/// The most frames whose keys and values a warp holds in registers.
const SHORT_FRAMES: u64 = 32;
/// The first capability with the short kernel's instructions.
const SHORT_FROM: ComputeCapability = ComputeCapability::new(8, 0);
/// The largest head dimension that the kernel carries in registers.
const MAX_HEAD_DIM: u64 = 128;
/// Rows of a tile in shared memory.
const TILE: u64 = 32;

/// The shape `[items, heads, frames, head_dim]` of q, k, v and out, contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Independent positions: batch x height x width.
    pub items: u64,
    /// Heads of an item.
    pub heads: u64,
    /// Frames, over which attention runs.
    pub frames: u64,
    /// Elements of a head.
    pub head_dim: u64,
}

/// Which kernel serves a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Any shape and type, on every architecture.
    General,
    /// Tensor cores straight from registers, compiled for the shape: f16 and bf16, at most 32 frames,
    /// a head dimension that is a multiple of 8, compute capability 8.0 or later. Takes memory at
    /// multiples of 16 bytes.
    Short,
}

/// On which axis the grid numbers items and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Folded on y, where 65,535 blocks are allowed: the layout that overflows.
    FoldedY,
    /// Flat on x, where 2^31 - 1 are.
    FlatX,
}

impl Layout {
    /// Both layouts.
    pub const ALL: [Self; 2] = [Self::FoldedY, Self::FlatX];

    /// The axis.
    #[must_use]
    pub const fn axis(self) -> Axis {
        match self {
            Self::FoldedY => Axis::Y,
            Self::FlatX => Axis::X,
        }
    }
}

impl Shape {
    /// The shape, where the kernel takes it.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for no heads, no frames, or a head dimension outside 1 to 128;
    /// [`KernelError::TooLarge`] past 64 bits. Zero items are allowed: there is nothing to do.
    pub fn new(items: u64, heads: u64, frames: u64, head_dim: u64) -> Result<Self, KernelError> {
        let shape = Self { items, heads, frames, head_dim };
        let refuse =
            |dimension, given, expected| Err(KernelError::Dimension { dimension, given, expected });
        if heads == 0 {
            return refuse("heads", heads, "at least 1");
        }
        if frames == 0 || frames > u64::from(u32::MAX) {
            return refuse("frames", frames, "1 to 4294967295");
        }
        if head_dim == 0 || head_dim > MAX_HEAD_DIM {
            return refuse("head_dim", head_dim, "1 to 128");
        }
        let counted = heads
            .checked_mul(frames)
            .and_then(|per_dim| per_dim.checked_mul(head_dim))
            .and_then(|per_item| per_item.checked_mul(items.max(1)))
            // Room for the bytes of the widest element.
            .and_then(|elements| elements.checked_mul(ElementType::F32.bytes()));
        if counted.is_none() {
            return Err(KernelError::TooLarge { shape: shape.dims().to_vec() });
        }
        Ok(shape)
    }

    /// The dimensions, slowest first.
    #[must_use]
    pub const fn dims(&self) -> [u64; 4] {
        [self.items, self.heads, self.frames, self.head_dim]
    }

    /// Attention problems: items times heads, one block each.
    #[must_use]
    pub const fn problems(&self) -> u64 {
        self.items * self.heads
    }

    /// Elements of one problem in one tensor.
    #[must_use]
    pub const fn elements_per_problem(&self) -> u64 {
        self.frames * self.head_dim
    }

    /// Elements of one item in one tensor.
    #[must_use]
    pub const fn elements_per_item(&self) -> u64 {
        self.heads * self.elements_per_problem()
    }

    /// Elements of one tensor.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.items * self.elements_per_item()
    }

    /// Bytes that must move at least: q, k and v read once, out written once.
    #[must_use]
    pub fn least_bytes(&self, element: ElementType) -> u128 {
        4 * u128::from(self.elements()) * u128::from(element.bytes())
    }

    /// The kernel that serves the shape best on a device of `capability`.
    #[must_use]
    pub fn variant(&self, element: ElementType, capability: ComputeCapability) -> Variant {
        let is_half = matches!(element, ElementType::F16 | ElementType::Bf16);
        let is_short = self.frames <= SHORT_FRAMES && self.head_dim.is_multiple_of(8);
        if is_half && is_short && capability >= SHORT_FROM {
            Variant::Short
        } else {
            Variant::General
        }
    }

    /// The launch of [`Variant::Short`] that covers the whole shape at once, legal or not: a warp for
    /// each item and head.
    pub const fn short_request(&self, layout: Layout) -> LaunchRequest {
        let grid = Dim3::ONE.with(layout.axis(), self.problems());
        LaunchRequest::new(grid, Dim3::new(WARP, 1, 1))
    }

    /// The launch of [`Variant::General`] that covers the whole shape at once, legal or not.
    pub const fn request(&self, layout: Layout) -> LaunchRequest {
        let grid = Dim3::ONE.with(layout.axis(), self.problems());
        // Queries and values in whole float4, keys in an odd number of them.
        let quads = self.head_dim.div_ceil(4);
        let floats = TILE * 4 * (2 * quads + (quads | 1));
        LaunchRequest::new(grid, Dim3::new(THREADS, 1, 1)).dynamic_shared_bytes(floats * 4)
    }

    /// The axis whose items are independent: each takes a block for every head.
    pub const fn batch(&self, layout: Layout) -> BatchAxis {
        BatchAxis::new(layout.axis(), self.items).blocks_per_item(self.heads)
    }

    /// The usual scale of attention: one over the root of the head dimension.
    #[must_use]
    pub fn scale(&self) -> f32 {
        // At most 128, which f32 holds exactly.
        let head_dim = u16::try_from(self.head_dim).unwrap_or(u16::MAX);
        f32::from(head_dim).sqrt().recip()
    }

    /// Checks that `tensor` of `given` elements has the length of the shape.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] with both lengths.
    pub fn check_length(&self, tensor: &'static str, given: usize) -> Result<(), KernelError> {
        let given = u64::try_from(given).unwrap_or(u64::MAX);
        if given == self.elements() {
            return Ok(());
        }
        let shape = self.dims().to_vec();
        Err(KernelError::Length { tensor, shape, expected: self.elements(), given })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_motivating_case_asks_for_76_800_blocks_on_y() {
        let shape = Shape::new(15_360, 5, 16, 64).expect("legal");
        assert_eq!(shape.request(Layout::FoldedY).grid, Dim3::new(1, 76_800, 1));
        assert_eq!(shape.request(Layout::FlatX).grid, Dim3::new(76_800, 1, 1));
        assert_eq!(shape.least_bytes(ElementType::F16), 629_145_600);
    }

    #[test]
    fn the_short_kernel_serves_halves_of_few_frames_on_ampere_and_later() {
        let hopper = ComputeCapability::new(9, 0);
        let shape = |frames, head_dim| Shape::new(1, 1, frames, head_dim).expect("legal");
        assert_eq!(shape(32, 72).variant(ElementType::F16, hopper), Variant::Short);
        assert_eq!(shape(1, 8).variant(ElementType::Bf16, hopper), Variant::Short);
        assert_eq!(shape(33, 64).variant(ElementType::F16, hopper), Variant::General);
        assert_eq!(shape(16, 60).variant(ElementType::F16, hopper), Variant::General);
        assert_eq!(shape(16, 64).variant(ElementType::F32, hopper), Variant::General);
        let turing = ComputeCapability::new(7, 5);
        assert_eq!(shape(16, 64).variant(ElementType::F16, turing), Variant::General);
    }

    #[test]
    fn shapes_that_the_kernel_cannot_take_are_errors() {
        let dimension = |shape: Result<Shape, KernelError>| match shape.expect_err("refused") {
            KernelError::Dimension { dimension, .. } => dimension,
            other => panic!("{other}"),
        };
        assert_eq!(dimension(Shape::new(1, 0, 16, 64)), "heads");
        assert_eq!(dimension(Shape::new(1, 1, 0, 64)), "frames");
        assert_eq!(dimension(Shape::new(1, 1, 16, 129)), "head_dim");
        let error = Shape::new(u64::MAX, 5, 16, 64).expect_err("too large");
        assert_eq!(
            error.to_string(),
            "a tensor of shape [18446744073709551615, 5, 16, 64] has more elements than 64 bits \
             count"
        );
        assert!(Shape::new(0, 5, 16, 64).is_ok());
    }
}
