//! Pipelines on the host: stages are closures, chunks in flight run in parallel.

use core::fmt;
use core::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rayon::prelude::*;

use crate::pipeline::buffer::Role;
use crate::pipeline::builder::{PipelineBuilder, StageBuilder};
use crate::pipeline::definition::{Definition, Pipeline};
use crate::pipeline::error::{RunError, StageError};
use crate::pipeline::host_memory::{Bytes, HostMemory, Views};
use crate::pipeline::layout::SCRATCH_ALIGNMENT;
use crate::pipeline::plan::PipelinePlan;
use crate::pipeline::progress::{Monitor, PipelineRun};
use crate::pipeline::run::{Backend, ChunkFailure, run};
use crate::plan::chunks::Chunk;
use crate::plan::run::panic_message;

/// A pipeline on the host.
///
/// Stages that [launch](StageBuilder::launches) are planned under the limits of a GPU, so that the same
/// chunks run as on that GPU.
pub type HostPipeline<'a> = Pipeline<HostStage<'a>>;

/// What a stage does on the host.
pub struct HostStage<'a>(Box<Body<'a>>);

type Body<'a> = dyn Fn(&Chunk, &mut Views<'_>) -> Result<(), StageError> + Send + Sync + 'a;

impl fmt::Debug for HostStage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostStage").finish_non_exhaustive()
    }
}

impl<'a> PipelineBuilder<HostStage<'a>> {
    /// Adds a stage after those before it: `body` is called for each chunk with views of the buffers that
    /// the stage declares. Chunks in flight call it at the same time.
    pub fn stage<F>(&mut self, name: impl Into<String>, body: F) -> StageBuilder<'_>
    where
        F: Fn(&Chunk, &mut Views<'_>) -> Result<(), StageError> + Send + Sync + 'a,
    {
        self.add_stage(name.into(), HostStage(Box::new(body)))
    }
}

impl HostPipeline<'_> {
    /// Runs all chunks of `plan`, as many at the same time as it has in flight.
    ///
    /// Scratch is allocated once, filled with bytes of all ones, which are NaN as floats, and freed at the
    /// end. Where that allocation or a stage runs out of memory, the items that are left run in chunks of
    /// half the size; after a stage only if no buffer is changed in place or accumulated, since the chunk
    /// runs again.
    ///
    /// # Errors
    ///
    /// [`RunError`] with what was done before it. Of the chunk that failed, and of chunks that were in
    /// flight with it, outputs and in-place buffers are unspecified. After a panic in a stage the
    /// pipeline does not run again.
    pub fn run(
        &mut self,
        plan: &PipelinePlan,
        memory: HostMemory<'_>,
    ) -> Result<PipelineRun, RunError> {
        self.run_with(plan, memory, None)
    }

    /// As [`Self::run`], watched by `monitor`.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub fn run_monitored(
        &mut self,
        plan: &PipelinePlan,
        memory: HostMemory<'_>,
        monitor: &mut dyn Monitor,
    ) -> Result<PipelineRun, RunError> {
        self.run_with(plan, memory, Some(monitor))
    }

    fn run_with(
        &mut self,
        plan: &PipelinePlan,
        memory: HostMemory<'_>,
        monitor: Option<&mut dyn Monitor>,
    ) -> Result<PipelineRun, RunError> {
        self.check_plan(plan)?;
        let Self { definition, bodies, poisoned } = self;
        let memory = memory.check(definition)?;
        let mut backend = Host { definition, bodies, memory, scratch: Vec::new() };
        let ran = run(definition, plan, &mut backend, monitor);
        if let Err(RunError::Stage { stage, source: StageError::Panicked { .. }, .. }) = &ran {
            *poisoned = Some(stage.clone());
        }
        ran
    }
}

/// A run on the host.
struct Host<'r, 'a, 'm> {
    definition: &'r Definition,
    bodies: &'r [HostStage<'a>],
    /// The caller's, by buffer.
    memory: Vec<Option<Bytes<'m>>>,
    /// For each chunk in flight.
    scratch: Vec<Scratch>,
}

