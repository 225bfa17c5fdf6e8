//! Queries, modules and launches through the CUDA driver: the only module that knows cudarc.
//!
//! There are three ways to launch:
//! - a [`Guard`](crate::Guard) with its own context: [`Module`], [`Kernel`], and [`Args`] or, with the calls of
//!   cudarc's builder, [`Guard::launch_builder`](crate::Guard::launch_builder);
//! - cudarc's launch builder: [`GuardedStream::launch_builder_guarded`] in place of `launch_builder`;
//! - another CUDA binding, or C++: [`RawKernel`], from handles.
//!
//! Nothing here panics if a library, a symbol or a device is missing: the guard looks for them itself
//! before cudarc does.

mod arguments;
mod builder;
pub(crate) mod driver;
pub(crate) mod error;
mod guard;
mod kernel;
mod launch;
mod pipeline;
mod product;

pub use arguments::Args;
pub use arguments::memory::{InOrder, Memory, MemoryMut};
pub use builder::kernel::KernelLaunchArgs;
pub use builder::{GuardedLaunchArgs, GuardedStream, Launched, counts_without_guard};
pub use driver::error::DriverError;
pub use driver::history::LaunchRecord;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub use driver::history::bench;
pub use driver::log::DriverLog;
pub use driver::nvrtc::{CompileOptions, Compiled, Compiler};
pub use driver::query::{
    ComputeMode, compute_mode, current_context, device_count, device_limits, driver_version,
    free_memory,
};
pub use driver::suspects::FaultSuspects;
pub use error::{
    CudaError, DriverUnavailable, LaunchError, LoadError, NvrtcError, NvrtcUnavailable,
};
pub use kernel::Kernel;
pub use kernel::functions::{MAX_KEPT_FUNCTIONS, forget_functions, forget_module_of};
pub use kernel::module::Module;
pub use launch::capture::capture_launches;
pub use launch::raw::RawKernel;
pub(crate) use pipeline::graph::PipelineGraph;
pub use pipeline::memory::{DeviceMemory, PipelineScratch};
pub(crate) use pipeline::stage::DeviceStage;
pub use pipeline::stage::{DeviceRange, DeviceViews};
pub use product::{CublasLt, Product, ProductBuffers, ProductElement, ProductError, ProductShape};

pub use crate::image::{Image, ImageError};
