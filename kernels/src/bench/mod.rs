//! Kernels as something to measure: problems as data, and bench cases that hold their tensors.
//!
//! A [`Problem`] is a kernel with the types and sizes of its tensors. A [`BenchCase`] is a problem with
//! synthetic tensors on a device or on the host. It launches the kernel with any launch parameters and
//! any plan, and checks the output.

mod case;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "host")]
mod host;
mod problem;
mod registry;
#[cfg_attr(not(any(feature = "cuda", feature = "host")), allow(dead_code, reason = "not run"))]
pub(crate) mod spec;
#[cfg_attr(not(any(feature = "cuda", feature = "host")), allow(dead_code, reason = "not run"))]
pub(crate) mod synthetic;

pub use case::{BenchCase, BenchError, LaunchHandle, LaunchSetup};
#[cfg(feature = "profile")]
pub use problem::current_sources;
pub use problem::{Problem, ProblemError};
pub use spec::Traffic;
pub use synthetic::synthetic;
