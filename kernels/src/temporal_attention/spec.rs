//! Attention and its gradients as kernels to tune and measure.

use gridguard::DeviceLimits;

use super::backward::{AttentionBackward, SOURCES};
use super::operation::{Layout, TemporalAttention};
use super::reference::{reference, reference_gradients, tolerance};
use super::shape::Shape;
use super::variant::Variant;
use crate::bench::spec::{Input, KernelSpec, SizedProblem, TensorSpec};
use crate::element::{Element, to_usize};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use {super::operation::narrow, gridguard::cuda::Args};

impl KernelSpec for TemporalAttention {
    type Output<T: Element> = T;

    const SOURCES: &'static [&'static str] = &[
        Variant::General.code().1,
        Variant::Short.code().1,
        Variant::Tiled.code().1,
        Variant::Flash.code().1,
        Variant::Warpgroup.code().1,
        Variant::SinglePrecision.code().1,
    ];
    const SHIPPED: &'static str = "f16 15360x5x16x64 15360x5x8x64 61440x5x16x64 25440x15x16x72 \
        15360x5x128x64 15360x5x25x64 15360x5x32x64 9216x10x24x80 bf16 15360x5x16x64 f32 \
        15360x5x16x64";
    const SMALL: &'static str = "f16 64x5x16x64 f32 128x5x16x64";

    /// On grid y, the layout that overflows.
    fn build(problem: &SizedProblem, device: &DeviceLimits) -> Result<Self, KernelError> {
        let [items, heads, frames, head_dim, _] = problem.sizes;
        let shape = Shape::new(items, heads, frames, head_dim)?;
        Ok(Self::new(shape, problem.element, device)?.with_layout(Layout::FoldedY))
    }

    fn tensors(&self) -> TensorSpec {
        let elements = self.shape().elements_per_item();
        TensorSpec::new([Input::Items(elements); 3], elements, tolerance(self.element))
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        let (scale, head) = (self.shape().scale(), to_usize(self.shape().elements_per_problem()));
        let [q, k, v] = [0, 1, 2].map(|tensor| inputs[tensor].chunks(head));
        q.zip(k).zip(v).flat_map(|((q, k), v)| reference(self, scale, [q, k, v], None)).collect()
    }

    #[cfg(feature = "cuda")]
    fn after_tensors(&self, args: &mut Args<'_>) {
        args.length().constant(narrow(self.shape().heads())).value(self.shape().scale());
        self.runtime_sizes().for_each(|size| _ = args.constant(size));
    }
}

impl KernelSpec for AttentionBackward {
    type Output<T: Element> = T;

    const SOURCES: &'static [&'static str] = SOURCES;
    /// Rows of video, tables, windows of images and volumes.
    const SHIPPED: &'static str = "f16 15360x5x16x64 200000x6x11x32 90000x8x64x16 16384x6x49x32 \
        4096x6x144x32 bf16 25440x8x82x32 15360x5x128x64 8000x5x256x64 40000x4x16x256 f32 \
        15360x5x16x64";
    const SMALL: &'static str = "f16 64x5x16x64 f32 128x5x16x64";

    /// As attention, on grid y.
    fn build(problem: &SizedProblem, device: &DeviceLimits) -> Result<Self, KernelError> {
        Self::new(TemporalAttention::build(problem, device)?, device)
    }

    fn tensors(&self) -> TensorSpec {
        let attention = self.attention();
        let elements = attention.shape().elements_per_item();
        let tensors =
            TensorSpec::new([Input::Items(elements); 4], elements, tolerance(attention.element));
        TensorSpec { outputs: vec![elements; 3], ..tensors }
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        let shape = self.attention().shape();
        let head = to_usize(shape.elements_per_problem());
        let [q, k, v, grad] = [0, 1, 2, 3].map(|tensor| inputs[tensor].chunks(head));
        let mut gradients = [Vec::new(), Vec::new(), Vec::new()];
        for (((q, k), v), grad) in q.zip(k).zip(v).zip(grad) {
            let of_head = reference_gradients(self, shape.scale(), [q, k, v, grad], None);
            gradients.iter_mut().zip(of_head).for_each(|(all, one)| all.extend(one));
        }
        gradients.concat()
    }

    #[cfg(feature = "cuda")]
    fn after_tensors(&self, args: &mut Args<'_>) {
        let shape = self.attention().shape();
        args.length().constant(narrow(shape.heads())).value(shape.scale());
    }
}
