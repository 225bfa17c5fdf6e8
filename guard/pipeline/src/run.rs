//! Runs the chunks of a plan on a back end. If memory runs out, the rest runs in smaller chunks.

use core::panic::Location;
use std::borrow::Cow;
use std::time::Instant;

use crate::definition::Definition;
use crate::error::{Error, ErrorKind, StageError, StageResult};
use crate::pipeline::Pipeline;
use crate::plan::PipelinePlan;
use crate::progress::{Monitor, PipelineRun, Progress};
use gridguard::{Chunk, Guard, count};

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
    ) -> Result<PipelineRun, Error>;
}

impl Pipeline<'_> {
    /// Runs all chunks of `plan`, a plan of this pipeline, on the host or on the guard's device, depending on
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
    /// A stream that is being captured is refused, except within `gridguard::cuda::capture_launches` with memory
    /// that the graph may use.
    ///
    /// # Errors
    ///
    /// [`Error`] with the work done before. Outputs and in-place buffers of the failed chunk, and of
    /// chunks in flight with it, are unspecified. After a panic in a stage the pipeline does not run again.
    #[track_caller]
    pub fn run(
        &mut self,
        guard: &Guard,
        plan: &PipelinePlan,
        memory: impl PipelineMemory,
    ) -> Result<PipelineRun, Error> {
        let ran = memory.run(guard, self, plan, Location::caller());
        if let Err(error) = &ran
            && error.kind() == ErrorKind::Panicked
        {
            self.poisoned = error.stage().map(str::to_owned);
        }
        #[cfg(feature = "cuda")]
        if let Err(error) = &ran {
            error.cause().inspect(|cause| gridguard::cuda::schedule::report(*cause));
        }
        ran
    }

    /// Checks that `plan` is for this pipeline, and that all stages run where the memory is.
    pub(crate) fn check_run(
        &self,
        plan: &PipelinePlan,
        memory_on: &'static str,
    ) -> Result<(), Error> {
        if let Some(stage) = &self.poisoned {
            let message = format!(
                "stage {stage} panicked in an earlier run: build the pipeline again to run it"
            );
            return Err(Error::new(ErrorKind::Panicked, message).at_stage(stage));
        }
        if plan.pipeline != self.definition.id {
            return Err(Error::unrunnable("the plan was made for another pipeline"));
        }
        for (work, spec) in self.work.iter().zip(&self.definition.stages) {
            let stage = &spec.name;
            let refused = match work.place() {
                None => {
                    format!("stage {stage} has no work: an outline can be planned, but not run")
                }
                Some(runs_on) if runs_on != memory_on => {
                    format!("stage {stage} runs on {runs_on}, the memory given is on {memory_on}")
                }
                Some(_) => continue,
            };
            return Err(Error::unrunnable(refused).at_stage(stage));
        }
        Ok(())
    }
}

/// Where stages run.
pub(crate) trait Backend {
    /// Frees the scratch of the plan before, and allocates the scratch of `plan`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if a smaller allocation may succeed.
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

/// A stage that failed at a chunk.
#[derive(Debug)]
pub(crate) struct ChunkFailure {
    pub(crate) chunk: Chunk,
    /// The index of the stage.
    pub(crate) stage: usize,
    pub(crate) error: StageError,
}

/// Runs all chunks of `plan`.
pub(crate) fn run(
    definition: &Definition,
    plan: &PipelinePlan,
    backend: &mut impl Backend,
    mut monitor: Option<&mut dyn Monitor>,
) -> Result<PipelineRun, Error> {
    let (mut plan, mut done) = (Cow::Borrowed(plan), PipelineRun::default());
    let begun = Instant::now();
    while !plan.is_empty() {
        done.tried.push(plan.chunk_items());
        let ended = run_plan(definition, &plan, backend, &mut monitor, begun, &mut done);
        let Err(error) = ended else { break };
        let smaller = may_run_smaller(definition, &error)
            .then(|| definition.plan_smaller(&plan, done.items_done));
        plan = Cow::Owned(smaller.flatten().ok_or(error)?);
    }
    Ok(done)
}

/// Whether smaller chunks may help, and the failed chunk can run again.
fn may_run_smaller(definition: &Definition, error: &Error) -> bool {
    let is_scratch = error.stage().is_none();
    error.kind() == ErrorKind::OutOfMemory && (is_scratch || definition.can_run_again())
}

/// Runs `plan`, which is for the remaining items, to its end or until it is cancelled.
fn run_plan(
    definition: &Definition,
    plan: &PipelinePlan,
    backend: &mut impl Backend,
    monitor: &mut Option<&mut dyn Monitor>,
    begun: Instant,
    done: &mut PipelineRun,
) -> Result<(), Error> {
    let (bytes, chunk, items) = (plan.bytes(), plan.chunk_items(), definition.items);
    let all = count(items, "item");
    let failed = |ChunkFailure { chunk, stage, error }, done: &PipelineRun| {
        let stage = definition.stages.get(stage).map_or("", |stage| &stage.name);
        let what = format!(
            "stage {stage} failed at chunk {} (items {}..{}), after {} of {all}",
            chunk.index,
            chunk.start,
            chunk.end(),
            done.items_done
        );
        Error::caused_by(ErrorKind::Stage, error).at_stage(stage).after(done, &what)
    };
    let may = |monitor: &mut &mut dyn Monitor| bytes == 0 || monitor.may_allocate(bytes);
    let allocated = match monitor.as_mut().is_none_or(may) {
        true => backend.allocate(plan),
        false => Err(Error::out_of_memory("refused by the monitor").into()),
    };
    allocated.map_err(|error| {
        let what = format!(
            "cannot allocate {} of scratch for a chunk of {}, after {} of {all}",
            count(bytes, "byte"),
            count(chunk, "item"),
            done.items_done
        );
        Error::caused_by(ErrorKind::Device, error).after(done, &what)
    })?;
    done.scratch_bytes = done.scratch_bytes.max(bytes);
    if let Some(first) = plan.chunks().next() {
        let chunk = Chunk { index: done.chunks, ..first };
        let prepared = backend.prepare(plan);
        prepared.map_err(|(stage, error)| failed(ChunkFailure { chunk, stage, error }, done))?;
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
            backend.wait().map_err(|error| {
                let what = format!("the device failed after {} of {all}", done.items_done);
                Error::caused_by(ErrorKind::Device, error).after(done, &what)
            })?;
        }
        let end = ran.as_ref().err().map_or(u64::MAX, |failure| failure.chunk.index);
        for chunk in together.iter().take_while(|chunk| chunk.index < end) {
            done.chunks = done.chunks.saturating_add(1);
            done.items_done = chunk.end();
        }
        ran.map_err(|failure| failed(failure, done))?;
        let Some(monitor) = monitor else { continue };
        let progress = Progress {
            items_done: done.items_done,
            items,
            bytes_done: definition.callers_bytes_per_item().saturating_mul(done.items_done),
            elapsed: begun.elapsed(),
        };
        if monitor.progress(&progress).is_break() && done.items_done < items {
            done.cancelled = true;
            return Ok(());
        }
    }
}

/// Calls the caller's code, whose panic becomes an error.
pub(crate) fn catch_panic(call: impl FnOnce() -> StageResult) -> StageResult {
    gridguard::catch_panic(call).unwrap_or_else(|text| {
        Err(Error::new(ErrorKind::Panicked, format!("it panicked: {text}")).into())
    })
}
