//! Attention as a kernel to tune and measure.

use gridguard::profile::Named;

use super::operation::{Layout, TemporalAttention};
use super::parameters::LaunchParameters;
use super::reference::{reference, tolerance};
use super::shape::Shape;
use super::variant::Variant;
use crate::bench::spec::{Input, KernelSpec, ProblemArgs, ProblemSets, TensorSpec, sized};
use crate::element::{Element, ElementType, to_usize};
use crate::error::KernelError;
use crate::tunable::Tunable;

impl Tunable for TemporalAttention {
    const KERNEL: &'static str = "temporal_attention";
    const SIZES: &'static [&'static str] = &["items", "heads", "frames", "head_dim"];

    fn size_values(&self) -> Vec<u64> {
        self.shape().dims().into()
    }

    fn element(&self) -> ElementType {
        TemporalAttention::element(self)
    }

    fn with_items(&self, items: u64) -> Result<Self, KernelError> {
        let Shape { heads, frames, head_dim, .. } = *self.shape();
        Ok(self.with_shape(Shape::new(items, heads, frames, head_dim)?))
    }

    /// `short y causal`: the variant, the grid axis, and the options.
    fn variant(&self) -> String {
        let axis = match self.layout() {
            Layout::FoldedY => "y",
            Layout::FlatX => "x",
        };
        let mut words = vec![TemporalAttention::variant(self).name(), axis];
        let options = [
            ("causal", self.is_causal()),
            ("bias", self.is_biased()),
            ("strided", self.is_strided()),
        ];
        words.extend(options.iter().filter(|(_, set)| *set).map(|(word, _)| *word));
        words.join(" ")
    }

    fn parameters(&self) -> Named {
        named(TemporalAttention::parameters(self))
    }

    fn candidates(&self) -> Vec<Named> {
        TemporalAttention::candidates(self).iter().map(named).collect()
    }

    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        let mut wanted = *TemporalAttention::parameters(self);
        for (name, value) in parameters {
            match name.as_str() {
                "warps" => wanted.warps = *value,
                "problems" => wanted.problems = *value,
                "rounds" => wanted.rounds = *value,
                "stages" => wanted.stages = *value,
                _ => {
                    let (kernel, given) = (Self::KERNEL, name.clone());
                    return Err(KernelError::UnknownParameter { kernel, given, known: KNOWN });
                }
            }
        }
        TemporalAttention::with_parameters(*self, wanted)
    }
}

/// The names of all launch parameters.
const KNOWN: &str = "warps, problems, rounds, stages";

fn named(parameters: &LaunchParameters) -> Named {
    let LaunchParameters { warps, problems, rounds, stages } = *parameters;
    let all = [("warps", warps), ("problems", problems), ("rounds", rounds), ("stages", stages)];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

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
    fn build(problem: &ProblemArgs<'_>) -> Result<Self, KernelError> {
        let [items, heads, frames, head_dim, _] = problem.sizes;
        let shape = Shape::new(items, heads, frames, head_dim)?;
        Ok(Self::new(shape, problem.element, problem.device)?.with_layout(Layout::FoldedY))
    }

    fn tensors(&self) -> TensorSpec {
        let elements = self.shape().elements_per_item();
        TensorSpec {
            inputs: vec![Input::Items(elements); 3],
            output_per_item: elements,
            least_bytes: self.shape().least_bytes(self.element()),
            tolerance: tolerance(self.element()),
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
        prepared: &crate::kernels::Prepared<Self>,
        stream: &cudarc::driver::CudaStream,
        inputs: &[cudarc::driver::CudaView<'_, T>],
        _: Option<&mut crate::bench::spec::Lookup>,
        mut out: cudarc::driver::CudaViewMut<'_, T>,
    ) -> Result<u64, KernelError> {
        use crate::tensor::{Tensor, TensorMut};
        let shape = prepared.operation().shape();
        let qkv = [0, 1, 2].map(|tensor| Tensor::new(&inputs[tensor], shape.dims()));
        prepared.launch(stream, qkv, None, shape.scale(), TensorMut::new(&mut out, shape.dims()))
    }
}
