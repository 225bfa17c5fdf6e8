//! Runs the chunks of a plan on a back end. If memory runs out, the rest runs in smaller chunks.

use core::panic::Location;
use std::borrow::Cow;
use std::time::Instant;

use crate::guard::Guard;
#[cfg(any(feature = "cuda", feature = "host"))]
use crate::pipeline::bodies::Body;
use crate::pipeline::bodies::Pipeline;
use crate::pipeline::definition::Definition;
use crate::pipeline::error::{RunError, StageError};
use crate::pipeline::plan::PipelinePlan;
use crate::pipeline::progress::{Monitor, PipelineRun, Progress};
use crate::plan::chunks::Chunk;

/// The memory of one run of a pipeline: `HostMemory`, or `cuda::DeviceMemory`. Sealed.
#[allow(private_bounds, reason = "sealed")]
pub trait PipelineMemory: Run {}

impl<M: Run> PipelineMemory for M {}

/// Runs a pipeline on the memory's back end.
pub(crate) trait Run {
    fn run(
        self,
        guard: &Guard,
        pipeline: &mut Pipeline<'_>,
        plan: &PipelinePlan,
        caller: &'static Location<'static>,
    ) -> Result<PipelineRun, RunError>;
}

#[cfg(any(feature = "cuda", feature = "host"))]
impl Pipeline<'_> {
    /// Checks that `plan` is for this pipeline, and that all stages run on the device or, if `on_host`, on
    /// the host.
    pub(crate) fn check_run(&self, plan: &PipelinePlan, on_host: bool) -> Result<(), RunError> {
        if let Some(stage) = &self.poisoned {
            return Err(RunError::Poisoned(stage.clone()));
        }
        if plan.pipeline() != self.definition.id {
            return Err(RunError::OtherPlan);
        }
        let place = |on_host| if on_host { "the host" } else { "a device" };
        for (body, spec) in self.bodies.iter().zip(&self.definition.stages) {
            let stage = || spec.name.clone();
            let runs_on_host = match body {
                Body::Outline(_) => return Err(RunError::Outline(stage())),
                #[cfg(feature = "host")]
                Body::Host(_) => true,
                #[cfg(feature = "cuda")]
                Body::Device(_) => false,
            };
            if runs_on_host != on_host {
                let (runs_on, memory_on) = (place(runs_on_host), place(on_host));
                return Err(RunError::OtherBackend { stage: stage(), runs_on, memory_on });
            }
        }
        Ok(())
    }
}

impl Guard {
    /// Runs all chunks of `plan`, a plan of `pipeline`, on the host or on the guard's device, depending on
    /// `memory`.
    ///
    /// A run on a device submits its work to the streams of `memory`, and returns before the work is done.
    /// A run on the host returns after the last chunk. Scratch is allocated once for each chunk in flight,
    /// and freed after the last chunk. On the host it is filled with NaN, on a device it is not
    /// initialised.
    ///
    /// If that allocation or a stage runs out of memory, the remaining items run in chunks of half the size.
    /// After a stage this requires that no buffer is changed in place or accumulated, because the failed
    /// chunk runs again.
    ///
    /// A stream that is being captured is refused, except within `cuda::capture_launches` with memory that
    /// the graph may use.
    ///
    /// # Errors
    ///
    /// [`RunError`] with the work done before. Outputs and in-place buffers of the failed chunk, and of
    /// chunks in flight with it, are unspecified. After a panic in a stage the pipeline does not run again.
    #[track_caller]
    pub fn run_pipeline(
        &self,
        pipeline: &mut Pipeline<'_>,
        plan: &PipelinePlan,
        memory: impl PipelineMemory,
    ) -> Result<PipelineRun, RunError> {
        let ran = memory.run(self, pipeline, plan, Location::caller());
        if let Err(RunError::Stage { stage, error: StageError::Panicked(_), .. }) = &ran {
            pipeline.poisoned = Some(stage.clone());
        }
        ran
    }
}

/// Where stages run.
pub(crate) trait Backend {
    /// Frees the scratch of the plan before, and allocates the scratch of `plan`.
    ///
    /// # Errors
    ///
    /// [`StageError::OutOfMemory`] if a smaller allocation may succeed.
    fn allocate(&mut self, plan: &PipelinePlan) -> Result<(), StageError>;

    /// Checks each stage before the first chunk of `plan` runs, after [`Self::allocate`].
    ///
    /// # Errors
    ///
    /// The index of a stage that cannot run, and why.
    fn prepare(&mut self, plan: &PipelinePlan) -> Result<(), (usize, StageError)> {
        let _ = plan;
        Ok(())
    }

    /// Runs consecutive chunks of `plan` that are in flight together.
    ///
    /// # Errors
    ///
    /// The first chunk that failed. Later ones may have run.
    fn run(&mut self, plan: &PipelinePlan, chunks: &[Chunk]) -> Result<(), ChunkFailure>;

    /// Waits for the chunks that are still running.
    ///
    /// # Errors
    ///
    /// Why one of them failed.
    fn wait(&mut self) -> Result<(), StageError> {
        Ok(())
    }
}

/// A chunk that failed.
#[derive(Debug)]
pub(crate) struct ChunkFailure {
    /// The position among the chunks in flight.
    pub(crate) position: usize,
    /// The index of the stage that failed.
    pub(crate) stage: usize,
    pub(crate) error: StageError,
}

/// Runs all chunks of `plan`.
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
            Failure::Scratch(error) => RunError::Scratch { chunk, bytes, items, done, error },
            Failure::Late(error) => RunError::Late { items, done, error },
            Failure::Stage { stage, chunk, error } => {
                let name = definition.stages.get(stage).map(|stage| stage.name.clone());
                let stage = name.unwrap_or_default();
                RunError::Stage { stage, chunk, items, done, error }
            }
        });
    }
    Ok(done)
}

/// Why a plan was not run to its end.
enum Failure {
    Scratch(StageError),
    Late(StageError),
    Stage { stage: usize, chunk: Chunk, error: StageError },
}

impl Failure {
    /// Whether smaller chunks may help, and the failed chunk can run again.
    fn is_out_of_memory(&self, definition: &Definition) -> bool {
        match self {
            Self::Scratch(error) => matches!(error, StageError::OutOfMemory(_)),
            Self::Late(_) => false,
            Self::Stage { error, .. } => {
                matches!(error, StageError::OutOfMemory(_)) && definition.can_run_again()
            }
        }
    }
}

/// Runs `plan`, which is for the remaining items, to its end or until it is cancelled.
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
        let failed = |(stage, error)| Failure::Stage { stage, chunk, error };
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
        if let Err(ChunkFailure { position, stage, error }) = ran
            && let Some(chunk) = together.get(position)
        {
            return Err(Failure::Stage { stage, chunk: *chunk, error });
        }
        let Some(monitor) = monitor else { continue };
        let progress = Progress {
            items_done: done.items_done,
            items: definition.items,
            bytes_done: definition.callers_bytes_per_item().saturating_mul(done.items_done),
            elapsed: begun.elapsed(),
        };
        if monitor.progress(&progress).is_break() && done.items_done < definition.items {
            done.cancelled = true;
            return Ok(());
        }
    }
}
