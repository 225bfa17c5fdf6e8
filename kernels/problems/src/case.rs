//! A problem with its tensors, whatever it runs on.

use core::ops::Range;

use gridguard::{BatchAxis, Choice, DeviceLimits, LaunchLimits, LaunchRequest, Plan, count};
use gridguard_kernels::compare::{Compared, Difference};
use gridguard_kernels::{Deviation, Element, Operation};

use crate::error::{Error, ErrorKind};
use crate::spec::{KernelSpec, SizedProblem, TensorSpec};

/// A problem with its tensors, on a device or on the host.
pub trait BenchCase: Send {
    /// The launch with each set of launch parameters worth measuring, the default first. On a device,
    /// compiles their kernels in parallel and leaves out sets that the device rejects, except the
    /// default.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Kernel`] if the device rejects the default.
    fn setups(&mut self) -> Result<Vec<LaunchSetup>, Error>;

    /// Compiles and plans a launch over the first `items` items, or over all.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Launch`] for more items than the problem has, [`ErrorKind::Kernel`] if the kernel
    /// does not support the launch parameters, no plan is legal, or compilation fails.
    fn prepare(
        &mut self,
        parameters: &[(String, u64)],
        choice: Choice,
        items: Option<u64>,
    ) -> Result<LaunchHandle, Error>;

    /// Submits the launches of a prepared plan and returns their number. Returns before they have
    /// run on a device, and after they have run on the host.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Launch`] for a handle of another case, [`ErrorKind::Kernel`] if a launch fails.
    fn launch(&mut self, handle: LaunchHandle) -> Result<u64, Error>;

    /// Runs the default and compares its output with the f64 reference at the first, middle and last
    /// items and at the ends of chunks. Returns the relative error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatch`] if the error exceeds the kernel's tolerance, and the errors of
    /// [`Self::prepare`] and [`Self::launch`].
    fn verify(&mut self) -> Result<f64, Error>;

    /// Overwrites the output, runs a prepared plan once, and compares the whole output with the
    /// default's, which [`Self::verify`] checks first. Waits for the result. Returns whether all bits are the same.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Mismatch`] if the difference exceeds the kernel's tolerance (any differing bit,
    /// if that is zero), and the errors of [`Self::launch`] and [`Self::verify`].
    fn check(&mut self, handle: LaunchHandle) -> Result<bool, Error>;
}

/// Identifies a launch that a [`BenchCase`] has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchHandle(pub(crate) usize);

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
    pub(crate) fn new(kernel: &impl Operation, limits: LaunchLimits) -> Self {
        let (request, batch) = kernel.grid();
        Self { parameters: kernel.parameters(), request, batch, limits }
    }
}

/// Where a bench case runs: holds the tensors of one problem.
pub(crate) trait Backend: Send {
    /// The kernel.
    type Kernel: KernelSpec;
    /// The elements of the inputs.
    type Element: Element;
    /// A compiled and planned launch.
    type Prepared: Send;
    /// A copy of the outputs.
    type Copy: Send;

    fn device(&self) -> &DeviceLimits;
    fn tensors(&self) -> &TensorSpec;
    fn setups(&self, kernel: &Self::Kernel) -> Result<Vec<LaunchSetup>, Error>;
    fn prepare(&self, kernel: Self::Kernel, choice: Choice) -> Result<Self::Prepared, Error>;
    fn plan(prepared: &Self::Prepared) -> &Plan;
    /// Submits the prepared launches and returns their number.
    fn launch(&mut self, prepared: &Self::Prepared) -> Result<u64, Error>;
    fn fill_output(&mut self, element: Output<Self>) -> Result<(), Error>;
    /// A part of each input; nothing of those that are shorter.
    fn inputs(&self, parts: Vec<Range<usize>>) -> Result<Vec<Vec<Self::Element>>, Error>;
    /// The outputs of an item, one after another.
    fn output(&self, item: u64) -> Result<Vec<Output<Self>>, Error>;
    fn copy_output(&self) -> Result<Self::Copy, Error>;
    /// Compares the outputs of the first items with a copy.
    fn difference(&self, items: u64, golden: &Self::Copy) -> Result<Difference, Error>;
}

/// The elements of the output.
type Output<B> = <<B as Backend>::Kernel as KernelSpec>::Output<<B as Backend>::Element>;

