//! Runs a plan's chunks on a back end, in smaller chunks where memory runs out.

use std::borrow::Cow;
use std::time::Instant;

use crate::pipeline::definition::Definition;
use crate::pipeline::error::{RunError, StageError};
use crate::pipeline::plan::PipelinePlan;
use crate::pipeline::progress::{Monitor, PipelineRun, Progress};
use crate::plan::chunks::Chunk;

/// Where stages run.
pub(crate) trait Backend {
    /// Frees the scratch that it has, and allocates that of `plan`.
    ///
    /// # Errors
    ///
    /// [`StageError::OutOfMemory`] if a smaller allocation may succeed.
    fn allocate(&mut self, plan: &PipelinePlan) -> Result<(), StageError>;

    /// Checks each stage before the first chunk of `plan` runs in the scratch that was allocated for it.
    ///
    /// # Errors
    ///
    /// The index of a stage that cannot run, and why.
    fn prepare(&mut self, plan: &PipelinePlan) -> Result<(), (usize, StageError)> {
        let _ = plan;
        Ok(())
    }

    /// Runs consecutive chunks of `plan`, as many as are in flight.
    ///
    /// # Errors
    ///
    /// The first chunk that failed. Later ones may have run.
    fn run(&mut self, plan: &PipelinePlan, chunks: &[Chunk]) -> Result<(), ChunkFailure>;

    /// Waits for the chunks that are still running.
    ///
    /// # Errors
    ///
    /// Why any of them failed.
    fn wait(&mut self) -> Result<(), StageError> {
        Ok(())
    }
}

/// A chunk that failed.
#[derive(Debug)]
pub(crate) struct ChunkFailure {
    /// Which of the chunks that were to run.
    pub(crate) position: usize,
    /// The index of the stage that failed.
    pub(crate) stage: usize,
    pub(crate) source: StageError,
}

/// Runs all chunks of `plan`, which is one of the pipeline's.
pub(crate) fn run(
    definition: &Definition,
    plan: &PipelinePlan,
    backend: &mut impl Backend,
    mut monitor: Option<&mut dyn Monitor>,
) -> Result<PipelineRun, RunError> {
    let (mut plan, mut done) = (Cow::Borrowed(plan), PipelineRun::default());
    let (begun, items) = (Instant::now(), definition.items);
    while !plan.is_empty() {
        done.tried.push(plan.chunk_items());
        let ended = run_plan(definition, &plan, backend, &mut monitor, begun, &mut done);
        let Err(failure) = ended else { break };
        let (chunk, bytes) = (plan.chunk_items(), plan.bytes());
        if failure.is_out_of_memory(definition)
            && let Some(smaller) = definition.plan_smaller(&plan, done.items_done)
        {
            plan = Cow::Owned(smaller);
            continue;
        }
        let done = Box::new(done);
        return Err(match failure {
            Failure::Scratch(source) => RunError::Scratch { chunk, bytes, items, done, source },
            Failure::Late(source) => RunError::Late { items, done, source },
            Failure::Stage { stage, chunk, source } => {
                let name = definition.stages.get(stage).map(|stage| stage.name.clone());
                let stage = name.unwrap_or_default();
                RunError::Stage { stage, chunk, items, done, source }
            }
        });
    }
    Ok(done)
}

/// Why a plan was not run to its end.
enum Failure {
    Scratch(StageError),
    Late(StageError),
    Stage { stage: usize, chunk: Chunk, source: StageError },
}

impl Failure {
    /// Whether smaller chunks may help, and the failed one can run again.
    fn is_out_of_memory(&self, definition: &Definition) -> bool {
        match self {
            Self::Scratch(source) => matches!(source, StageError::OutOfMemory(_)),
            Self::Late(_) => false,
            Self::Stage { source, .. } => {
                matches!(source, StageError::OutOfMemory(_)) && definition.can_run_again()
            }
        }
    }
}

/// Runs `plan`, which is for the items that are not `done`, to its end or until it is cancelled.
fn run_plan(
    definition: &Definition,
    plan: &PipelinePlan,
    backend: &mut impl Backend,
    monitor: &mut Option<&mut dyn Monitor>,
    begun: Instant,
    done: &mut PipelineRun,
) -> Result<(), Failure> {
    let bytes = plan.bytes();
    if monitor.as_mut().is_some_and(|monitor| bytes > 0 && !monitor.may_allocate(bytes)) {
        return Err(Failure::Scratch(StageError::out_of_memory("refused by the monitor")));
    }
    backend.allocate(plan).map_err(Failure::Scratch)?;
    done.scratch_bytes = done.scratch_bytes.max(bytes);
    if let Some(first) = plan.chunks().next() {
        let chunk = Chunk { index: done.chunks, ..first };
        let failed = |(stage, source)| Failure::Stage { stage, chunk, source };
        backend.prepare(plan).map_err(failed)?;
    }
    let in_flight = usize::try_from(plan.in_flight()).unwrap_or(usize::MAX);
    let mut chunks = plan.chunks();
    let mut together = Vec::new();
    loop {
        together.clear();
        together.extend(chunks.by_ref().take(in_flight));
        if together.is_empty() {
            return Ok(());
        }
        for (chunk, index) in together.iter_mut().zip(done.chunks..) {
            chunk.index = index;
        }
        let ran = backend.run(plan, &together);
        if ran.is_ok() && monitor.is_some() {
            backend.wait().map_err(Failure::Late)?;
        }
        let complete = ran.as_ref().err().map_or(together.len(), |failure| failure.position);
        for chunk in together.iter().take(complete) {
            done.chunks = done.chunks.saturating_add(1);
            done.items_done = chunk.end();
        }
        if let Err(ChunkFailure { position, stage, source }) = ran
            && let Some(chunk) = together.get(position)
        {
            return Err(Failure::Stage { stage, chunk: *chunk, source });
        }
        let progress = Progress {
            items_done: done.items_done,
            items: definition.items,
            bytes_done: definition.callers_bytes_per_item().saturating_mul(done.items_done),
            elapsed: begun.elapsed(),
        };
        if let Some(monitor) = monitor
            && monitor.progress(&progress).is_break()
            && done.items_done < definition.items
        {
            done.cancelled = true;
            return Ok(());
        }
    }
}
