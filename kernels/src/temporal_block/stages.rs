//! The stages of the block and the tensors between them: one table for device, host and reference.

use gridguard_pipeline::{Buffer, PipelineBuilder};

use super::shape::BlockShape;
use super::shape::{GATED, UP};
use super::weights::BLOCK_TENSORS;
use crate::element::Element;

/// A tensor between stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    X,
    Y,
    Normed,
    Qkv,
    Attended,
    Up,
    Gated,
}

/// A stage of the block, with values `V` for its weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage<V> {
    pub(super) name: &'static str,
    pub(super) from: Between,
    pub(super) to: Between,
    pub(super) work: Work<V>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Work<V> {
    /// Weight and bias, and whether embeddings of positions are added.
    Norm([V; 2], bool),
    Product(Product<V>),
    Attention,
    /// The gate of the feed-forward, with weight and bias of the product before it.
    Gate([V; 2]),
}

/// A product with a transposed weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product<V> {
    pub(super) weight: V,
    pub(super) bias: Option<V>,
    pub(super) residual: Option<Between>,
}

/// One value for each tensor between stages.
#[derive(Clone, Debug)]
pub(super) struct Tensors<V>([V; 7]);

/// All stages, with weights in the order of [`BLOCK_TENSORS`].
pub(super) fn stages<V: Copy>(weights: [V; BLOCK_TENSORS.len()]) -> [Stage<V>; 12] {
    use Between::{Attended, Gated, Normed, Qkv, Up, X, Y};
    let [scale1, bias1, qkv1, out1, out_bias1, weights @ ..] = weights;
    let [scale2, bias2, qkv2, out2, out_bias2, weights @ ..] = weights;
    let [scale3, bias3, up, up_bias, down, down_bias] = weights;
    let stage = |name, [from, to]: [Between; 2], work| Stage { name, from, to, work };
    let product = |weight, bias, residual| Work::Product(Product { weight, bias, residual });
    [
        stage("norm1", [X, Normed], Work::Norm([scale1, bias1], true)),
        stage("qkv1", [Normed, Qkv], product(qkv1, None, None)),
        stage("attention1", [Qkv, Attended], Work::Attention),
        stage("out1", [Attended, Y], product(out1, Some(out_bias1), Some(X))),
        stage("norm2", [Y, Normed], Work::Norm([scale2, bias2], true)),
        stage("qkv2", [Normed, Qkv], product(qkv2, None, None)),
        stage("attention2", [Qkv, Attended], Work::Attention),
        stage("out2", [Attended, Y], product(out2, Some(out_bias2), Some(Y))),
        stage("norm3", [Y, Normed], Work::Norm([scale3, bias3], false)),
        stage("up", [Normed, Up], product(up, Some(up_bias), None)),
        stage("gate", [Up, Gated], Work::Gate([up, up_bias])),
        stage("down", [Gated, Y], product(down, Some(down_bias), Some(Y))),
    ]
}

impl Between {
    const ALL: [Self; 7] =
        [Self::X, Self::Y, Self::Normed, Self::Qkv, Self::Attended, Self::Up, Self::Gated];

    /// The name, and the elements of a row in channels.
    const fn named(self) -> (&'static str, u64) {
        match self {
            Self::X => ("x", 1),
            Self::Y => ("y", 1),
            Self::Normed => ("normed", 1),
            Self::Qkv => ("qkv", 3),
            Self::Attended => ("attended", 1),
            Self::Up => ("up", UP),
            Self::Gated => ("gated", GATED),
        }
    }

    pub(super) const fn width(self) -> u64 {
        self.named().1
    }
}

impl<V> Tensors<V> {
    pub(super) fn new(value: impl FnMut(Between) -> V) -> Self {
        Self(Between::ALL.map(value))
    }

    #[allow(clippy::as_conversions, reason = "the tensors are numbered")]
    pub(super) const fn get(&self, tensor: Between) -> &V {
        &self.0[tensor as usize]
    }

    #[allow(clippy::as_conversions, reason = "the tensors are numbered")]
    pub(super) fn set(&mut self, tensor: Between, value: V) {
        self.0[tensor as usize] = value;
    }
}

impl<T: Element> Tensors<Buffer<T>> {
    /// Declares the buffers. Without `up`, the product before the gate has no buffer.
    pub(super) fn declare(
        builder: &mut PipelineBuilder<'_>,
        shape: &BlockShape,
        has_up: bool,
    ) -> Self {
        let elements = |tensor: Between| tensor.width() * shape.elements_per_item();
        let x = builder.input("x", elements(Between::X));
        Self::new(|tensor| match tensor {
            Between::X => x,
            Between::Y => builder.output("y", elements(tensor)),
            // Never used.
            Between::Up if !has_up => x,
            _ => builder.scratch(tensor.named().0, elements(tensor)),
        })
    }
}