/// A problem on a backend.
pub(crate) struct Case<B: Backend> {
    pub(crate) problem: SizedProblem,
    pub(crate) kernel: B::Kernel,
    pub(crate) backend: B,
    pub(crate) prepared: Vec<B::Prepared>,
    /// The default's output, once verified.
    pub(crate) golden: Option<B::Copy>,
}

impl<B: Backend> Case<B> {
    pub(crate) const fn new(problem: SizedProblem, kernel: B::Kernel, backend: B) -> Self {
        Self { problem, kernel, backend, prepared: Vec::new(), golden: None }
    }
}

impl<B: Backend> BenchCase for Case<B> {
    fn setups(&mut self) -> Result<Vec<LaunchSetup>, Error> {
        self.backend.setups(&self.kernel)
    }

    fn prepare(
        &mut self,
        parameters: &[(String, u64)],
        choice: Choice,
        items: Option<u64>,
    ) -> Result<LaunchHandle, Error> {
        let mut problem = self.problem;
        let [items_of_problem, ..] = &mut problem.sizes;
        if let Some(given) = items {
            let items = std::mem::replace(items_of_problem, given);
            if given > items {
                return Err(Error::new(
                    ErrorKind::Launch,
                    format!("{} requested, the problem has {items}", count(given, "item")),
                ));
            }
        }
        let kernel = B::Kernel::build(&problem, self.backend.device())?;
        self.prepared.push(self.backend.prepare(kernel.with_parameters(parameters)?, choice)?);
        Ok(LaunchHandle(self.prepared.len() - 1))
    }

    fn launch(&mut self, LaunchHandle(number): LaunchHandle) -> Result<u64, Error> {
        let prepared = self.prepared.get(number).ok_or_else(|| unknown_handle(number))?;
        self.backend.launch(prepared)
    }

    fn verify(&mut self) -> Result<f64, Error> {
        let prepared = self.backend.prepare(self.kernel.clone(), Choice::AUTOMATIC)?;
        let [poison, _] = Output::<B>::poisons();
        self.backend.fill_output(poison)?;
        self.backend.launch(&prepared)?;
        let tensors = self.backend.tensors();
        let tolerance = tensors.tolerance;
        let mut deviation = Deviation::new();
        for item in verified_items(B::plan(&prepared)) {
            let parts = tensors.inputs.iter().map(|input| input.part(item)).collect();
            let inputs = self.backend.inputs(parts)?;
            let inputs: Vec<&[B::Element]> = inputs.iter().map(Vec::as_slice).collect();
            let out = self.backend.output(item)?;
            deviation.add_values(out.iter().map(|x| x.value()), &self.kernel.expected(&inputs));
        }
        let error = deviation.relative();
        if deviation.within(tolerance) {
            return Ok(error);
        }
        Err(Error::new(
            ErrorKind::Mismatch,
            format!(
                "the default differs from the reference: the relative error is {error:e}, the \
                 tolerance {tolerance:e}"
            ),
        ))
    }

    fn check(&mut self, LaunchHandle(number): LaunchHandle) -> Result<bool, Error> {
        if number >= self.prepared.len() {
            return Err(unknown_handle(number));
        }
        if self.golden.is_none() {
            self.verify()?;
            self.golden = Some(self.backend.copy_output()?);
        }
        let (Some(prepared), Some(golden)) = (self.prepared.get(number), &self.golden) else {
            return Err(unknown_handle(number));
        };
        let [_, poison] = Output::<B>::poisons();
        self.backend.fill_output(poison)?;
        self.backend.launch(prepared)?;
        let tolerance = self.backend.tensors().tolerance;
        let difference = self.backend.difference(B::plan(prepared).items(), golden)?;
        if difference.within(tolerance) {
            return Ok(difference.differing == 0);
        }
        Err(mismatch(&difference, tolerance))
    }
}

/// The error of a handle that this case did not give.
pub(crate) fn unknown_handle(number: usize) -> Error {
    Error::new(ErrorKind::Launch, format!("no launch was prepared with handle {number}"))
}

/// The error of an output that differs from the default's. The relative error is infinite if an element is not finite.
fn mismatch(Difference { deviation, differing }: &Difference, tolerance: f64) -> Error {
    let (error, elements) = (deviation.relative(), deviation.compared);
    Error::new(
        ErrorKind::Mismatch,
        format!(
            "the output differs from the default's: the relative error is {error:e}, the tolerance \
             {tolerance:e}; {differing} of {elements} elements differ, {} of them are not finite",
            deviation.wrong
        ),
    )
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
