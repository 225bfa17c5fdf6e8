//! Problems with tensors of their own, for whoever measures kernels: tuners and benches.
//!
//! A [`Problem`] says what is computed. An [`BenchCase`] is one on a device or on the host, with
//! made-up tensors; it runs it with any launch parameters and any choice of the planner's, and finds
//! out whether the output is right.

#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "host")]
mod host;
#[cfg(feature = "cuda")]
mod launched;
mod problem;
mod shapes;
#[cfg(any(feature = "cuda", feature = "host"))]
mod sources;
#[cfg(any(feature = "cuda", feature = "host"))]
mod subject;
#[cfg(any(feature = "cuda", feature = "host"))]
mod subjects;
#[cfg(any(feature = "cuda", feature = "host"))]
mod synthetic;
#[cfg(feature = "cuda")]
mod tensors;
#[cfg(any(feature = "cuda", feature = "host"))]
mod visit;

use gridguard::profile::{Key, Named, Objective, Policy};
use gridguard::{BatchAxis, Choice, LaunchLimits, LaunchRequest};

use crate::error::KernelError;
#[cfg(any(feature = "cuda", feature = "host"))]
use crate::tunable::Tunable;

#[cfg(feature = "cuda")]
pub use device::on_device;
#[cfg(feature = "host")]
pub use host::on_host;
pub use problem::{Problem, ProblemError};
#[cfg(any(feature = "cuda", feature = "host"))]
pub use sources::current_sources;
#[cfg(any(feature = "cuda", feature = "host"))]
pub use synthetic::synthetic;

/// A problem with its tensors, on a device or on the host.
pub trait BenchCase: Send {
    /// What a profile stores choices for it under.
    ///
    /// # Errors
    ///
    /// [`BenchError::Kernel`] where the device cannot run it.
    fn key(&self, policy: Policy, objective: Objective) -> Result<Key, BenchError>;

    /// The sizes, the items first.
    fn shape(&self) -> Named;

    /// Bytes that must move at least.
    fn least_bytes(&self) -> u128;

    /// The launch with each set of parameters that is worth measuring, the default first. Compiles
    /// their kernels, as many at a time as there are processors. Sets that the device refuses are left
    /// out, but for the default.
    ///
    /// # Errors
    ///
    /// [`BenchError::Kernel`] where not even the default is taken.
    fn setups(&mut self) -> Result<Vec<LaunchSetup>, BenchError>;

    /// Makes ready to launch: compiles and plans. `items` are the first so many alone, all where
    /// `None`.
    ///
    /// # Errors
    ///
    /// [`BenchError::Items`] for more items than there are, [`BenchError::Kernel`] where the
    /// parameters are not taken, no plan is legal as chosen, or the kernel does not compile.
    fn prepare(
        &mut self,
        parameters: &[(String, u64)],
        choice: Choice,
        items: Option<u64>,
    ) -> Result<LaunchHandle, BenchError>;

    /// Submits the launches of what was prepared and answers how many there are. On a device it
    /// returns before they have run, on the host after.
    ///
    /// # Errors
    ///
    /// [`BenchError::LaunchHandle`] for a handle of another exercise, [`BenchError::Kernel`] where a
    /// launch is refused.
    fn launch(&mut self, handle: LaunchHandle) -> Result<u64, BenchError>;

    /// Runs the default and holds its output against the reference in f64, at the first and the last
    /// item, in the middle and at the ends of chunks. Answers the relative error.
    ///
    /// # Errors
    ///
    /// [`BenchError::Reference`] where it is off, and as [`Self::prepare`] and [`Self::launch`].
    fn verify(&mut self) -> Result<f64, BenchError>;

