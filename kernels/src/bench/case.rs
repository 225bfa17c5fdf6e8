//! A problem with its tensors, whatever it runs on.

use core::ops::Range;

use gridguard::{BatchAxis, Choice, DeviceLimits, LaunchLimits, LaunchRequest, Plan};

use super::spec::{KernelSpec, SizedProblem};
use crate::compare::{Compared, Difference};
use crate::deviation::Deviation;
use crate::element::Element;
use crate::error::KernelError;
use crate::operation::Operation;

/// A problem with its tensors, on a device or on the host.
pub trait BenchCase: Send {
    /// The launch with each set of launch parameters worth measuring, the default first. On a device,
    /// compiles their kernels in parallel and leaves out sets that the device rejects, except the
    /// default.
    ///
    /// # Errors
    ///
    /// [`BenchError::Kernel`] if the device rejects the default.
    fn setups(&mut self) -> Result<Vec<LaunchSetup>, BenchError>;

    /// Compiles and plans a launch over the first `items` items, or over all.
    ///
    /// # Errors
    ///
    /// [`BenchError::Items`] for more items than the problem has, [`BenchError::Kernel`] if the kernel
    /// does not support the launch parameters, no plan is legal, or compilation fails.
    fn prepare(
        &mut self,
        parameters: &[(String, u64)],
        choice: Choice,
        items: Option<u64>,
    ) -> Result<LaunchHandle, BenchError>;

    /// Submits the launches of a prepared plan and returns their number. Returns before they have
    /// run on a device, and after they have run on the host.
    ///
    /// # Errors
    ///
    /// [`BenchError::Handle`] for a handle of another case, [`BenchError::Kernel`] if a launch fails.
    fn launch(&mut self, handle: LaunchHandle) -> Result<u64, BenchError>;

    /// Runs the default and compares its output with the f64 reference at the first, middle and last
    /// items and at the ends of chunks. Returns the relative error.
    ///
    /// # Errors
    ///
    /// [`BenchError::Reference`] if the error exceeds the kernel's tolerance, and the errors of
    /// [`Self::prepare`] and [`Self::launch`].
    fn verify(&mut self) -> Result<f64, BenchError>;

    /// Overwrites the output, runs a prepared plan once, and compares the whole output with the
    /// default's, which [`Self::verify`] checks first. Waits for the result.
    ///
    /// # Errors
    ///
    /// [`BenchError::Mismatch`] if the difference exceeds the kernel's tolerance (any differing bit,
    /// if that is zero), and the errors of [`Self::launch`] and [`Self::verify`].
    fn check(&mut self, handle: LaunchHandle) -> Result<(), BenchError>;
}

/// Identifies a launch that a [`BenchCase`] has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchHandle(pub(super) usize);

/// The launch of a whole problem with one set of launch parameters.
#[derive(Clone, Debug)]
pub struct LaunchSetup {
    /// Names and values of the launch parameters; empty if the kernel has none.
    pub parameters: Vec<(String, u64)>,
    /// The launch.
    pub request: LaunchRequest,
    /// Its independent items.
    pub batch: BatchAxis,
    /// The limits of device and kernel.
    pub limits: LaunchLimits,
}

impl LaunchSetup {
    pub(super) fn new(kernel: &impl Operation, limits: LaunchLimits) -> Self {
        let (request, batch) = kernel.grid();
        Self { parameters: kernel.parameters(), request, batch, limits }
    }
}

/// Why a bench case failed. A relative error is infinite if an element is not finite.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum BenchError {
    /// The kernel was not run.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Device memory could not be used, or an earlier launch failed.
    #[cfg(feature = "cuda")]
    #[error("tensors could not be allocated, copied or read: {0}")]
    Memory(#[from] cudarc::driver::DriverError),
    /// The host has too little memory for the tensors.
    #[error("the host cannot allocate {bytes} bytes for a tensor: use fewer items")]
    HostMemory { bytes: u128 },
    /// The handle is not from this bench case.
    #[error("no launch was prepared with handle {0}")]
    Handle(usize),
    /// The problem has fewer items.
    #[error("{given} items were requested, the problem has {items}")]
    Items { given: u64, items: u64 },
    /// The default's output differs from the reference.
    #[error(
        "the default differs from the reference: the relative error is {error:e}, the tolerance \
         {tolerance:e}"
    )]
    Reference { error: f64, tolerance: f64 },
    /// The output differs from the default's.
    #[error(
        "the output differs from the default's: the relative error is {error:e}, the tolerance \
         {tolerance:e}; {differing} of {elements} elements differ, {not_finite} of them are not finite"
    )]
    Mismatch { error: f64, tolerance: f64, differing: u64, not_finite: u64, elements: u64 },
}

