//! Errors of building, planning and running a pipeline.

use core::error::Error;
use std::sync::Arc;

use derive_more::Display;

use crate::progress::PipelineRun;
use gridguard::Chunk;
use gridguard::Violations;

/// A stage, and a buffer that it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferUse {
    /// The name of the stage.
    pub stage: String,
    /// The name of the buffer.
    pub buffer: String,
}

impl BufferUse {
    pub(crate) fn new(stage: impl Into<String>, buffer: impl Into<String>) -> Self {
        Self { stage: stage.into(), buffer: buffer.into() }
    }
}

/// Why declared buffers and stages do not form a pipeline. A lone string is the name of the buffer or stage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum BuildError {
    /// There is nothing to run.
    #[error("the pipeline has no stages")]
    NoStages,
    /// The pipeline has too many stages, buffers or parameters.
    #[error("the pipeline has {given} {parts}, the limit is {most}")]
    TooMany { parts: &'static str, given: usize, most: usize },
    /// Two stages, two buffers or two parameters have the same name.
    #[error("two {parts} have the name {name}")]
    SameName { parts: &'static str, name: String },
    /// A buffer has no bytes.
    #[error("buffer {0} is empty: zero elements, or a zero-sized type")]
    EmptyBuffer(String),
    /// The size of a buffer exceeds 64 bits.
    #[error("buffer {0} has more than 2^64 - 1 bytes an item")]
    TooLarge(String),
    /// The size of all scratch buffers exceeds 64 bits.
    #[error("the scratch buffers have more than 2^64 - 1 bytes an item")]
    ScratchTooLarge,
    /// The element type needs a larger alignment than scratch has.
    #[error("elements of buffer {buffer} are aligned to {alignment} bytes, the limit is {limit}")]
    Overaligned { buffer: String, alignment: usize, limit: u64 },
    /// The buffer cannot be copied chunk by chunk.
    #[error(
        "{0} cannot be in host memory: only an input, an output or an in-place buffer of the pipeline \
         can, each per item"
    )]
    NotOnHost(String),
    /// A stage uses a buffer of another pipeline.
    #[error("stage {0} uses a buffer of another pipeline")]
    OtherPipeline(String),
    /// A stage that launches no kernel has kernel arguments.
    #[error("stage {0} launches no kernel: remove its arguments, or declare it with kernel")]
    NoKernel(String),
    /// A stage declares two uses of a buffer.
    #[error(
        "stage {} declares buffer {} twice: declare one that is read and written with update",
        .0.stage, .0.buffer
    )]
    DeclaredTwice(BufferUse),
    /// A stage reads from an element that the buffer, or one of its items, does not have. Elements count from 0.
    #[error("stage {stage} reads {buffer} from element {first} on, it has {elements}")]
    PastTheEnd { stage: String, buffer: String, first: u64, elements: u64 },
    /// A stage writes an input.
    #[error(
        "stage {} writes input {}, which other stages and chunks read: declare the buffer with \
         in_place, or with accumulator if all chunks update it",
        .0.stage, .0.buffer
    )]
    WritesInput(BufferUse),
    /// A stage reads a buffer before any stage writes it.
    #[error(
        "stage {} reads {}, which no stage before it writes: declare the stage that does, or the \
         buffer as input or in_place if the caller fills it",
        .0.stage, .0.buffer
    )]
    ReadBeforeWritten(BufferUse),
    /// A stage reads or overwrites an accumulator instead of updating it.
    #[error(
        "stage {} does not update accumulator {} but reads or overwrites what other chunks left \
         there: declare the use with update, or the buffer per item",
        .0.stage, .0.buffer
    )]
    AccumulatorNotUpdated(BufferUse),
    /// No stage writes an output.
    #[error("no stage writes output {0}")]
    NeverWritten(String),
    /// No stage uses a buffer.
    #[error("no stage uses buffer {0}")]
    NeverUsed(String),
    /// A stage's launch is for another number of items.
    #[error("the launch of stage {stage} has a batch of {batch} items, the pipeline has {items}")]
    OtherBatch { stage: String, batch: u64, items: u64 },
}

/// Why no chunk is legal for every stage and within the budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum PlanError {
    /// A stage's launch is illegal, whole and in chunks.
    #[error("stage {stage}: {violations}")]
    Stage { stage: String, violations: Violations },
    /// The smallest chunk that keeps every alignment is larger than a stage or the budget allows.
    #[error(
        "{limited_by} allows chunks of at most {largest} items, the smallest that keeps the alignment of \
         every stage has {unit}: raise the limit, or lower an alignment"
    )]
    NoCommonChunk { limited_by: String, largest: u64, unit: u64 },
    /// The scratch of the smallest chunk exceeds the budget.
    #[error(
        "the budget is {budget} bytes, the smallest possible chunk of {chunk} items needs {smallest} \
         bytes of scratch: raise the budget to that"
    )]
    BudgetTooSmall { budget: u64, smallest: u64, chunk: u64 },
}