    /// Spoils the output, runs what was prepared once, and compares all of its output with the
    /// default's, which [`Self::verify`] has looked at before. Waits for it.
    ///
    /// # Errors
    ///
    /// [`BenchError::Mismatch`] where they differ by more than the kernel's tolerance, in any bit
    /// where that is zero; and as [`Self::launch`] and [`Self::verify`].
    fn check(&mut self, handle: LaunchHandle) -> Result<(), BenchError>;
}

/// Names something that an [`BenchCase`] has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchHandle(usize);

/// A kernel with one set of launch parameters: what candidates are planned from. The tuner has one of
/// its own, since its library and this one do not know each other.
#[derive(Clone, Debug)]
pub struct LaunchSetup {
    /// Names and values; empty for a kernel that has none.
    pub parameters: Named,
    /// The launch over the whole problem.
    pub request: LaunchRequest,
    /// Its independent items.
    pub batch: BatchAxis,
    /// What device and kernel allow.
    pub limits: LaunchLimits,
}

/// Why an exercise failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The kernel was not run.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device's memory could not be used, or a launch before has failed.
    #[cfg(feature = "cuda")]
    #[error("tensors could not be allocated, copied or read: {0}")]
    Memory(#[from] cudarc::driver::DriverError),
    /// The host has no room for the tensors.
    #[error("the host has no {bytes} bytes of memory for a tensor: take fewer items")]
    HostMemory {
        /// Bytes of the tensor that did not fit.
        bytes: u128,
    },
    /// A handle that this exercise did not give.
    #[error("nothing was prepared as number {0} of this exercise")]
    LaunchHandle(usize),
    /// More items than the problem has.
    #[error("{given} items are asked for, the problem has {items}")]
    Items {
        /// Items asked for.
        given: u64,
        /// Items of the problem.
        items: u64,
    },
    /// The default's output is not what it must be.
    #[error(
        "the default is off its reference: the relative error is {error:e}, {tolerance:e} is allowed"
    )]
    Reference {
        /// The relative error; infinite where an element is no finite number.
        error: f64,
        /// The most that is allowed.
        tolerance: f64,
    },
    /// The output is not the default's.
    #[error(
        "the output is not the default's: the relative error is {error:e}, {tolerance:e} is allowed; \
         {differing} of {elements} elements differ, {not_finite} of them are not finite"
    )]
    Mismatch {
        /// The relative error; infinite where an element is no finite number.
        error: f64,
        /// The most that is allowed; zero where every bit counts.
        tolerance: f64,
        /// Elements that differ in any bit.
        differing: u64,
        /// Elements of them that are no finite number on one side.
        not_finite: u64,
        /// Elements compared.
        elements: u64,
    },
}

/// The sizes of an operation.
#[cfg(any(feature = "cuda", feature = "host"))]
fn shape_of(operation: &impl Tunable) -> Named {
    operation.sizes().into_iter().map(|(name, size)| (name.to_owned(), size)).collect()
}

/// The same operation over the first `items` alone, if so many are given.
#[cfg(any(feature = "cuda", feature = "host"))]
fn first_items<O: Tunable>(operation: O, items: Option<u64>) -> Result<O, BenchError> {
    let all = operation.batch().items();
    match items {
        None => Ok(operation),
        Some(given) if given <= all => Ok(operation.with_items(given)?),
        Some(given) => Err(BenchError::Items { given, items: all }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_was_found_and_what_is_allowed() {
        let items = BenchError::Items { given: 9, items: 8 };
        assert_eq!(items.to_string(), "9 items are asked for, the problem has 8");
        let handle = BenchError::LaunchHandle(3);
        assert_eq!(handle.to_string(), "nothing was prepared as number 3 of this exercise");
        let reference = BenchError::Reference { error: 0.25, tolerance: 1e-3 };
        assert_eq!(
            reference.to_string(),
            "the default is off its reference: the relative error is 2.5e-1, 1e-3 is allowed"
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
            "the output is not the default's: the relative error is inf, 0e0 is allowed; 5 of 640 \
             elements differ, 2 of them are not finite"
        );
    }
}
