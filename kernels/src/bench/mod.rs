//! Kernels as something to measure: problems as data, and bench cases that hold their tensors.
//!
//! A [`Problem`] is a kernel with the types and sizes of its tensors. A [`BenchCase`] is a problem with
//! synthetic tensors on a device or on the host. It launches the kernel with any launch parameters and
//! any plan, and checks the output. Both need the feature `bench`.

#[cfg(feature = "bench")]
mod case;
#[cfg(all(feature = "bench", feature = "cuda"))]
mod device;
#[cfg(feature = "bench")]
mod host;
#[cfg(feature = "bench")]
mod problem;
#[cfg(feature = "bench")]
mod registry;
#[cfg_attr(not(feature = "bench"), allow(dead_code, reason = "not run"))]
pub(crate) mod spec;
#[cfg_attr(not(feature = "bench"), allow(dead_code, reason = "not run"))]
pub(crate) mod synthetic;

#[cfg(feature = "bench")]
pub use case::{BenchCase, BenchError, LaunchHandle, LaunchSetup};
#[cfg(feature = "bench")]
pub use problem::{Problem, ProblemError, current_sources};
pub use spec::Traffic;
pub use synthetic::synthetic;
