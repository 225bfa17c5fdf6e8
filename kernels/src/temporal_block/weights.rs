//! The weights of a block, on the host.

use super::shape::{BlockShape, GATED, UP};
use crate::compare::Compared as _;
use crate::element::{Element, to_u64, to_usize};
use crate::error::KernelError;
use crate::operation::check_size;
use crate::synthetic::synthetic;

/// The weights of a block, row-major as PyTorch's linear layers hold them.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockWeights<T> {
    channels: u64,
    /// In the order of [`BLOCK_TENSORS`].
    pub(super) tensors: [Vec<T>; BLOCK_TENSORS.len()],
    /// The embedding of each frame, or none.
    pub(super) positions: Vec<T>,
}

impl<T: Element> BlockWeights<T> {
    /// Random weights, equal for equal seeds. Products keep the variance of their input, norms scale little, and biases
    /// are small.
    ///
    /// # Errors
    ///
    /// As of [`BlockShape::new`], for a block of one head.
    pub fn random(channels: u64, seed: u64) -> Result<Self, KernelError> {
        // More heads allow no more channels.
        BlockShape::new(0, 1, channels, channels.max(1))?;
        let mut number = 0_u64;
        let tensors = BLOCK_TENSORS.map(|tensor| {
            number += 1;
            let elements = to_usize(tensor.elements(channels));
            let (mean, deviation) = match tensor {
                WeightTensor { columns: 0, is_scale: true, .. } => (1.0, 0.1),
                WeightTensor { columns: 0, .. } => (0.0, 0.1),
                WeightTensor { columns, .. } => {
                    let inner = u32::try_from(columns * channels).unwrap_or(u32::MAX);
                    (0.0, f32::nearest(f64::from(inner).sqrt().recip()))
                }
            };
            let random = synthetic::<f32>(elements, seed.wrapping_mul(31).wrapping_add(number));
            random.into_iter().map(|x| T::narrow(mean + deviation * x)).collect()
        });
        Ok(Self { channels, tensors, positions: Vec::new() })
    }

    /// Weights from tensors in the order of [`BLOCK_TENSORS`], whose sizes must match.
    ///
    /// # Errors
    ///
    /// As of [`Self::random`], and [`KernelError::Length`] for a tensor of another length.
    pub fn from_tensors(
        channels: u64,
        tensors: [Vec<T>; BLOCK_TENSORS.len()],
    ) -> Result<Self, KernelError> {
        // More heads allow no more channels.
        BlockShape::new(0, 1, channels, channels.max(1))?;
        for (tensor, elements) in BLOCK_TENSORS.iter().zip(&tensors) {
            let (expected, given) = (tensor.elements(channels), to_u64(elements.len()));
            if given != expected {
                let sizes = [tensor.rows, tensor.columns];
                let sizes = sizes.into_iter().filter(|size| *size > 0);
                let shape = sizes.map(|size| size * channels).collect();
                let (tensor, expected) = (tensor.name(), expected.into());
                return Err(KernelError::Length { tensor, shape, expected, given });
            }
        }
        Ok(Self { channels, tensors, positions: Vec::new() })
    }

    /// The same with an embedding of the position of each frame, which is added to the input of the attentions:
    /// `[frames, channels]`, of at least as many frames as a block's items have. None if there are none.
    ///
    /// # Errors
    ///
    /// [`KernelError::NotMultiple`] if they are not whole rows.
    pub fn with_positions(self, positions: Vec<T>) -> Result<Self, KernelError> {
        let given = to_u64(positions.len());
        if !given.is_multiple_of(self.channels) {
            let (dimension, of) = ("positions", self.channels.to_string());
            return Err(KernelError::NotMultiple { dimension, given, of });
        }
        Ok(Self { positions, ..self })
    }

    /// Channels of the block.
    pub const fn channels(&self) -> u64 {
        self.channels
    }

    /// Their elements.
    pub fn elements(&self) -> u64 {
        self.tensors.iter().chain([&self.positions]).map(|tensor| to_u64(tensor.len())).sum()
    }

    /// Checks that the weights are of a block of this shape.
    pub(super) fn check(&self, shape: &BlockShape) -> Result<(), KernelError> {
        check_size("channels", shape.channels(), self.channels..=self.channels)?;
        check_positions(shape, to_u64(self.positions.len()))
    }

    /// The same weights as f32.
    pub(super) fn widened(&self) -> BlockWeights<f32> {
        let widen = |tensor: &Vec<T>| tensor.iter().map(|x| x.widen()).collect();
        BlockWeights {
            channels: self.channels,
            tensors: self.tensors.each_ref().map(widen),
            positions: widen(&self.positions),
        }
    }
}

/// Checks that each frame has an embedding, if any has. All embeddings have `elements` elements.
pub(super) fn check_positions(shape: &BlockShape, elements: u64) -> Result<(), KernelError> {
    match elements / shape.channels() {
        0 => Ok(()),
        most => check_size("frames", shape.frames(), 1..=most),
    }
}

