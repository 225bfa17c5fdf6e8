//! Runs pipelines on the host: stages are closures, and chunks in flight run in parallel.

use core::mem::take;
use core::panic::Location;

use rayon::prelude::*;

use crate::buffer::Role;
use crate::builder::{PipelineBuilder, StageBuilder};
use crate::definition::Definition;
use crate::error::{Error, StageError, StageResult};
use crate::host_memory::{Bytes, HostCall, HostMemory, Views};
use crate::layout::SCRATCH_ALIGNMENT;
use crate::pipeline::{ON_HOST, Pipeline, StageWork};
use crate::plan::PipelinePlan;
use crate::progress::PipelineRun;
use crate::run::{Backend, ChunkFailure, Run, catch_panic, run};
use gridguard::{Chunk, Guard};

impl<'a> PipelineBuilder<'a> {
    /// Adds a stage on the host after the stages before it. `call` gets the chunk and views of the buffers
    /// that the stage declares. Chunks in flight call it at the same time.
    ///
    /// A stage that also [launches](StageBuilder::launches) is planned under the limits of a GPU, so that
    /// the host runs the same chunks as that GPU.
    pub fn stage<F>(&mut self, name: impl Into<String>, call: F) -> StageBuilder<'_, 'a>
    where
        F: Fn(&Chunk, &mut Views<'_>) -> StageResult + Send + Sync + 'a,
    {
        self.add_stage(name.into(), StageWork::Host(Box::new(call)))
    }
}

impl Run for HostMemory<'_> {
    fn run(
        self,
        _: &Guard,
        pipeline: &mut Pipeline<'_>,
        plan: &PipelinePlan,
        _: &'static Location<'static>,
    ) -> Result<PipelineRun, Error> {
        pipeline.check_run(plan, ON_HOST)?;
        let definition = &pipeline.definition;
        let calls = pipeline.work.iter().filter_map(|body| match body {
            StageWork::Host(call) => Some(&**call),
            _ => None,
        });
        let (memory, monitor) = self.check(definition)?;
        let mut backend = Host { definition, calls: calls.collect(), memory, scratch: Vec::new() };
        run(definition, plan, &mut backend, monitor)
    }
}

/// A run on the host.
struct Host<'r, 'a, 'm> {
    definition: &'r Definition,
    /// By stage.
    calls: Vec<&'r HostCall<'a>>,
    /// The caller's memory, by buffer.
    memory: Vec<Option<Bytes<'m>>>,
    /// By chunk in flight.
    scratch: Vec<Scratch>,
}

impl Backend for Host<'_, '_, '_> {
    fn allocate(&mut self, plan: &PipelinePlan) -> Result<(), StageError> {
        self.scratch.clear();
        for _ in 0..plan.in_flight() {
            self.scratch.push(Scratch::new(plan.scratch_bytes)?);
        }
        Ok(())
    }

    fn run(&mut self, plan: &PipelinePlan, chunks: &[Chunk]) -> Result<(), ChunkFailure> {
        let Self { definition, calls, memory, scratch } = self;
        let mut lanes: Vec<_> = chunks
            .iter()
            .zip(scratch)
            .map(|(chunk, scratch)| Lane { chunk, callers: Vec::new(), scratch: scratch.bytes() })
            .collect();
        for (memory, buffer) in memory.iter_mut().zip(&definition.buffers) {
            let parts = memory.as_mut().map(|memory| memory.split(buffer.extent, chunks));
            let parts = parts.into_iter().flatten().chain(core::iter::repeat_with(|| None));
            lanes.iter_mut().zip(parts).for_each(|(lane, part)| lane.callers.push(part));
        }
        let run = |lane: &mut Lane<'_>| lane.run(definition, calls, plan);
        let ran: Vec<_> = match lanes.as_mut_slice() {
            [only] => vec![run(only)],
            lanes => lanes.par_iter_mut().map(run).collect(),
        };
        ran.into_iter().collect()
    }
}

/// One chunk in flight.
struct Lane<'l> {
    chunk: &'l Chunk,
    /// The chunk's part of the caller's memory, by buffer.
    callers: Vec<Option<Bytes<'l>>>,
    scratch: &'l mut [u8],
}

impl Lane<'_> {
    /// Runs all stages.
    fn run(
        &mut self,
        definition: &Definition,
        calls: &[&HostCall<'_>],
        plan: &PipelinePlan,
    ) -> Result<(), ChunkFailure> {
        let chunk = self.chunk;
        for (stage, call) in calls.iter().enumerate() {
            let ran = catch_panic(|| {
                let scratch = scratch_views(definition, stage, plan, chunk, self.scratch);
                call(chunk, &mut Views::new(definition, stage, &mut self.callers, scratch))
            });
            ran.map_err(|error| ChunkFailure { chunk: *chunk, stage, error })?;
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
        // The host never copies the caller's memory to scratch.
        definition.buffers.get(*buffer).filter(|spec| spec.role == Role::Scratch)?;
        let (offset, bytes) = definition.scratch_place(*buffer, plan, chunk.items)?;
        Some((usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?, *buffer))
    };
    let mut places: Vec<_> = uses.filter_map(place).collect();
    places.sort_unstable();
    let (mut rest, mut before) = (scratch, 0);
    let mut views = Vec::with_capacity(places.len());
    for (offset, bytes, buffer) in places {
        // The plan's layout is within scratch, and buffers that are live together are disjoint.
        let (_, from) = take(&mut rest).split_at_mut(offset - before);
        let (view, after) = from.split_at_mut(bytes);
        (rest, before) = (after, offset + bytes);
        views.push((buffer, view));
    }
    views
}

/// Memory with the alignment of scratch on a device.
struct Scratch {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Scratch {
    fn new(bytes: u64) -> Result<Self, StageError> {
        let too_large = |_| Error::out_of_memory("larger than the address space");
        let len = usize::try_from(bytes).map_err(too_large)?;
        let alignment = usize::try_from(SCRATCH_ALIGNMENT).map_err(too_large)?;
        let mut memory = Vec::<u8>::new();
        memory.try_reserve_exact(len.saturating_add(alignment)).map_err(Error::out_of_memory)?;
        let start = memory.as_ptr().align_offset(alignment).min(alignment);
        memory.resize(start + len, UNWRITTEN);
        Ok(Self { memory, start, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.start..self.start + self.len).unwrap_or_default()
    }
}

/// The initial bytes of scratch. As floats they are NaN, so that reading an unwritten element shows.
const UNWRITTEN: u8 = 0xff;
