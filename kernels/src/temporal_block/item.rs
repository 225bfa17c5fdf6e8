//! The stages on the host, and the reference of an item.

use gridguard::DeviceLimits;

use super::shape::{BlockShape, GATED};
use super::stages::{Between, Product, Stage, Tensors, Work, stages};
use super::weights::BlockWeights;
use crate::compare::{Compared as _, store};
use crate::element::{Element, ElementType, to_usize, widened};
use crate::error::KernelError;
use crate::geglu;
use crate::layer_norm;
use crate::temporal_attention::{self, TemporalAttention};

/// The epsilon of the norms, as PyTorch's default.
pub(super) const EPSILON: f32 = 1e-5;

/// The reference of a block's items: sums are f64, and stages exchange f32.
#[derive(Clone, Debug)]
pub struct BlockReference {
    stages: HostStages,
    weights: BlockWeights<f32>,
}

impl BlockReference {
    /// The reference for these weights.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] if the weights are for another number of channels.
    pub fn new<T: Element>(
        shape: &BlockShape,
        weights: &BlockWeights<T>,
    ) -> Result<Self, KernelError> {
        weights.check(shape)?;
        Ok(Self { stages: HostStages::new(shape)?, weights: weights.widened() })
    }

    /// The output for one item, of `frames * channels` elements.
    pub fn item<T: Element>(&self, x: &[T]) -> Vec<f64> {
        let x: Vec<f32> = x.iter().map(|x| x.widen()).collect();
        let mut tensors =
            Tensors::new(|tensor| vec![0.0; x.len().saturating_mul(to_usize(tensor.width()))]);
        tensors.set(Between::X, x);
        for stage in stages(self.weights.tensors.each_ref()) {
            let Stage { from, to, work, .. } = stage;
            let out = match work {
                Work::Product(Product { residual: Some(residual), .. }) => residual,
                _ => to,
            };
            let mut out = tensors.get(out).clone();
            self.stages.run(work, &self.weights.positions, tensors.get(from), &mut out);
            tensors.set(to, out);
        }
        tensors.get(Between::Y).iter().copied().map(f64::from).collect()
    }
}

/// The largest relative Frobenius error of a correct block.
///
/// Three branches are added to x. Each rounds its intermediate results at most four times (attention alone rounds
/// twice), so its error relative to its own norm is at most [`temporal_attention::tolerance`]. The norm of a branch is
/// at most about the norm of the output. After each branch, y is rounded by half a unit in the last place. Independent
/// errors add as squares: for f16, sqrt(3 * (1e-3)^2 + 3 * (5e-4)^2) is below 2e-3.
pub const fn tolerance(element: ElementType) -> f64 {
    2.0 * temporal_attention::tolerance(element)
}

/// The stages on the host, each over any number of items: in f64, rounded to the elements once.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostStages {
    attention: TemporalAttention,
    scale: f32,
    frames: usize,
    channels: usize,
    head_dim: usize,
}

impl HostStages {
    pub(super) fn new(shape: &BlockShape) -> Result<Self, KernelError> {
        // The result does not depend on device and type.
        let device = DeviceLimits::any_device();
        let attention = TemporalAttention::new(shape.attention(), ElementType::F32, &device)?;
        let [frames, channels, head_dim] =
            [shape.frames(), shape.channels(), shape.head_dim()].map(to_usize);
        Ok(Self { attention, scale: shape.attention().scale(), frames, channels, head_dim })
    }

    /// Runs a stage. The residual of a product, if any, is in `out`.
    pub(super) fn run<T: Element>(
        &self,
        work: Work<&Vec<T>>,
        positions: &[T],
        from: &[T],
        out: &mut [T],
    ) {
        match work {
            Work::Norm(weights, true) => self.norm(from, weights, positions, out),
            Work::Norm(weights, false) => self.norm(from, weights, &[], out),
            Work::Product(product) => self.product(from, product, out),
            Work::Attention => self.attend(from, out),
            Work::Gate(_) => self.gate(from, out),
        }
    }

    /// The norm of rows, plus the embeddings of their positions if there are any.
    fn norm<T: Element>(
        &self,
        x: &[T],
        [weight, bias]: [&Vec<T>; 2],
        positions: &[T],
        out: &mut [T],
    ) {
        let rows = x.chunks(self.channels).zip(out.chunks_mut(self.channels));
        for ((row, out), frame) in rows.zip((0..self.frames).cycle()) {
            let mut normed = layer_norm::reference(row, weight, bias, EPSILON);
            let position = positions.chunks(self.channels).nth(frame).unwrap_or_default();
            for (y, position) in normed.iter_mut().zip(widened(position)) {
                *y += position;
            }
            store(normed, out);
        }
    }