impl Backend for Host<'_, '_, '_> {
    fn allocate(&mut self, plan: &PipelinePlan) -> Result<(), StageError> {
        self.scratch.clear();
        for _ in 0..plan.in_flight() {
            self.scratch.push(Scratch::new(plan.scratch_bytes())?);
        }
        Ok(())
    }

    fn run(&mut self, plan: &PipelinePlan, chunks: &[Chunk]) -> Result<(), ChunkFailure> {
        let Self { definition, bodies, memory, scratch } = self;
        let mut lanes: Vec<_> = chunks
            .iter()
            .zip(scratch)
            .map(|(chunk, scratch)| Lane { chunk, callers: Vec::new(), scratch: scratch.bytes() })
            .collect();
        for (memory, buffer) in memory.iter_mut().zip(&definition.buffers) {
            let parts = match memory {
                Some(memory) => memory.split(buffer.extent, chunks),
                None => Vec::new(),
            };
            let parts = parts.into_iter().chain(core::iter::repeat_with(|| None));
            lanes.iter_mut().zip(parts).for_each(|(lane, part)| lane.callers.push(part));
        }
        let run = |lane: &mut Lane<'_>| lane.run(definition, bodies, plan);
        let ran: Vec<_> = match lanes.as_mut_slice() {
            [only] => vec![run(only)],
            lanes => lanes.par_iter_mut().map(run).collect(),
        };
        let failed = |(position, ran): (usize, Result<(), (usize, StageError)>)| {
            ran.err().map(|(stage, source)| ChunkFailure { position, stage, source })
        };
        ran.into_iter().enumerate().find_map(failed).map_or(Ok(()), Err)
    }
}

/// One chunk in flight.
struct Lane<'l> {
    chunk: &'l Chunk,
    /// What it sees of the caller's memory, by buffer.
    callers: Vec<Option<Bytes<'l>>>,
    scratch: &'l mut [u8],
}

impl Lane<'_> {
    /// Runs all stages, or returns the index of the one that failed.
    fn run(
        &mut self,
        definition: &Definition,
        bodies: &[HostStage<'_>],
        plan: &PipelinePlan,
    ) -> Result<(), (usize, StageError)> {
        for (index, HostStage(body)) in bodies.iter().enumerate() {
            // A panic leaves views half written, which the caller discards as after any failure.
            let ran = catch_unwind(AssertUnwindSafe(|| {
                let scratch = scratch_views(definition, index, plan, self.chunk, self.scratch);
                let mut views = Views::new(definition, index, &mut self.callers, scratch);
                body(self.chunk, &mut views)
            }));
            let ran = ran.unwrap_or_else(|panic| {
                Err(StageError::Panicked { message: panic_message(panic.as_ref()) })
            });
            ran.map_err(|error| (index, error))?;
        }
        Ok(())
    }
}

/// The scratch buffers that the stage at `index` uses: disjoint parts of `scratch`.
fn scratch_views<'s>(
    definition: &Definition,
    index: usize,
    plan: &PipelinePlan,
    chunk: &Chunk,
    scratch: &'s mut [u8],
) -> Vec<(usize, &'s mut [u8])> {
    let uses = definition.stages.get(index).into_iter().flat_map(|stage| &stage.uses);
    let place = |(buffer, _): &(usize, _)| {
        // The caller's memory is used where it is.
        definition.buffers.get(*buffer).filter(|spec| spec.role == Role::Scratch)?;
        let (offset, bytes) = definition.scratch_place(*buffer, plan, chunk.items)?;
        Some((usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?, *buffer))
    };
    let mut places: Vec<_> = uses.filter_map(place).collect();
    places.sort_unstable();
    let (mut rest, mut before) = (scratch, 0);
    let mut views = Vec::with_capacity(places.len());
    for (offset, bytes, buffer) in places {
        // Scratch has the bytes of the plan's layout, in which buffers that live at once are disjoint.
        let (_, from) = take(&mut rest).split_at_mut(offset - before);
        let (view, after) = from.split_at_mut(bytes);
        (rest, before) = (after, offset + bytes);
        views.push((buffer, view));
    }
    views
}

/// Memory that is aligned as scratch is on a device.
struct Scratch {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Scratch {
    fn new(bytes: u64) -> Result<Self, StageError> {
        let too_large = |_| StageError::out_of_memory("larger than the address space");
        let len = usize::try_from(bytes).map_err(too_large)?;
        let alignment = usize::try_from(SCRATCH_ALIGNMENT).map_err(too_large)?;
        let mut memory = Vec::<u8>::new();
        memory
            .try_reserve_exact(len.saturating_add(alignment))
            .map_err(StageError::out_of_memory)?;
        let start = memory.as_ptr().align_offset(alignment).min(alignment);
        memory.resize(start + len, UNWRITTEN);
        Ok(Self { memory, start, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.start..self.start + self.len).unwrap_or_default()
    }
}

/// What scratch is filled with: NaN as floats, so that an element that was read before it was written
/// shows.
const UNWRITTEN: u8 = 0xff;
