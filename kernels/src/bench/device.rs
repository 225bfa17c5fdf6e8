//! Exercises on a device.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::profile::{Key, Named, Objective, Policy};
use gridguard::{Choice, Strategy};

use super::launched::Launched;
use super::problem::Problem;
use super::subject::{Output as _, Tensorial, looked_at, same, within};
use super::tensors::Tensors;
use super::visit::Visitor;
use super::{BenchCase, BenchError, LaunchHandle, LaunchSetup};
use crate::compare::Compared as _;
use crate::deviation::Deviation;
use crate::kernels::{Kernels, Prepared};
use crate::tunable::Tunable;

/// `problem` on the device of `kernels`, launched on `stream`.
///
/// Allocates the inputs and the output at once, and as much as the output again at the first check.
///
/// # Errors
///
/// [`BenchError::Kernel`] where the kernel does not take the sizes or the device has no
/// instructions for it, [`BenchError::Memory`] where the tensors do not fit.
pub fn on_device(
    kernels: &Kernels,
    stream: &Arc<CudaStream>,
    problem: &Problem,
) -> Result<Box<dyn BenchCase>, BenchError> {
    problem.visit(kernels.guard().limits(), OnDevice { kernels, stream })?
}

struct OnDevice<'a> {
    kernels: &'a Kernels,
    stream: &'a Arc<CudaStream>,
}

impl Visitor for OnDevice<'_> {
    type Made = Result<Box<dyn BenchCase>, BenchError>;

    fn visit<T: Tensorial, S: Launched<T, N>, const N: usize>(self, subject: S) -> Self::Made {
        let tensors = Tensors::new(self.stream, &subject)?;
        let (kernels, golden, prepared) = (self.kernels.clone(), None, Vec::new());
        Ok(Box::new(DeviceExercise { kernels, subject, tensors, golden, prepared }))
    }
}

/// A kernel with tensors on a device.
struct DeviceExercise<T: Tensorial, S: Launched<T, N>, const N: usize> {
    kernels: Kernels,
    subject: S,
    tensors: Tensors<T, S, N>,
    /// The default's output, once it was looked at.
    golden: Option<CudaSlice<S::Output>>,
    prepared: Vec<Prepared<S>>,
}

impl<T: Tensorial, S: Launched<T, N>, const N: usize> BenchCase for DeviceExercise<T, S, N> {
    fn key(&self, policy: Policy, objective: Objective) -> Result<Key, BenchError> {
        Ok(self.subject.key(self.kernels.guard().limits(), policy, objective)?)
    }

    fn shape(&self) -> Named {
        super::shape_of(&self.subject)
    }

    fn least_bytes(&self) -> u128 {
        self.subject.specification().least_bytes
    }

    fn setups(&mut self) -> Result<Vec<LaunchSetup>, BenchError> {
        let default = setup(&self.kernels, &self.subject, &self.subject.parameters())?;
        let candidates = self.subject.candidates();
        let others = candidates.get(1..).unwrap_or_default();
        let others = setups(&self.kernels, &self.subject, others).into_iter().flatten();
        Ok(core::iter::once(default).chain(others).collect())
    }

    fn prepare(
        &mut self,
        parameters: &[(String, u64)],
        choice: Choice,
        items: Option<u64>,
    ) -> Result<LaunchHandle, BenchError> {
        let subject = super::first_items(self.subject.with_parameters(parameters)?, items)?;
        self.prepared.push(self.kernels.prepare(subject, choice)?);
        Ok(LaunchHandle(self.prepared.len() - 1))
    }

    fn launch(&mut self, LaunchHandle(number): LaunchHandle) -> Result<u64, BenchError> {
        let prepared = self.prepared.get(number).ok_or(BenchError::LaunchHandle(number))?;
        self.tensors.launch(prepared)
    }

    fn verify(&mut self) -> Result<f64, BenchError> {
        let prepared = self.kernels.prepare(self.subject.clone(), Choice::AUTOMATIC)?;
        let [poison, _] = S::Output::poisons();
        self.tensors.spoil(poison)?;
        self.tensors.launch(&prepared)?;
        let specified = self.subject.specification();
        let mut deviation = Deviation::new();
        for item in looked_at(prepared.plan()) {
            let parts = self.tensors.parts(&self.subject, item)?;
            let expected = self.subject.expected(parts.each_ref().map(Vec::as_slice));
            let out = self.tensors.output(specified.output(item)..specified.output(item + 1))?;
            deviation.add_values(out.iter().map(|x| x.value()), &expected);
        }
        within(&deviation, specified.tolerance)
    }

    fn check(&mut self, LaunchHandle(number): LaunchHandle) -> Result<(), BenchError> {
        if self.golden.is_none() {
            self.verify()?;
        }
        let prepared = self.prepared.get(number).ok_or(BenchError::LaunchHandle(number))?;
        let golden = match &mut self.golden {
            Some(golden) => golden,
            none => none.insert(self.tensors.copy_output()?),
        };
        let [_, poison] = S::Output::poisons();
        self.tensors.spoil(poison)?;
        self.tensors.launch(prepared)?;
        let operation = prepared.operation();
        let specified = operation.specification();
        let elements = operation.batch().items() * specified.output_per_item;
        let difference = self.tensors.difference(&self.kernels, elements, golden)?;
        same(&difference, specified.tolerance)
    }
}

/// The setups of all `candidates`, in order, as many at a time as there are processors.
fn setups<O: Tunable + Send + Sync>(
    kernels: &Kernels,
    operation: &O,
    candidates: &[Named],
) -> Vec<Result<LaunchSetup, BenchError>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = candidates.len().div_ceil(threads).max(1);
    let all = |share: &[Named]| -> Vec<_> {
        share.iter().map(|parameters| setup(kernels, operation, parameters)).collect()
    };
    std::thread::scope(|scope| {
        let shares = candidates.chunks(share);
        let threads: Vec<_> = shares.map(|share| scope.spawn(move || all(share))).collect();
        let made = threads.into_iter().map(|thread| match thread.join() {
            Ok(made) => made,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        made.flatten().collect()
    })
}

/// The launch with `parameters`, compiled for one launch and for several.
fn setup<O: Tunable>(
    kernels: &Kernels,
    operation: &O,
    parameters: &[(String, u64)],
) -> Result<LaunchSetup, BenchError> {
    let operation = operation.with_parameters(parameters)?;
    let limits = kernels.limits(&operation)?;
    let (request, batch) = (operation.request(), operation.batch());
    // Only to compile it now: what cannot be split will not be asked for.
    let halves = Choice::at_most(batch.items().div_ceil(2)).strategy(Strategy::Chunked);
    let _ = kernels.prepare(operation, halves);
    Ok(LaunchSetup { parameters: parameters.to_vec(), request, batch, limits })
}
