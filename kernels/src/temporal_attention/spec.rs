//! Attention as a kernel to tune and measure.

use gridguard::DeviceLimits;

use super::operation::{Layout, TemporalAttention};
use super::reference::{reference, tolerance};
use super::shape::Shape;
use super::variant::Variant;
use crate::bench::spec::{Input, KernelSpec, SizedProblem, TensorSpec, sized};
use crate::element::{Element, ElementType, to_usize};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use {super::operation::narrow, gridguard::cuda::Args};

impl KernelSpec for TemporalAttention {
    type Output<T: Element> = T;

    const SOURCES: &'static [&'static str] = &[
        Variant::General.code().1,
        Variant::Short.code().1,
        Variant::Tiled.code().1,
        Variant::Warpgroup.code().1,
        Variant::SinglePrecision.code().1,
    ];
    const SHIPPED: [SizedProblem; 10] = [
        sized(ElementType::F16, [15_360, 5, 16, 64]),
        sized(ElementType::F16, [15_360, 5, 8, 64]),
        sized(ElementType::F16, [61_440, 5, 16, 64]),
        sized(ElementType::F16, [25_440, 15, 16, 72]),
        sized(ElementType::F16, [15_360, 5, 128, 64]),
        sized(ElementType::F16, [15_360, 5, 25, 64]),
        sized(ElementType::F16, [15_360, 5, 32, 64]),
        sized(ElementType::F16, [9216, 10, 24, 80]),
        sized(ElementType::Bf16, [15_360, 5, 16, 64]),
        sized(ElementType::F32, [15_360, 5, 16, 64]),
    ];
    const SMALL: &'static [SizedProblem] =
        &[sized(ElementType::F16, [64, 5, 16, 64]), sized(ElementType::F32, [128, 5, 16, 64])];

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
