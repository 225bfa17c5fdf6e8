//! The kernels of `gridguard-kernels` as something to measure.
//!
//! A [`Problem`] is a kernel with the type and sizes of its tensors, as text: `rms_norm f16 32768x4096`. It knows its
//! launch, its key in profiles and the bytes that it must move, without a device.
//!
//! A [`BenchCase`] is a problem with synthetic tensors on a device or on the host. It launches the kernel with any
//! launch parameters and any plan, and compares the output with an f64 reference.
//!
//! ```
//! use std::sync::Arc;
//!
//! use gridguard::{Choice, DeviceLimits, Guard};
//! use gridguard_problems::Problem;
//!
//! let problem: Problem = "softmax f32 512x1024".parse()?;
//! let guard = Arc::new(Guard::host(DeviceLimits::any_device()));
//! let mut case = problem.on_host(&guard)?;
//! let launch = case.prepare(&[], Choice::AUTOMATIC, None)?;
//! case.check(launch)?;
//! # Ok::<(), gridguard_problems::Error>(())
//! ```
//!
//! [`Problem::shipped`] lists the problems of the shipped profiles. A kernel becomes a problem by a few lines in
//! `kernels.rs`.

mod case;
mod device;
mod error;
mod host;
mod kernels;
mod problem;
mod registry;
mod spec;

pub use case::{BenchCase, LaunchHandle, LaunchSetup};
pub use error::{Error, ErrorKind};
pub use problem::{Problem, current_sources};
pub use spec::Traffic;
