//! Attention as a kernel to tune and measure.

use gridguard::DeviceLimits;

use super::operation::{Layout, TemporalAttention};
use super::reference::{reference, tolerance};
use super::shape::Shape;
use super::variant::Variant;
use crate::bench::spec::{Input, KernelSpec, ProblemSets, SizedProblem, TensorSpec, sized};
use crate::element::{Element, ElementType, to_usize};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use {
    crate::bench::spec::Lookup,
    crate::kernels::Prepared,
    crate::tensor::{Tensor, TensorMut},
    cudarc::driver::{CudaStream, CudaView, CudaViewMut},
};

impl KernelSpec for TemporalAttention {
    type Output<T: Element> = T;

    const SOURCES: &'static [&'static str] = &[
        Variant::General.code().1,
        Variant::Short.code().1,
        Variant::Tiled.code().1,
        Variant::Warpgroup.code().1,
        Variant::SinglePrecision.code().1,
    ];
    const PROBLEMS: ProblemSets = ProblemSets {
        shipped: [
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
        ],
        between: &[
            sized(ElementType::F16, [30_720, 5, 16, 64]),
            sized(ElementType::F16, [15_360, 5, 20, 64]),
            sized(ElementType::F16, [20_480, 10, 16, 64]),
        ],
        small: &[
            sized(ElementType::F16, [64, 5, 16, 64]),
            sized(ElementType::F32, [128, 5, 16, 64]),
        ],
    };

    /// On grid y, the layout that overflows.
    fn build(problem: &SizedProblem, device: &DeviceLimits) -> Result<Self, KernelError> {
        let [items, heads, frames, head_dim, _] = problem.sizes;
        let shape = Shape::new(items, heads, frames, head_dim)?;
        Ok(Self::new(shape, problem.element, device)?.with_layout(Layout::FoldedY))
    }

    fn tensors(&self) -> TensorSpec {
        let elements = self.shape().elements_per_item();
        TensorSpec {
            inputs: vec![Input::Items(elements); 3],
            output_per_item: elements,
            tolerance: tolerance(self.element),
        }
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        let (scale, head) = (self.shape().scale(), to_usize(self.shape().elements_per_problem()));
        let [q, k, v] = [0, 1, 2].map(|tensor| inputs[tensor].chunks(head));
        q.zip(k).zip(v).flat_map(|((q, k), v)| reference(self, scale, [q, k, v], None)).collect()
    }

    /// In f32, as on the device.
    #[cfg(feature = "host")]
    fn run_on_host<T: Element>(
        &self,
        guard: &gridguard::Guard,
        plan: &gridguard::Plan,
        inputs: &[&[T]],
        out: &mut [T],
    ) -> Result<u64, KernelError> {
        let (scale, qkv) = (self.shape().scale(), [inputs[0], inputs[1], inputs[2]]);
        super::host::run_on_host(guard, plan, self, scale, qkv, None, out, || {})
    }

    #[cfg(feature = "cuda")]
    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        _: Option<&mut Lookup>,
        mut out: CudaViewMut<'_, T>,
    ) -> Result<u64, KernelError> {
        let shape = prepared.operation().shape();
        let qkv = [0, 1, 2].map(|tensor| Tensor::new(&inputs[tensor], shape.dims()));
        prepared.launch(stream, qkv, None, shape.scale(), TensorMut::new(&mut out, shape.dims()))
    }
}