    /// The product of rows with the transposed weight, plus bias and residual if there are any.
    fn product<T: Element>(&self, x: &[T], product: Product<&Vec<T>>, out: &mut [T]) {
        let Product { weight, bias, residual } = product;
        // Only the product of q, k and v has no bias.
        let columns = bias.map_or(3 * self.channels, Vec::len).max(1);
        let inner = (weight.len() / columns).max(1);
        for (row, out) in x.chunks(inner).zip(out.chunks_mut(columns)) {
            let row: Vec<f64> = widened(row).collect();
            for (column, (weight, out)) in weight.chunks(inner).zip(out).enumerate() {
                let dot: f64 = row.iter().zip(widened(weight)).map(|(x, y)| x * y).sum();
                let added = if residual.is_some() { f64::from(out.widen()) } else { 0.0 };
                let bias = bias.and_then(|bias| bias.get(column)).map_or(0.0, |x| x.widen().into());
                *out = T::nearest(dot + bias + added);
            }
        }
    }

    /// Attention of each item and head, out of rows of `[3, heads, head_dim]`.
    fn attend<T: Element>(&self, qkv: &[T], out: &mut [T]) {
        let Self { frames, channels, head_dim, .. } = *self;
        let items = qkv.chunks(3 * frames * channels).zip(out.chunks_mut(frames * channels));
        for (qkv, out) in items {
            for head in (0..channels).step_by(head_dim) {
                let part = |start: usize| -> Vec<T> {
                    let rows = qkv.chunks(3 * channels);
                    let parts = rows.filter_map(|row| row.get(start..start + head_dim));
                    parts.flatten().copied().collect()
                };
                let [q, k, v] = [0, 1, 2].map(|which| part(which * channels + head));
                let attended =
                    temporal_attention::reference(&self.attention, self.scale, [&q, &k, &v], None);
                for (row, values) in out.chunks_mut(channels).zip(attended.chunks(head_dim)) {
                    let out = row.get_mut(head..head + head_dim).unwrap_or_default();
                    store(values.iter().copied(), out);
                }
            }
        }
    }

    fn gate<T: Element>(&self, up: &[T], out: &mut [T]) {
        let columns = self.channels.saturating_mul(to_usize(GATED));
        for (row, out) in up.chunks(2 * columns).zip(out.chunks_mut(columns)) {
            store(geglu::reference(row), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn zero_products_leave_the_input() {
        let shape = BlockShape::new(1, 4, 16, 2).expect("legal");
        let mut weights = BlockWeights::<f32>::random(16, 1).expect("legal");
        weights.tensors.iter_mut().for_each(|tensor| tensor.fill(0.0));
        let x: Vec<f32> = crate::synthetic::synthetic(64, 3);
        let y = BlockReference::new(&shape, &weights).expect("fits").item(&x);
        assert_eq!(y, widened(&x).collect::<Vec<_>>());
    }

    #[test]
    fn frames_attend_within_their_item_and_head() {
        let shape = BlockShape::new(2, 3, 16, 2).expect("legal");
        let stages = HostStages::new(&shape).expect("legal");
        // Equal scores: each head of each item averages its own values.
        let value = |item: u8, frame: u8, channel: u8| f32::from(100 * item + 10 * frame + channel);
        let mut qkv = Vec::new();
        for (item, frame) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
            qkv.extend([0.0; 32]);
            qkv.extend((0..16).map(|channel| value(item, frame, channel)));
        }
        let mut out = vec![f32::NAN; 96];
        stages.attend(&qkv, &mut out);
        for (row, item) in out.chunks(16).zip([0, 0, 0, 1, 1, 1]) {
            assert!(row.iter().zip(0..).all(|(x, channel)| *x == value(item, 1, channel)));
        }
    }

    #[test]
    fn products_are_those_of_the_rows_with_bias_and_residual() {
        let shape = BlockShape::new(1, 1, 8, 1).expect("legal");
        let stages = HostStages::new(&shape).expect("legal");
        let x: Vec<f32> = (0_u8..8).map(f32::from).collect();
        let mut identity = vec![0.0; 64];
        identity.iter_mut().step_by(9).for_each(|x| *x = 2.0);
        let (bias, mut out) = (vec![0.5; 8], vec![100.0; 8]);
        let product = Product { weight: &identity, bias: Some(&bias), residual: Some(Between::Y) };
        stages.product(&x, product, &mut out);
        assert!(out.iter().zip(&x).all(|(out, x)| *out == 2.0 * x + 100.5), "{out:?}");
        stages.product(&x, Product { residual: None, ..product }, &mut out);
        assert!(out.iter().zip(&x).all(|(out, x)| *out == 2.0 * x + 0.5), "{out:?}");
    }

    #[test]
    fn weights_of_other_channels_are_an_error() {
        let shape = BlockShape::new(1, 4, 16, 2).expect("legal");
        let weights = BlockWeights::<f16>::random(24, 1).expect("legal");
        let error = BlockReference::new(&shape, &weights).expect_err("another number");
        assert_eq!(error.to_string(), "channels is 16, the kernel takes 24");
    }
}