/// Why the caller's memory does not fit the pipeline. A lone string is the name of the buffer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum MemoryError {
    /// A buffer has no memory.
    #[error("buffer {0} has no memory")]
    Missing(String),
    /// A buffer got memory twice.
    #[error("buffer {0} has memory twice")]
    Twice(String),
    /// Memory was given for a buffer of another pipeline.
    #[error("memory was given for a buffer of another pipeline")]
    OtherPipeline,
    /// Memory to read was given for a buffer that is written, or the other way round, or any for scratch.
    #[error("buffer {buffer} takes {expected}, not {given}")]
    WrongKind { buffer: String, expected: &'static str, given: &'static str },
    /// More buffers have memory than a launch can have arguments.
    #[error("the pipeline has {given} buffers of the caller, the limit is {most}")]
    TooMany { given: usize, most: usize },
    /// A stream, memory or a product belongs to another device or context.
    #[error("{0} belongs to another CUDA context than the guard")]
    OtherContext(&'static str),
    /// There are fewer streams than chunks in flight.
    #[error("the plan has {in_flight} chunks in flight, but there are only {streams} streams")]
    TooFewStreams { in_flight: u64, streams: usize },
    /// A stream is being captured into a graph.
    #[error(
        "a stream is being captured, and a graph keeps no memory of a pipeline: run it after the capture"
    )]
    Captured,
    /// A graph was captured with other memory.
    #[error(
        "buffer {0} is other memory than the graph was captured with: give the same, or run a new \
         plan.as_graph()"
    )]
    OtherMemory(String),
    /// Memory has another length.
    #[error("buffer {buffer} has {given} bytes, the items of the pipeline need {needed}")]
    WrongLength { buffer: String, needed: u128, given: u64 },
}

/// Why a stage failed. Any error converts into [`Self::Failed`].
#[derive(Clone, Debug, Display)]
#[non_exhaustive]
pub enum StageError {
    /// Out of memory: a smaller chunk is tried, where the stages can run again.
    OutOfMemory(Arc<dyn Error + Send + Sync>),
    /// Another reason: the run ends.
    Failed(Arc<dyn Error + Send + Sync>),
    /// The stage panicked, with this message: the pipeline does not run again.
    #[display("it panicked: {_0}")]
    Panicked(String),
    /// The stage did not declare that it reads the buffer, or declared that it also writes it.
    #[display("stage {} did not declare that it reads {}", _0.stage, _0.buffer)]
    NotRead(Box<BufferUse>),
    /// The stage did not declare that it writes the buffer, or has taken its view already.
    #[display(
        "stage {} did not declare that it writes {}, or has taken its view already", _0.stage, _0.buffer
    )]
    NotWritten(Box<BufferUse>),
}

impl StageError {
    /// The stage ran out of memory that is not the pipeline's scratch.
    pub fn out_of_memory(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::OutOfMemory(source.into().into())
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for StageError {
    fn from(source: E) -> Self {
        Self::Failed(source.into().into())
    }
}

/// Two errors are equal if their kinds and their messages are.
impl PartialEq for StageError {
    fn eq(&self, other: &Self) -> bool {
        let kind = core::mem::discriminant::<Self>;
        kind(self) == kind(other) && self.to_string() == other.to_string()
    }
}

/// Why a run failed. Only the variants with `done` began to run; a lone string is the name of the stage.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum RunError {
    /// The plan is for another pipeline.
    #[error("the plan was made for another pipeline")]
    OtherPlan,
    /// The caller's memory does not fit.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The device cannot be used, or a kernel belongs to another one.
    #[error("{0}")]
    Device(StageError),
    /// A stage panicked in an earlier run.
    #[error("stage {0} panicked in an earlier run: build the pipeline again to run it")]
    Poisoned(String),
    /// The pipeline is an [outline](super::Pipeline::outline), or a stage was declared without work.
    #[error("stage {0} has no work: an outline can be planned, but not run")]
    Outline(String),
    /// The stage runs on the host and the memory is on a device, or the other way round.
    #[error("stage {stage} runs on {runs_on}, the memory given is on {memory_on}")]
    OtherBackend { stage: String, runs_on: &'static str, memory_on: &'static str },
    /// The stage is a call, which a graph would not repeat.
    #[error(
        "stage {0} is a call, whose work a graph may not repeat: declare it with call_in_graphs, or run \
         the pipeline without a graph"
    )]
    NotCapturable(String),
    /// A graph cannot be monitored, because all of its chunks are submitted at once.
    #[error(
        "a graph submits all chunks at once and cannot be monitored: remove the monitor, or run the plan \
         without as_graph"
    )]
    MonitoredGraph,
    /// The scratch of a chunk cannot be allocated. If memory ran out, smaller chunks failed, too.
    #[error(
        "cannot allocate {bytes} bytes of scratch for a chunk of {chunk} items, after {} of {items} \
         items: {error}",
        .done.items_done
    )]
    Scratch { chunk: u64, bytes: u64, items: u64, done: Box<PipelineRun>, error: StageError },
    /// The device reported a failure of earlier chunks while a monitored run waited for them.
    #[error("the device failed after {} of {items} items: {error}", .done.items_done)]
    Late { items: u64, done: Box<PipelineRun>, error: StageError },
    /// A stage failed.
    #[error(
        "stage {stage} failed at chunk {} (items {}..{}), after {} of {items} items: {error}",
        .chunk.index, .chunk.start, .chunk.end(), .done.items_done
    )]
    Stage { stage: String, chunk: Chunk, items: u64, done: Box<PipelineRun>, error: StageError },
}

impl RunError {
    #[cfg(feature = "cuda")]
    pub(crate) fn device(error: impl Into<StageError>) -> Self {
        Self::Device(error.into())
    }

    /// The work done before the failure; `None` if the run did not begin.
    pub fn done(&self) -> Option<&PipelineRun> {
        match self {
            Self::Scratch { done, .. } | Self::Stage { done, .. } | Self::Late { done, .. } => {
                Some(done)
            }
            _ => None,
        }
    }
}