/// Where a bench case runs: holds the tensors of one problem.
pub(super) trait Backend: Send {
    /// The kernel.
    type Kernel: KernelSpec;
    /// The elements of the inputs.
    type Element: Element;
    /// A compiled and planned launch.
    type Prepared: Send;
    /// A copy of the outputs.
    type Copy: Send;

    fn device(&self) -> &DeviceLimits;
    fn setups(&self, kernel: &Self::Kernel) -> Result<Vec<LaunchSetup>, BenchError>;
    fn prepare(&self, kernel: Self::Kernel, choice: Choice) -> Result<Self::Prepared, BenchError>;
    fn plan(prepared: &Self::Prepared) -> &Plan;
    /// Submits the prepared launches and returns their number.
    fn launch(&mut self, prepared: &Self::Prepared) -> Result<u64, BenchError>;
    fn fill_output(&mut self, element: Output<Self>) -> Result<(), BenchError>;
    /// A part of each input; nothing of those that are shorter.
    fn inputs(&self, parts: Vec<Range<usize>>) -> Result<Vec<Vec<Self::Element>>, BenchError>;
    /// The outputs of an item, one after another.
    fn output(&self, item: u64) -> Result<Vec<Output<Self>>, BenchError>;
    fn copy_output(&self) -> Result<Self::Copy, BenchError>;
    /// Compares the outputs of the first items with a copy.
    fn difference(&self, items: u64, golden: &Self::Copy) -> Result<Difference, BenchError>;
}

/// The elements of the output.
type Output<B> = <<B as Backend>::Kernel as KernelSpec>::Output<<B as Backend>::Element>;

/// A problem on a backend.
pub(super) struct Case<B: Backend> {
    pub(super) problem: SizedProblem,
    pub(super) kernel: B::Kernel,
    pub(super) backend: B,
    pub(super) prepared: Vec<B::Prepared>,
    /// The default's output, once verified.
    pub(super) golden: Option<B::Copy>,
}

impl<B: Backend> Case<B> {
    pub(super) const fn new(problem: SizedProblem, kernel: B::Kernel, backend: B) -> Self {
        Self { problem, kernel, backend, prepared: Vec::new(), golden: None }
    }
}

impl<B: Backend> BenchCase for Case<B> {
    fn setups(&mut self) -> Result<Vec<LaunchSetup>, BenchError> {
        self.backend.setups(&self.kernel)
    }

    fn prepare(
        &mut self,
        parameters: &[(String, u64)],
        choice: Choice,
        items: Option<u64>,
    ) -> Result<LaunchHandle, BenchError> {
        let mut problem = self.problem;
        let [items_of_problem, ..] = &mut problem.sizes;
        if let Some(given) = items {
            let items = std::mem::replace(items_of_problem, given);
            if given > items {
                return Err(BenchError::Items { given, items });
            }
        }
        let kernel = B::Kernel::build(&problem, self.backend.device())?;
        self.prepared.push(self.backend.prepare(kernel.with_parameters(parameters)?, choice)?);
        Ok(LaunchHandle(self.prepared.len() - 1))
    }

    fn launch(&mut self, LaunchHandle(number): LaunchHandle) -> Result<u64, BenchError> {
        let prepared = self.prepared.get(number).ok_or(BenchError::Handle(number))?;
        self.backend.launch(prepared)
    }

