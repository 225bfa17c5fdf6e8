//! Pipelines: a batch of items through several stages, chunk by chunk, within a memory budget.
//!
//! A batch that does not fit into memory as a whole often fits if chunks of it go through all stages, one
//! after another: intermediates then need memory for a chunk only. A pipeline declares its buffers and
//! the stages that read and write them, and from these it derives the rest: which scratch buffers can
//! share memory, the largest chunk that is legal for every stage and fits a [`Budget`], and what that
//! takes, before anything runs.
//!
//! ```
//! # #[cfg(feature = "host")] {
//! use gridguard::pipeline::{Budget, HostMemory, HostPipeline};
//!
//! // y = (x + 1)², 100,000 items of 4 numbers, with 64 KiB of scratch.
//! let mut builder = HostPipeline::builder(100_000);
//! let x = builder.input::<f32>("x", 4);
//! let sum = builder.scratch::<f32>("sum", 4);
//! let y = builder.output::<f32>("y", 4);
//! builder
//!     .stage("add", move |_, views| {
//!         let (x, sum) = (views.read(x)?, views.write(sum)?);
//!         sum.iter_mut().zip(x).for_each(|(sum, x)| *sum = x + 1.0);
//!         Ok(())
//!     })
//!     .reads(x)
//!     .writes(sum);
//! builder
//!     .stage("square", move |_, views| {
//!         let (sum, y) = (views.read(sum)?, views.write(y)?);
//!         y.iter_mut().zip(sum).for_each(|(y, sum)| *y = sum * sum);
//!         Ok(())
//!     })
//!     .reads(sum)
//!     .writes(y);
//! let mut pipeline = builder.build()?;
//!
//! let plan = pipeline.plan(&Budget::bytes(64 << 10))?;
//! assert_eq!((plan.chunk_items(), plan.len(), plan.bytes()), (4000, 25, 64_000));
//!
//! let (from, mut to) = (vec![2.0_f32; 400_000], vec![0.0_f32; 400_000]);
//! let run = pipeline.run(&plan, HostMemory::new().read(x, &from).write(y, &mut to))?;
//! assert_eq!(run.items_done, 100_000);
//! assert!(to.iter().all(|y| *y == 9.0));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Chunks
//!
//! A chunk goes through all stages before its scratch is used for another one. A buffer is either per
//! item, so that a stage sees the elements of its chunk's items and no others, or the same for all
//! chunks. What a chunk writes no other chunk reads: inputs are never written, and an
//! [accumulator](PipelineBuilder::accumulator), which all chunks update, makes them run one at a time.
//! The result is then the same for every chunk size, except for the order in which an accumulator is
//! updated.
//!
//! # Batches larger than the device
//!
//! Buffers per item can be in pinned host memory: [`PipelineBuilder::in_host_memory`]. A chunk's items
//! then lie in scratch while stages use them, and the copies of a chunk overlap the stages of the others
//! in flight. Stages do not see the difference.
//!
//! # Graphs
//!
//! On a device a pipeline can be captured as one CUDA graph of all chunks, and replayed over the same
//! memory: `Guard::capture_pipeline`. It is one graph rather than one a chunk, because the addresses of
//! each chunk are fixed in it: a replay is a single call to the driver, chunks in flight are its branches,
//! and a last chunk of another size is a part like the others.
//!
//! # Tuned plans
//!
//! With the feature `profile`, chunk, chunks in flight and launch parameters can come from an entry of a
//! profile, which `gridguard-autotune` measures: `Pipeline::key` names the entry, `Pipeline::tuned` looks
//! it up, and `TunedPipeline::plan` plans as it says, within a budget that it cannot exceed.

pub(crate) mod buffer;
pub(crate) mod builder;
pub(crate) mod definition;
pub(crate) mod error;
#[cfg(feature = "host")]
pub(crate) mod host;
#[cfg(feature = "host")]
pub(crate) mod host_memory;
pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod run;
#[cfg(feature = "profile")]
pub(crate) mod tuned;

pub use buffer::Buffer;
pub use builder::{IN_FLIGHT, MAX_PARTS, PipelineBuilder, StageBuilder};
pub use definition::Pipeline;
pub use error::{BuildError, MemoryError, PlanError, RunError, StageError, ViewError};
#[cfg(feature = "host")]
pub use host::{HostPipeline, HostStage};
#[cfg(feature = "host")]
pub use host_memory::{HostMemory, Views};
pub use plan::{Budget, PipelinePlan, StageMemory};
pub use progress::{Monitor, PipelineRun, Progress};
#[cfg(feature = "profile")]
pub use tuned::{EntryRefusal, TunedPipeline, TunedPlan};
