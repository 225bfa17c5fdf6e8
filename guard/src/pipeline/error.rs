//! Why a pipeline cannot be built, planned or run to its end.

use core::error::Error;
use core::fmt;
use std::sync::Arc;

use crate::launch::violation::Violations;
use crate::pipeline::progress::PipelineRun;
use crate::plan::chunks::Chunk;

/// Why buffers and stages are no pipeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Nothing to run.
    #[error("the pipeline has no stages")]
    NoStages,
    /// More stages, buffers or parameters than a pipeline can have.
    #[error("the pipeline has {given} {parts}, the limit is {most}")]
    TooMany {
        /// `stages`, `buffers` or `parameters`.
        parts: &'static str,
        /// How many there are.
        given: usize,
        /// How many there may be.
        most: usize,
    },
    /// Two stages, two buffers or two parameters have the same name.
    #[error("two {parts} have the name {name}")]
    SameName {
        /// `stages`, `buffers` or `parameters`.
        parts: &'static str,
        /// Their name.
        name: String,
    },
    /// A buffer without bytes.
    #[error("buffer {buffer} has elements of no bytes, or none")]
    EmptyBuffer {
        /// The buffer.
        buffer: String,
    },
    /// The size of a buffer exceeds 64 bits.
    #[error("buffer {buffer} has more than 2^64 - 1 bytes an item")]
    TooLarge {
        /// The buffer.
        buffer: String,
    },
    /// The sum of all scratch exceeds 64 bits.
    #[error("the scratch buffers have more than 2^64 - 1 bytes an item")]
    ScratchTooLarge,
    /// Elements need a larger alignment than scratch has.
    #[error("elements of buffer {buffer} are aligned to {alignment} bytes, the limit is {limit}")]
    Overaligned {
        /// The buffer.
        buffer: String,
        /// The alignment of its elements.
        alignment: usize,
        /// The alignment of scratch.
        limit: u64,
    },
    /// A buffer whose items are not copied chunk by chunk was declared to be in host memory.
    #[error(
        "{buffer} cannot be in host memory: only an input, an output or an in-place buffer of the \
         pipeline can, each per item"
    )]
    NotOnHost {
        /// The buffer.
        buffer: String,
    },
    /// A stage uses a handle that another pipeline returned.
    #[error("stage {stage} uses a buffer of another pipeline")]
    OtherPipeline {
        /// The stage.
        stage: String,
    },
    /// A stage declares two uses of a buffer.
    #[error(
        "stage {stage} declares buffer {buffer} twice: declare one that is read and written with updates"
    )]
    DeclaredTwice {
        /// The stage.
        stage: String,
        /// The buffer.
        buffer: String,
    },
    /// A stage reads a buffer from an element on that it does not have.
    #[error("stage {stage} reads {buffer} from element {first} on, it has {elements}")]
    PastTheEnd {
        /// The stage.
        stage: String,
        /// The buffer.
        buffer: String,
        /// The element, counted from 0.
        first: u64,
        /// Elements of the buffer, of one item if it is per item.
        elements: u64,
    },
    /// A stage writes what this or another chunk reads as input.
    #[error(
        "stage {stage} writes input {buffer}, which other stages and chunks read: declare the buffer \
         with in_place, or with accumulator if all chunks update it"
    )]
    WritesInput {
        /// The stage.
        stage: String,
        /// The buffer.
        buffer: String,
    },
    /// A stage reads what no stage wrote.
    #[error(
        "stage {stage} reads {buffer}, which no stage before it writes: declare the stage that does, \
         or the buffer as input or in_place if the caller fills it"
    )]
    ReadBeforeWritten {
        /// The stage.
        stage: String,
        /// The buffer.
        buffer: String,
    },
    /// A stage reads or overwrites what other chunks wrote.
    #[error(
        "stage {stage} does not update accumulator {buffer} but reads or overwrites what other chunks \
         left there: declare the use with updates, or the buffer per item"
    )]
    AccumulatorNotUpdated {
        /// The stage.
        stage: String,
        /// The buffer.
        buffer: String,
    },
    /// No stage writes an output.
    #[error("no stage writes output {buffer}")]
    NeverWritten {
        /// The buffer.
        buffer: String,
    },
    /// No stage uses a buffer.
    #[error("no stage uses buffer {buffer}")]
    NeverUsed {
        /// The buffer.
        buffer: String,
    },
    /// A stage's launch is for another batch.
    #[error("the launch of stage {stage} has a batch of {batch} items, the pipeline has {items}")]
    OtherBatch {
        /// The stage.
        stage: String,
        /// Items of the launch's batch.
        batch: u64,
        /// Items of the pipeline.
        items: u64,
    },
}