    fn verify(&mut self) -> Result<f64, BenchError> {
        let prepared = self.backend.prepare(self.kernel.clone(), Choice::AUTOMATIC)?;
        let [poison, _] = Output::<B>::poisons();
        self.backend.fill_output(poison)?;
        self.backend.launch(&prepared)?;
        let tensors = self.kernel.tensors();
        let mut deviation = Deviation::new();
        for item in verified_items(B::plan(&prepared)) {
            let parts = tensors.inputs.iter().map(|input| input.part(item)).collect();
            let inputs = self.backend.inputs(parts)?;
            let inputs: Vec<&[B::Element]> = inputs.iter().map(Vec::as_slice).collect();
            let out = self.backend.output(item)?;
            deviation.add_values(out.iter().map(|x| x.value()), &self.kernel.expected(&inputs));
        }
        let (error, tolerance) = (deviation.relative(), tensors.tolerance);
        if deviation.within(tolerance) {
            return Ok(error);
        }
        Err(BenchError::Reference { error, tolerance })
    }

    fn check(&mut self, LaunchHandle(number): LaunchHandle) -> Result<(), BenchError> {
        if number >= self.prepared.len() {
            return Err(BenchError::Handle(number));
        }
        if self.golden.is_none() {
            self.verify()?;
            self.golden = Some(self.backend.copy_output()?);
        }
        let (Some(prepared), Some(golden)) = (self.prepared.get(number), &self.golden) else {
            return Err(BenchError::Handle(number));
        };
        let [_, poison] = Output::<B>::poisons();
        self.backend.fill_output(poison)?;
        self.backend.launch(prepared)?;
        let tolerance = self.kernel.tensors().tolerance;
        let difference = self.backend.difference(B::plan(prepared).items(), golden)?;
        if difference.within(tolerance) {
            return Ok(());
        }
        let Difference { deviation, differing } = difference;
        Err(BenchError::Mismatch {
            error: deviation.relative(),
            tolerance,
            differing,
            not_finite: deviation.wrong,
            elements: deviation.compared,
        })
    }
}

/// Items whose output is compared with the reference: the first, middle and last, and those at the
/// ends of the first chunks.
fn verified_items(plan: &Plan) -> Vec<u64> {
    let items = plan.items();
    let ends = plan.chunks().take(VERIFIED_CHUNKS).flat_map(|chunk| [chunk.start, chunk.end() - 1]);
    let mut verified: Vec<u64> =
        ends.chain([items / 2, items.saturating_sub(1)]).filter(|item| *item < items).collect();
    verified.sort_unstable();
    verified.dedup();
    verified
}

/// Chunks whose ends are verified; references are slow.
const VERIFIED_CHUNKS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_give_what_was_found_and_what_is_allowed() {
        let items = BenchError::Items { given: 9, items: 8 };
        assert_eq!(items.to_string(), "9 items were requested, the problem has 8");
        let handle = BenchError::Handle(3);
        assert_eq!(handle.to_string(), "no launch was prepared with handle 3");
        let memory = BenchError::HostMemory { bytes: 12 };
        assert_eq!(
            memory.to_string(),
            "the host cannot allocate 12 bytes for a tensor: use fewer items"
        );
        let reference = BenchError::Reference { error: 0.25, tolerance: 1e-3 };
        assert_eq!(
            reference.to_string(),
            "the default differs from the reference: the relative error is 2.5e-1, the tolerance 1e-3"
        );
        let mismatch = BenchError::Mismatch {
            error: f64::INFINITY,
            tolerance: 0.0,
            differing: 5,
            not_finite: 2,
            elements: 640,
        };
        assert_eq!(
            mismatch.to_string(),
            "the output differs from the default's: the relative error is inf, the tolerance 0e0; 5 \
             of 640 elements differ, 2 of them are not finite"
        );
    }

    #[test]
    fn the_items_around_every_boundary_are_verified_once() {
        use gridguard::{Axis, Dim3, KernelLimits};

        let plan = |items, most| {
            let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("k"));
            let request = LaunchRequest::new(Dim3::new(1, items, 1), Dim3::ONE);
            let batch = BatchAxis::new(Axis::Y, items);
            Plan::new(&request, Some(&batch), &limits, Choice::at_most(most)).expect("splits")
        };
        assert_eq!(verified_items(&plan(10, 5)), [0, 4, 5, 9]);
        assert_eq!(verified_items(&plan(100, 10)), [0, 9, 10, 19, 20, 29, 30, 39, 50, 99]);
        assert_eq!(verified_items(&plan(1, 1)), [0]);
        assert!(verified_items(&plan(0, 1)).is_empty());
    }
}
