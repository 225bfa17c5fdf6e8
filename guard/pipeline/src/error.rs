//! The error of this crate.

use core::error::Error as StdError;
use core::fmt;
use std::sync::Arc;

use gridguard::Violations;

use crate::progress::PipelineRun;

/// The result of a stage. Any error converts with `?`, and ends the run;
/// [`Error::out_of_memory`] lets smaller chunks run instead.
pub type StageResult = Result<(), StageError>;

/// The error of a stage, of any type.
pub(crate) type StageError = Box<dyn StdError + Send + Sync>;

/// Why a pipeline cannot be built, planned or run.
///
/// The message says what to change. The [kind](Self::kind) tells apart what a program may handle.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    stage: Option<String>,
    violations: Option<Violations>,
    done: Option<PipelineRun>,
    cause: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The declared buffers and stages do not form a pipeline.
    Declaration,
    /// A stage's launch is illegal, whole and in chunks: [`Error::violations`].
    Illegal,
    /// The smallest chunk that keeps every alignment is larger than a stage or the budget allows.
    Alignment,
    /// The budget is too small for any chunk.
    Budget {
        /// The bytes of scratch of the smallest possible chunk.
        smallest: u64,
        /// The items of that chunk.
        chunk: u64,
    },
    /// A profile's entry is not for this pipeline, or exceeds the budget.
    Entry,
    /// The caller's memory or streams do not fit the pipeline.
    Memory,
    /// A stream is being captured into a graph.
    Captured,
    /// The plan or the pipeline does not run in this way.
    Unrunnable,
    /// The device cannot be used, or reported a failure of earlier work.
    Device,
    /// Memory ran out, and no smaller chunk is possible.
    OutOfMemory,
    /// A product of matrices cannot be computed.
    Product,
    /// A stage asked for a view that it did not declare.
    View,
    /// A stage failed.
    Stage,
    /// A stage panicked, in this run or an earlier one: the pipeline does not run again.
    Panicked,
}

impl Error {
    /// A stage ran out of memory that is not the pipeline's scratch: a smaller chunk is tried, where the
    /// stages can run again.
    pub fn out_of_memory(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::caused_by(ErrorKind::OutOfMemory, source)
    }

    /// The kind.
    pub const fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The name of the stage that cannot be planned or run; `None` if no stage is the cause.
    pub fn stage(&self) -> Option<&str> {
        self.0.stage.as_deref()
    }

    /// The rules that a stage's launch breaks: of [`ErrorKind::Illegal`].
    pub const fn violations(&self) -> Option<&Violations> {
        self.0.violations.as_ref()
    }

    /// The work done before the failure; `None` if the run did not begin.
    pub const fn done(&self) -> Option<&PipelineRun> {
        self.0.done.as_ref()
    }

    /// The error of a stage, the driver or a library, whose text is part of the message.
    pub fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.cause.as_deref().map(|cause| -> &(dyn StdError + 'static) { cause })
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        let (stage, violations, done, cause) = (None, None, None, None);
        Self(Box::new(Inner { kind, message, stage, violations, done, cause }))
    }

    /// An error with the text of `cause`. An error of this crate stays what it is.
    pub(crate) fn caused_by(kind: ErrorKind, cause: impl Into<StageError>) -> Self {
        let cause = match cause.into().downcast::<Self>() {
            // Unless a stage ran another pipeline.
            Ok(error) if error.stage().is_none() && error.done().is_none() => return *error,
            Ok(error) => error,
            Err(cause) => cause,
        };
        let mut error = Self::new(kind, cause.to_string());
        error.0.cause = Some(cause.into());
        error
    }

    pub(crate) fn declaration(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Declaration, message)
    }

    pub(crate) fn memory(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Memory, message)
    }

    pub(crate) fn unrunnable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unrunnable, message)
    }

    pub(crate) fn illegal(stage: &str, violations: Violations) -> Self {
        let mut error = Self::new(ErrorKind::Illegal, format!("stage {stage}: {violations}"));
        error.0.violations = Some(violations);
        error.at_stage(stage)
    }

    pub(crate) fn not_read(stage: &str, buffer: &str) -> Self {
        let message = format!("stage {stage} did not declare that it reads {buffer}");
        Self::new(ErrorKind::View, message)
    }

    pub(crate) fn not_written(stage: &str, buffer: &str) -> Self {
        let message = format!(
            "stage {stage} did not declare that it writes {buffer}, or has taken its view already"
        );
        Self::new(ErrorKind::View, message)
    }

    pub(crate) fn at_stage(mut self, stage: &str) -> Self {
        self.0.stage = Some(stage.to_owned());
        self
    }

    /// Puts `what` before the message, and says what was done before.
    pub(crate) fn after(mut self, done: &PipelineRun, what: &str) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self.0.done = Some(done.clone());
        self
    }
}

#[cfg(feature = "cuda")]
impl Error {
    pub(crate) fn device(cause: impl Into<StageError>) -> Self {
        Self::caused_by(ErrorKind::Device, cause)
    }

    pub(crate) fn product(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Product, message)
    }

    pub(crate) fn other_context(what: &str) -> Self {
        Self::memory(format!("{what} belongs to another CUDA context than the guard"))
    }

    pub(crate) fn captured() -> Self {
        let message = "a stream is being captured, and a graph keeps no memory of a pipeline: run it \
                       after the capture";
        Self::new(ErrorKind::Captured, message)
    }

    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The message has the text of the cause.
        self.cause().and_then(StdError::source)
    }
}

/// Equal in kind and message.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        (self.0.kind, &self.0.message) == (other.0.kind, &other.0.message)
    }
}

impl Eq for Error {}
