//! What tuner and benches need to know about a kernel: its problems, tensors, reference and launch.

use core::ops::Range;

use gridguard::DeviceLimits;

use super::synthetic::scattered_row;
use crate::compare::Compared;
use crate::element::{Element, ElementType, to_usize};
use crate::error::KernelError;
use crate::index::IndexType;
use crate::operation::Operation;
#[cfg(feature = "cuda")]
use {
    crate::index::IndexReport,
    crate::kernels::Prepared,
    cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut},
    gridguard::cuda::Args,
    std::sync::Arc,
};

/// A kernel that the tuner and the benches can run, once for each kernel in `registry.rs`.
pub(crate) trait KernelSpec: Operation + Send + Sync + 'static {
    /// The elements of the output, where the inputs have elements of `T`.
    type Output<T: Element>: Compared;

    /// The sources, one for each implementation.
    const SOURCES: &'static [&'static str];
    /// Whether the kernel reads indices, whose type is then part of a problem.
    const HAS_INDICES: bool = false;
    /// The ten problems of the shipped profiles, types before sizes: sizes of language, diffusion and audio models,
    /// up to 1.4 GB for each tensor.
    const SHIPPED: &'static str;
    /// Problems that a host computes in milliseconds, in the same form.
    const SMALL: &'static str;

    /// The kernel of a problem.
    fn build(problem: &SizedProblem, device: &DeviceLimits) -> Result<Self, KernelError>;

    /// The tensors.
    fn tensors(&self) -> TensorSpec;

    /// The reference for the outputs of one item, one after another, from the parts of the inputs that it reads.
    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64>;

    /// Synthetic indices, for a kernel that reads some.
    #[cfg(feature = "cuda")]
    fn lookup(&self, _: &Arc<CudaStream>) -> Result<Option<Lookup>, KernelError> {
        Ok(None)
    }

    /// Submits the launches of a plan and returns their number. `inputs` are as in
    /// [`TensorSpec::inputs`].
    ///
    /// By default the kernel's parameters are the inputs of each item, the outputs, the shared inputs, and
    /// [those after the tensors](Self::after_tensors).
    #[cfg(feature = "cuda")]
    fn launch<T: Element>(
        prepared: &Prepared<Self>,
        stream: &CudaStream,
        inputs: &[CudaView<'_, T>],
        _: Option<&mut Lookup>,
        outputs: &mut [CudaViewMut<'_, Self::Output<T>>],
    ) -> Result<u64, KernelError> {
        let tensors = prepared.operation().tensors();
        let mut args = Args::new(stream);
        let inputs = || inputs.iter().zip(&tensors.inputs);
        for (memory, input) in inputs() {
            if let Input::Items(elements) = input {
                args.read_items(memory, *elements);
            }
        }
        for (memory, elements) in outputs.iter_mut().zip(&tensors.outputs) {
            args.write_items(memory, *elements);
        }
        for (memory, _) in inputs().filter(|(_, input)| matches!(input, Input::Shared(_))) {
            args.read(memory);
        }
        prepared.operation().after_tensors(&mut args);
        prepared.submit(args)
    }

    /// Adds the arguments after the tensors, by default the items of the chunk.
    #[cfg(feature = "cuda")]
    fn after_tensors(&self, args: &mut Args<'_>) {
        args.length();
    }
}

/// Indices on the device, and the report of bad ones.
#[cfg(feature = "cuda")]
pub(crate) struct Lookup {
    /// The bytes of all indices.
    pub(crate) index: CudaSlice<u8>,
    pub(crate) report: IndexReport,
}

/// The types and sizes of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SizedProblem {
    pub(crate) element: ElementType,
    /// `I64` for kernels without indices.
    pub(crate) index: IndexType,
    /// In the order of [`Operation::SIZES`], followed by zeros.
    pub(crate) sizes: [u64; MAX_SIZES],
}

/// The most sizes that a kernel has.
pub(crate) const MAX_SIZES: usize = 5;

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
    pub(crate) fn new<const N: usize>(
        inputs: [Input; N],
        output_per_item: u64,
        tolerance: f64,
    ) -> Self {
        Self { inputs: inputs.into(), outputs: vec![output_per_item], tolerance }
    }

    /// Elements that it writes for each item.
    pub(super) fn output_per_item(&self) -> u64 {
        self.outputs.iter().sum()
    }

    /// The traffic of `items`. An element of the output has `output_bytes` bytes.
    pub(super) fn traffic(&self, problem: &SizedProblem, items: u64, output_bytes: u64) -> Traffic {
        let element = u128::from(problem.element.bytes());
        let read = self.inputs.iter().map(|input| match input {
            Input::Items(elements) => u128::from(*elements) * element,
            // All items together read it once.
            Input::Shared(_) => 0,
            Input::Table { columns, .. } => {
                u128::from(*columns) * element + u128::from(problem.index.bytes())
            }
        });
        let written = u128::from(self.output_per_item()) * u128::from(output_bytes);
        let items = u128::from(items);
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
    /// A table. Each item reads one row of it.
    Table {
        /// Rows of the table.
        rows: u64,
        /// Elements of a row.
        columns: u64,
    },
}

impl Input {
    /// Elements of the whole tensor.
    pub(super) const fn elements(self, items: u64) -> u64 {
        match self {
            Self::Items(elements) => items * elements,
            Self::Shared(elements) => elements,
            Self::Table { rows, columns } => rows * columns,
        }
    }

    /// The elements that `item` reads.
    pub(super) fn part(self, item: u64) -> Range<usize> {
        let (start, elements) = match self {
            Self::Items(elements) => (item * elements, elements),
            Self::Shared(elements) => (0, elements),
            Self::Table { rows, columns } => (scattered_row(item, rows) * columns, columns),
        };
        to_usize(start)..to_usize(start + elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_reads_its_own_elements_all_of_them_or_a_row() {
        assert_eq!((Input::Items(8).elements(3), Input::Items(8).part(2)), (24, 16..24));
        assert_eq!((Input::Shared(8).elements(3), Input::Shared(8).part(2)), (8, 0..8));
        let table = Input::Table { rows: 5, columns: 8 };
        assert_eq!(table.elements(3), 40);
        let row = table.part(2);
        assert!(row.start.is_multiple_of(8) && row.len() == 8 && row.end <= 40);
    }
}