/// Why no chunk is legal for every stage and within the budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A stage's launch breaks rules, whole and in chunks.
    #[error("stage {stage}: {violations}")]
    Stage {
        /// The stage.
        stage: String,
        /// The rules.
        violations: Violations,
    },
    /// The smallest chunk that suits all stages is too large for one of them, or for the caller.
    #[error(
        "{limited_by} allows chunks of at most {largest} items, the smallest that keeps the alignment of \
         every stage has {unit}: raise the limit, or lower an alignment"
    )]
    NoCommonChunk {
        /// `stage NAME`, or `the budget`.
        limited_by: String,
        /// Items that it allows.
        largest: u64,
        /// Items of the smallest chunk.
        unit: u64,
    },
    /// The scratch of the smallest chunk exceeds the budget.
    #[error(
        "the budget is {budget} bytes, the smallest possible chunk of {chunk} items needs {smallest} \
         bytes of scratch: raise the budget to that"
    )]
    BudgetTooSmall {
        /// Bytes of the budget.
        budget: u64,
        /// The smallest budget in bytes that works; saturated.
        smallest: u64,
        /// Items of the smallest chunk.
        chunk: u64,
    },
}

/// Why the caller's memory does not fit the pipeline; nothing ran.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A buffer has no memory.
    #[error("buffer {buffer} has no memory")]
    Missing {
        /// The buffer.
        buffer: String,
    },
    /// A buffer got memory twice.
    #[error("buffer {buffer} has memory twice")]
    Twice {
        /// The buffer.
        buffer: String,
    },
    /// A handle that another pipeline returned.
    #[error("memory was given for a buffer of another pipeline")]
    OtherPipeline,
    /// Memory to read for a buffer that is written, or the other way round, or any for scratch.
    #[error("buffer {buffer} takes {expected}, not {given}")]
    WrongKind {
        /// The buffer.
        buffer: String,
        /// What it takes.
        expected: &'static str,
        /// What it got.
        given: &'static str,
    },
    /// More memory than the arguments of a launch can be.
    #[error("the pipeline has {given} buffers of the caller, the limit is {most}")]
    TooMany {
        /// How many got memory.
        given: usize,
        /// How many can.
        most: usize,
    },
    /// A stream or memory of another device or context.
    #[error("{what} belongs to another CUDA context than the guard")]
    OtherContext {
        /// Which of them.
        what: &'static str,
    },
    /// A stream for each chunk in flight is missing.
    #[error("the plan has {in_flight} chunks in flight, but there are only {streams} streams")]
    TooFewStreams {
        /// Chunks in flight.
        in_flight: u64,
        /// Streams.
        streams: usize,
    },
    /// A stream that is being captured into a graph.
    #[error(
        "a stream is being captured, and a graph keeps no memory of a pipeline: run it after the capture"
    )]
    Captured,
    /// Memory at another place than the pipeline was captured with.
    #[error(
        "buffer {buffer} is other memory than the graph was captured with: give the same, or capture \
         again"
    )]
    OtherMemory {
        /// The buffer.
        buffer: String,
    },
    /// Memory of another length.
    #[error("buffer {buffer} has {given} bytes, the items of the pipeline need {needed}")]
    WrongLength {
        /// The buffer.
        buffer: String,
        /// Bytes that all items need.
        needed: u128,
        /// Bytes that it got.
        given: u64,
    },
}

/// Why a stage has no such view.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The stage did not declare that it reads the buffer, and no more than that.
    #[error("stage {stage} did not declare that it reads {buffer}")]
    NotRead {
        /// The stage.
        stage: String,
        /// The buffer.
        buffer: String,
    },
    /// The stage did not declare that it writes or updates the buffer, or has this view already.
    #[error("stage {stage} did not declare that it writes {buffer}, or has taken its view already")]
    NotWritten {
        /// The stage.
        stage: String,
        /// The buffer.
        buffer: String,
    },
}

