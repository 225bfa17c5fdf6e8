//! What tuner and benches need to know about a kernel: its problems, tensors, reference and launch.

use core::ops::Range;

use cudarc::driver::{CudaStream, CudaView, CudaViewMut};
use gridguard::DeviceLimits;
use gridguard_kernels::compare::Compared;
use gridguard_kernels::{Element, ElementType, KernelError, Operation, Prepared};

/// A kernel that the tuner and the benches can run.
pub(crate) trait KernelSpec: Operation + Send + Sync + 'static {
    /// The elements of the output, where the inputs have elements of `T`.
    type Output<T: Element>: Compared;

    /// The ten problems of the shipped profiles, the type before its sizes: sizes of language, diffusion and audio
    /// models, up to 1.4 GB for each tensor.
    const SHIPPED: &'static str;
    /// Problems that a host computes in milliseconds, in the same form.
    const SMALL: &'static str;

    /// The kernel of a problem.
    fn build(problem: &SizedProblem, device: &DeviceLimits) -> Result<Self, KernelError>;

    /// The tensors of a problem that can be built.
    fn tensors(problem: &SizedProblem) -> TensorSpec;

    /// The reference for the outputs of one item, one after another, from the parts of the inputs that it reads.
    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64>;

    /// Submits the launches of a plan and returns their number. `inputs` and `outputs` are as in [`TensorSpec`],
    /// contiguous and of the sizes of the operation.
    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        outputs: &mut [CudaViewMut<'_, Self::Output<T>>],
    ) -> Result<u64, KernelError>;
}

/// The type and sizes of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SizedProblem {
    pub(crate) element: ElementType,
    /// In the order of [`Operation::SIZES`], followed by zeros.
    pub(crate) sizes: [u64; MAX_SIZES],
}

/// The most sizes that a kernel has.
pub(crate) const MAX_SIZES: usize = 4;

/// The tensors of a kernel and the quality of its output.
pub(crate) struct TensorSpec {
    /// The tensors that it reads.
    pub(crate) inputs: Vec<Input>,
    /// The tensors that it writes: their elements for each item.
    pub(crate) outputs: Vec<u64>,
    /// The largest relative error of a correct kernel; zero requires equal bits.
    pub(crate) tolerance: f64,
}

impl TensorSpec {
    /// A kernel that writes one tensor.
    pub(crate) fn new<const N: usize>(
        inputs: [Input; N],
        output_per_item: u64,
        tolerance: f64,
    ) -> Self {
        Self { inputs: inputs.into(), outputs: vec![output_per_item], tolerance }
    }

    /// Elements that it writes for each item.
    pub(crate) fn output_per_item(&self) -> u64 {
        self.outputs.iter().sum()
    }

    /// The traffic of all items. An element of the output has `output_bytes` bytes.
    pub(crate) fn traffic(&self, problem: &SizedProblem, output_bytes: u64) -> Traffic {
        let element = u128::from(problem.element.bytes());
        let read = self.inputs.iter().map(|input| match input {
            Input::Items(elements) => u128::from(*elements) * element,
            // All items together read it once.
            Input::Shared(_) => 0,
        });
        let written = u128::from(self.output_per_item()) * u128::from(output_bytes);
        let [items, ..] = problem.sizes.map(u128::from);
        Traffic { read: items * read.sum::<u128>(), written: items * written }
    }
}

/// Bytes that any implementation of a problem must move: reads of single items and all writes, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes read.
    pub read: u128,
    /// Bytes written.
    pub written: u128,
}

impl Traffic {
    /// Bytes read and written.
    pub const fn total(self) -> u128 {
        self.read.saturating_add(self.written)
    }
}

/// A tensor that a kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// So many elements for each item, item after item.
    Items(u64),
    /// So many elements, all read by every item.
    Shared(u64),
}

impl Input {
    /// Elements of the whole tensor.
    pub(crate) const fn elements(self, items: u64) -> u64 {
        match self {
            Self::Items(elements) => items * elements,
            Self::Shared(elements) => elements,
        }
    }

    /// The elements that `item` reads.
    pub(crate) fn part(self, item: u64) -> Range<usize> {
        let (start, elements) = match self {
            Self::Items(elements) => (item * elements, elements),
            Self::Shared(elements) => (0, elements),
        };
        to_usize(start)..to_usize(start + elements)
    }
}

/// A number of elements as an index into memory. One that is too large for the host is out of range of every slice,
/// too.
pub(crate) fn to_usize(elements: u64) -> usize {
    usize::try_from(elements).unwrap_or(usize::MAX)
}

/// The numbers of elements that are generated; longer tensors repeat them. A prime number, so that chunks begin at
/// different elements.
pub(crate) const PERIOD: usize = 1_048_573;
