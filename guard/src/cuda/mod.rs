//! Queries, modules and launches through the CUDA driver: the only module that knows cudarc.
//!
//! A launch is checked or raw, with one path behind both:
//! - [`Guard::launch`](crate::Guard::launch) takes a plan or a request, and [`Args`];
//! - [`Guard::builder`](crate::Guard::builder) is the same with the calls of cudarc's launch builder;
//! - [`Guard::launch_raw`](crate::Guard::launch_raw), for handles of other CUDA bindings and C++.
//!
//! Nothing here panics if a library, a symbol or a device is missing: the guard looks for them itself
//! before cudarc does.

mod arguments;
mod builder;
pub(crate) mod driver;
pub(crate) mod error;
mod guard;
pub(crate) mod kernel;
mod launch;
pub mod schedule;

pub use arguments::Args;
pub use arguments::argument::Argument;
pub use arguments::memory::{InOrder, Memory, MemoryMut};
pub use arguments::uses::MemoryUses;
pub use builder::{Function, LaunchBuilder};
pub use driver::error::DriverError;
pub use driver::history::LaunchRecord;
#[cfg(feature = "bench")]
pub use driver::history::bench;
pub use driver::log::DriverLog;
pub use driver::nvrtc::{CompileOptions, Compiled, Compiler};
pub use driver::query::{device_count, device_limits, driver_version, free_memory};
// For the packages of this workspace.
pub use driver::query::{ComputeMode, compute_mode, current_context};
pub use driver::suspects::FaultSuspects;
pub use error::{CudaError, CudaErrorKind, CudaLibrary, LaunchError, LaunchErrorKind};
pub use kernel::Kernel;
pub use kernel::functions::{MAX_KEPT_FUNCTIONS, forget_functions};
pub use kernel::module::Module;
pub use launch::capture::capture_launches;
pub use launch::planned::Launch;
pub use launch::raw::RawLaunch;

pub use crate::image::{Image, ImageError};
