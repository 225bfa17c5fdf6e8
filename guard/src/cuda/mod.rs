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
mod builder_launcher;
mod capture;
mod chunk_arg;
mod codes;
mod cublaslt;
mod driver;
pub(crate) mod driver_error;
mod driver_log;
pub(crate) mod error;
mod functions;
mod guard;
pub(crate) mod history;
mod kernel;
mod kernel_builder;
mod launch;
mod libraries;
mod memory;
mod module;
pub(crate) mod nvrtc;
mod occupancy;
mod packed;
mod pipeline;
mod pipeline_capture;
mod pipeline_graph;
mod pipeline_memory;
mod pipeline_run;
mod pipeline_stage;
mod planned;
mod product;
pub(crate) mod query;
mod raw;
#[cfg(feature = "ptx")]
mod rewritten;
mod send;
pub(crate) mod suspects;
mod symbols;
#[cfg(feature = "profile")]
mod tuning;
mod uses;

pub use arguments::Args;
pub use builder::{GuardedLaunchArgs, GuardedStream, Launched, counts_without_guard};
pub use capture::capture_launches;
pub use cublaslt::{CublasLt, CublasLtUnavailable};
pub use driver_error::DriverError;
pub use driver_log::DriverLog;
pub use error::{
    CudaError, DriverUnavailable, LaunchError, LoadError, NvrtcError, NvrtcUnavailable,
};
pub use functions::{MAX_KEPT_FUNCTIONS, forget_functions, forget_module_of};
pub use history::LaunchRecord;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub use history::bench;
pub use kernel::Kernel;
pub use kernel_builder::KernelLaunchArgs;
pub use memory::{InOrder, Memory, MemoryMut};
pub use module::Module;
pub use nvrtc::{CompileOptions, Compiled, Compiler};
pub use pipeline_graph::PipelineGraph;
pub use pipeline_memory::{DeviceMemory, PipelineScratch};
pub use pipeline_stage::{CudaPipeline, CudaStage, DeviceRange, DeviceViews, KernelStage};
#[cfg(feature = "profile")]
pub use product::PRODUCT_ALGORITHM;
pub use product::{
    Algorithm, Product, ProductAddresses, ProductBuffers, ProductElement, ProductError,
    ProductMemory, ProductNumber, ProductShape,
};
pub use query::{
    ComputeMode, compute_mode, current_context, device_count, device_limits, driver_version,
    free_memory,
};
pub use raw::RawKernel;
pub use suspects::FaultSuspects;

pub use crate::image::{Image, ImageError};
