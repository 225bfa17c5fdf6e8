//! Runs a batch through several stages, chunk by chunk, within a memory budget.
//!
//! A batch that does not fit into memory often fits if all stages process a chunk before the next chunk:
//! intermediates then need memory for one chunk only. A pipeline declares its buffers and the stages
//! that read and write them. The plan decides which scratch buffers share memory, and finds the largest
//! chunk that is legal for every stage and within a [`Budget`], before anything runs.
//!
//! ```
//! use gridguard_pipeline::{Budget, HostMemory, Pipeline};
//! use gridguard::{DeviceLimits, Guard};
//!
//! // y = (x + 1)², 100,000 items of 4 numbers, with 64 KiB of scratch.
//! let mut builder = Pipeline::builder(100_000);
//! let x = builder.input::<f32>("x", 4);
//! let sum = builder.scratch::<f32>("sum", 4);
//! let y = builder.output::<f32>("y", 4);
//! builder
//!     .stage("add", move |_, views| {
//!         let (x, sum) = (views.read(x)?, views.write(sum)?);
//!         sum.iter_mut().zip(x).for_each(|(sum, x)| *sum = x + 1.0);
//!         Ok(())
//!     })
//!     .read(x)
//!     .write(sum);
//! builder
//!     .stage("square", move |_, views| {
//!         let (sum, y) = (views.read(sum)?, views.write(y)?);
//!         y.iter_mut().zip(sum).for_each(|(y, sum)| *y = sum * sum);
//!         Ok(())
//!     })
//!     .read(sum)
//!     .write(y);
//! let mut pipeline = builder.build()?;
//!
//! let plan = pipeline.plan(&Budget::bytes(64 << 10))?;
//! assert_eq!((plan.chunk_items(), plan.len(), plan.bytes()), (4000, 25, 64_000));
//!
//! let guard = Guard::host(DeviceLimits::any_device());
//! let (from, mut to) = (vec![2.0_f32; 400_000], vec![0.0_f32; 400_000]);
//! let memory = HostMemory::new().read(x, &from).write(y, &mut to);
//! let run = pipeline.run(&guard, &plan, memory)?;
//! assert_eq!(run.items_done, 100_000);
//! assert!(to.iter().all(|y| *y == 9.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Stages
//!
//! A stage on the host is a closure: `PipelineBuilder::stage`. A stage on a device is a kernel, a product of
//! matrices, or a call that submits other work: `PipelineBuilder::kernel`, `product` and `call`. All stages
//! of a pipeline run in the same place, where its memory is too: [`HostMemory`] or `DeviceMemory`.
//!
//! # Chunks
//!
//! All stages process a chunk before its scratch is reused. A buffer is either per item, or the same for
//! all chunks. A stage gets only its chunk's items of a buffer per item.
//!
//! No chunk reads what another chunk writes, except in an [accumulator](PipelineBuilder::accumulator),
//! which makes chunks run one at a time. The result is therefore the same for every chunk size, except for
//! the order of the updates of an accumulator.
//!
//! # Batches larger than the device
//!
//! Buffers per item can be in pinned host memory: [`PipelineBuilder::in_host_memory`]. A chunk's items are
//! then in scratch while stages use them, and the copies of a chunk overlap the stages of the other chunks
//! in flight.
//!
//! # Graphs
//!
//! On a device, a plan can run as one CUDA graph of all chunks: [`PipelinePlan::as_graph`]. One graph for
//! all chunks is a single call to the driver, and chunks in flight are its branches.
//!
//! # Tuned plans
//!
//! With the feature `profile`, chunk, chunks in flight and launch parameters can come from an entry of a
//! profile, which `gridguard-autotune` measures: `Pipeline::key` names the entry, `Pipeline::tuned` looks
//! it up, and `Pipeline::plan_tuned` plans it.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod buffer;
mod builder;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "launches, copies and graphs")]
mod cuda;
mod definition;
mod error;
mod host;
mod host_memory;
mod layout;
mod memory;
mod pipeline;
mod plan;
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "the one module that calls cuBLASLt")]
mod product;
mod progress;
mod run;
#[cfg(feature = "profile")]
mod tuned;

pub use buffer::Buffer;
pub use builder::{IN_FLIGHT, PipelineBuilder, StageBuilder};
#[cfg(feature = "cuda")]
pub use cuda::memory::{DeviceMemory, PipelineScratch};
#[cfg(feature = "cuda")]
pub use cuda::views::{DeviceRange, DeviceViews};
pub use error::{Error, ErrorKind, StageResult};
pub use host_memory::{HostMemory, Views};
pub use pipeline::Pipeline;
pub use plan::{Budget, PipelinePlan};
#[cfg(feature = "cuda")]
pub use product::{CublasLt, Product, ProductBuffers, ProductElement, ProductShape};
pub use progress::{Monitor, PipelineRun, Progress};
pub use run::PipelineMemory;
#[cfg(feature = "profile")]
pub use tuned::TunedPlan;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