/// Why a stage failed. Any error converts into [`Self::Failed`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StageError {
    /// Out of memory: a smaller chunk is tried, where the stages can run again.
    OutOfMemory(Arc<dyn Error + Send + Sync>),
    /// Another reason: nothing more is tried.
    Failed(Arc<dyn Error + Send + Sync>),
    /// It panicked: the pipeline is poisoned.
    Panicked {
        /// The panic's message.
        message: String,
    },
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

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(source) | Self::Failed(source) => source.fmt(f),
            Self::Panicked { message } => write!(f, "it panicked: {message}"),
        }
    }
}

/// Two errors are equal if their kinds and their messages are.
impl PartialEq for StageError {
    fn eq(&self, other: &Self) -> bool {
        let kind = core::mem::discriminant::<Self>;
        kind(self) == kind(other) && self.to_string() == other.to_string()
    }
}

/// Why a pipeline did not run to its end. The message includes that of the `source`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunError {
    /// The plan is another pipeline's; nothing ran.
    OtherPlan,
    /// The caller's memory does not fit; nothing ran.
    Memory(MemoryError),
    /// The device, or a kernel of another one; nothing ran.
    Device {
        /// Why it cannot run.
        source: StageError,
    },
    /// A stage panicked in an earlier run; nothing ran.
    Poisoned {
        /// That stage.
        stage: String,
    },
    /// A stage is a call, whose work a graph may not repeat; nothing ran.
    NotCapturable {
        /// The stage.
        stage: String,
    },
    /// There is no scratch for the chunks, nor for smaller ones if it was out of memory.
    Scratch {
        /// Items of a chunk.
        chunk: u64,
        /// Bytes of the allocation.
        bytes: u64,
        /// Items of the pipeline.
        items: u64,
        /// What was done before.
        done: Box<PipelineRun>,
        /// Why the allocation failed.
        source: StageError,
    },
    /// The device reported a failure of chunks that were submitted before, while a monitored run waited
    /// for them.
    Late {
        /// Items of the pipeline.
        items: u64,
        /// What was done before.
        done: Box<PipelineRun>,
        /// What it reported.
        source: StageError,
    },
    /// A stage failed.
    Stage {
        /// The stage.
        stage: String,
        /// The chunk that it failed at.
        chunk: Chunk,
        /// Items of the pipeline.
        items: u64,
        /// What was done before.
        done: Box<PipelineRun>,
        /// Why it failed.
        source: StageError,
    },
}

impl RunError {
    /// What was done before the failure; `None` if nothing was begun.
    #[must_use]
    pub fn done(&self) -> Option<&PipelineRun> {
        match self {
            Self::Scratch { done, .. } | Self::Stage { done, .. } | Self::Late { done, .. } => {
                Some(done)
            }
            _ => None,
        }
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherPlan => f.write_str("the plan was made for another pipeline"),
            Self::Memory(error) => error.fmt(f),
            Self::Device { source } => source.fmt(f),
            Self::Poisoned { stage } => write!(
                f,
                "stage {stage} panicked in an earlier run: build the pipeline again to run it"
            ),
            Self::NotCapturable { stage } => write!(
                f,
                "stage {stage} is a call, whose work a graph may not repeat: declare it with \
                 call_in_graphs, or run the pipeline without a graph"
            ),
            Self::Scratch { chunk, bytes, items, done, source } => write!(
                f,
                "cannot allocate {bytes} bytes of scratch for a chunk of {chunk} items, after {done} of \
                 {items} items: {source}",
                done = done.items_done
            ),
            Self::Late { items, done, source } => write!(
                f,
                "the device failed after {done} of {items} items: {source}",
                done = done.items_done
            ),
            Self::Stage { stage, chunk, items, done, source } => write!(
                f,
                "stage {stage} failed at chunk {index} (items {start}..{end}), after {done} of {items} \
                 items: {source}",
                index = chunk.index,
                start = chunk.start,
                end = chunk.end(),
                done = done.items_done
            ),
        }
    }
}

impl Error for RunError {}

impl From<MemoryError> for RunError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}
