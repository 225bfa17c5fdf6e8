//! The CUDA driver: queries, modules, launches. The only room that knows cudarc, and the only one
//! with `unsafe` code.
//!
//! Three ways in:
//! - [`Guard`](crate::Guard) owning a context: [`Module`], [`Kernel`], [`Args`];
//! - code on cudarc's launch builder: [`GuardedStream::launch_builder_guarded`] in place of
//!   `launch_builder`;
//! - code on another binding or in C++: [`RawKernel`], from handles.
//!
//! Nothing here panics where a library, a symbol or a device is missing: the guard looks for them
//! itself before cudarc does.

mod args;
mod backend;
mod builder;
mod checked;
mod clock;
mod current;
mod diagnosis;
mod driver;
mod driver_log;
mod error;
mod history;
mod image;
mod kernel;
mod launch;
mod library;
mod memory;
mod mode;
mod module;
mod nvrtc;
mod occupancy;
mod query;
mod raw;
mod suspects;

pub use args::Args;
pub(crate) use backend::CudaBackend;
pub use builder::{GuardedLaunchArgs, GuardedStream, forget_functions};
pub use driver_log::DriverLog;
pub use error::{
    CudaError, DriverError, DriverUnavailable, LaunchError, LoadError, NvrtcError, NvrtcUnavailable,
};
pub use history::LaunchRecord;
pub use image::{Image, ImageError};
pub use kernel::Kernel;
pub use memory::free_memory;
pub use mode::{ComputeMode, compute_mode};
pub use module::Module;
pub use nvrtc::{CompileOptions, Compiled, Compiler};
pub use query::{device_count, device_limits, driver_version};
pub use raw::RawKernel;
pub use suspects::FaultSuspects;