/// A tensor of the block: `[rows]`, or `[rows, columns]`, both in channels.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WeightTensor {
    /// Whether it is the factor of a norm.
    is_scale: bool,
    /// Its rows, in channels.
    pub rows: u64,
    /// Its columns, in channels; 0 for a vector.
    pub columns: u64,
    /// The name in diffusers, or the names of the parts whose rows follow each other in the tensor.
    pub in_files: &'static [&'static str],
}

impl WeightTensor {
    /// The name of the tensor, or of its first part.
    pub(super) fn name(&self) -> &'static str {
        self.in_files.first().copied().unwrap_or_default()
    }

    /// Elements of the tensor in a block with `channels` channels.
    pub const fn elements(&self, channels: u64) -> u64 {
        let columns = if self.columns == 0 { 1 } else { self.columns * channels };
        self.rows * channels * columns
    }
}

const fn vector(rows: u64, in_files: &'static [&'static str]) -> WeightTensor {
    WeightTensor { is_scale: false, rows, columns: 0, in_files }
}

const fn scale(in_files: &'static [&'static str]) -> WeightTensor {
    WeightTensor { is_scale: true, ..vector(1, in_files) }
}

const fn matrix([rows, columns]: [u64; 2], in_files: &'static [&'static str]) -> WeightTensor {
    WeightTensor { columns, ..vector(rows, in_files) }
}

/// All tensors of a block, in the order of [`BlockWeights::from_tensors`].
pub const BLOCK_TENSORS: [WeightTensor; 16] = [
    scale(&["norm1.weight"]),
    vector(1, &["norm1.bias"]),
    matrix([3, 1], &["attn1.to_q.weight", "attn1.to_k.weight", "attn1.to_v.weight"]),
    matrix([1, 1], &["attn1.to_out.0.weight"]),
    vector(1, &["attn1.to_out.0.bias"]),
    scale(&["norm2.weight"]),
    vector(1, &["norm2.bias"]),
    matrix([3, 1], &["attn2.to_q.weight", "attn2.to_k.weight", "attn2.to_v.weight"]),
    matrix([1, 1], &["attn2.to_out.0.weight"]),
    vector(1, &["attn2.to_out.0.bias"]),
    scale(&["norm3.weight"]),
    vector(1, &["norm3.bias"]),
    matrix([UP, 1], &["ff.net.0.proj.weight"]),
    vector(UP, &["ff.net.0.proj.bias"]),
    matrix([1, GATED], &["ff.net.2.weight"]),
    vector(1, &["ff.net.2.bias"]),
];

/// The embeddings of positions, which not every block has: `[1, positions, channels]` in files.
#[cfg_attr(
    not(any(feature = "cuda", feature = "safetensors")),
    allow(dead_code, reason = "a name of a buffer and in files")
)]
pub(super) const POSITIONS: &str = "pos_embed.pe";

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn random_weights_repeat_for_a_seed_and_have_the_sizes_of_the_block() {
        let weights = BlockWeights::<f16>::random(64, 1).expect("legal");
        assert_eq!(weights, BlockWeights::random(64, 1).expect("legal"));
        assert_ne!(weights, BlockWeights::random(64, 2).expect("legal"));
        // 20 matrices of channels x channels, and 17 vectors of channels.
        assert_eq!(weights.elements(), 20 * 64 * 64 + 17 * 64);
        assert!(BlockWeights::<f16>::random(12, 1).is_err());
    }

    #[test]
    fn tensors_in_their_order_are_the_weights_if_they_have_the_blocks_sizes() {
        let weights = BlockWeights::<f16>::random(16, 1).expect("legal");
        let made = |tensors| BlockWeights::from_tensors(16, tensors);
        assert_eq!(made(weights.tensors.clone()).as_ref(), Ok(&weights));
        let mut short = weights.tensors;
        short[2].pop();
        let error = made(short.clone()).expect_err("one is missing").to_string();
        let expected = "attn1.to_q.weight has 767 elements, shape [48, 16] has 768";
        assert_eq!(error, expected);
        assert!(BlockWeights::from_tensors(12, short).is_err());
        let names = BLOCK_TENSORS.iter().flat_map(|tensor| tensor.in_files);
        assert_eq!(names.count(), 20);
    }

    #[test]
    fn each_frame_needs_the_embedding_of_its_position_if_there_are_some() {
        let weights = BlockWeights::<f16>::random(8, 1).expect("legal");
        let shape = |frames| BlockShape::new(1, frames, 8, 1).expect("legal");
        assert!(weights.check(&shape(9)).is_ok());
        assert!(weights.clone().with_positions(vec![f16::ONE; 12]).is_err());
        let weights = weights.with_positions(vec![f16::ONE; 16]).expect("two rows");
        assert!(weights.check(&shape(2)).is_ok());
        let error = weights.check(&shape(3)).expect_err("no third row");
        assert_eq!(error.to_string(), "frames is 3, the kernel takes 1 to 2");
    }
}
