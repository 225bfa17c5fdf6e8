//! Declares the buffers and stages of a pipeline, and checks them.

use core::marker::PhantomData;
use std::collections::HashSet;

use bytemuck::Pod;

use crate::buffer::saturated;
use crate::buffer::{Access, Buffer, BufferId, BufferSpec, Extent, Role};
use crate::definition::{Definition, StageLaunch, StageSpec, next_id};
use crate::error::{BufferUse, BuildError};
use crate::layout::{Layout, SCRATCH_ALIGNMENT};
use crate::pipeline::{Body, Pipeline};
use gridguard::BatchAxis;
use gridguard::LaunchLimits;
use gridguard::LaunchRequest;

/// The name of the launch parameter that every pipeline has: its chunks in flight.
pub const IN_FLIGHT: &str = "in_flight";

/// Declares the buffers and stages of a [`Pipeline`].
///
/// The element types of buffers are bytemuck's `Pod`: every bit pattern is a valid value, whatever a stage
/// writes. A pipeline has at most 1,024 stages, buffers and parameters each.
///
/// [`Self::build`] reports mistakes.
#[derive(Debug)]
pub struct PipelineBuilder<'a> {
    pub(crate) definition: Definition,
    bodies: Vec<Body<'a>>,
    /// The first mistake in a declaration.
    mistake: Option<BuildError>,
}

impl<'a> Pipeline<'a> {
    /// Declares a pipeline of `items` independent items.
    #[must_use]
    pub fn builder(items: u64) -> PipelineBuilder<'a> {
        let definition = Definition { id: next_id(), items, ..Definition::default() };
        PipelineBuilder { definition, bodies: Vec::new(), mistake: None }
    }
}

impl<'a> PipelineBuilder<'a> {
    /// An input with `elements_per_item` elements per item. Stages may only read it.
    pub fn input<T: Pod>(&mut self, name: impl Into<String>, elements_per_item: u64) -> Buffer<T> {
        self.buffer(name.into(), Role::Input, Extent::PerItem, elements_per_item)
    }

    /// An input that is the same for all chunks, for example weights. Stages may only read it.
    pub fn shared_input<T: Pod>(&mut self, name: impl Into<String>, elements: u64) -> Buffer<T> {
        self.buffer(name.into(), Role::Input, Extent::Fixed, elements)
    }

    /// An output with `elements_per_item` elements per item. A stage must write it before any reads it.
    pub fn output<T: Pod>(&mut self, name: impl Into<String>, elements_per_item: u64) -> Buffer<T> {
        self.buffer(name.into(), Role::Output, Extent::PerItem, elements_per_item)
    }

    /// The caller's memory with `elements_per_item` elements per item, which stages read and change.
    pub fn in_place<T: Pod>(
        &mut self,
        name: impl Into<String>,
        elements_per_item: u64,
    ) -> Buffer<T> {
        self.buffer(name.into(), Role::InPlace, Extent::PerItem, elements_per_item)
    }

    /// The caller's memory that stages update with every chunk, for example a sum over all items. Chunks
    /// then run one after another.
    pub fn accumulator<T: Pod>(&mut self, name: impl Into<String>, elements: u64) -> Buffer<T> {
        self.buffer(name.into(), Role::Accumulator, Extent::Fixed, elements)
    }

    /// Scratch with `elements_per_item` elements per item, live from the first stage that uses it to the
    /// last. Aligned to 256 bytes.
    pub fn scratch<T: Pod>(
        &mut self,
        name: impl Into<String>,
        elements_per_item: u64,
    ) -> Buffer<T> {
        self.buffer(name.into(), Role::Scratch, Extent::PerItem, elements_per_item)
    }

    /// Scratch of the same size for every chunk, for example a library's workspace.
    pub fn fixed_scratch<T: Pod>(&mut self, name: impl Into<String>, elements: u64) -> Buffer<T> {
        self.buffer(name.into(), Role::Scratch, Extent::Fixed, elements)
    }

    /// Puts the caller's memory of `buffer` into pinned host memory, so that a batch can be larger than the
    /// device. `buffer` must be an input, an output or an in-place buffer, per item.
    ///
    /// A chunk's items are copied to scratch on the device before the first stage that uses the buffer, and
    /// back after the last one. The copies of a chunk overlap the stages and copies of the other chunks in
    /// flight: with three, the device computes and copies in both directions at the same time. A pipeline
    /// on the host copies nothing.
    pub fn in_host_memory<T>(&mut self, buffer: Buffer<T>) {
        let refused = BuildError::NotOnHost(self.definition.buffer_name(buffer.id));
        let of_pipeline = buffer.id.pipeline == self.definition.id;
        match self.definition.buffers.get_mut(buffer.id.index).filter(|_| of_pipeline) {
            Some(BufferSpec { role, extent: Extent::PerItem(_), on_host, .. })
                if *role != Role::Scratch =>
            {
                *on_host = true;
            }
            _ => self.mistake(refused),
        }
    }

    /// Declares a launch parameter that a stage was built with, for example `attention.block`. A tuned plan
    /// only applies to a pipeline with the same parameters. No name appears twice, and none is
    /// [`IN_FLIGHT`].
    pub fn parameter(&mut self, name: impl Into<String>, value: u64) {
        self.definition.parameters.push((name.into(), value));
    }

    /// Declares a hash of the code of stages, or its version: when it changes, profiles no longer apply.
    /// A kernel `with_tuning` (features `cuda` and `profile`) declares its own source.
    pub fn source(&mut self, hash: impl Into<String>) {
        self.definition.sources.push(hash.into());
    }

    /// Adds a stage after the stages before it that has no work: the pipeline can be planned, but not run.
    pub fn outline(&mut self, name: impl Into<String>) -> StageBuilder<'_, 'a> {
        self.add_stage(name.into(), Body::Outline(PhantomData))
    }

    /// Checks the declarations and returns the pipeline.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if a stage reads a buffer that no stage wrote, writes one that another chunk reads,
    /// or a declaration contradicts another.
    pub fn build(self) -> Result<Pipeline<'a>, BuildError> {
        let Self { mut definition, bodies, mistake } = self;
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        let Definition { items, buffers, stages, parameters, .. } = &mut definition;
        if stages.is_empty() {
            return Err(BuildError::NoStages);
        }
        check_names("stages", stages.iter().map(|stage| &*stage.name))?;
        check_names("buffers", buffers.iter().map(|buffer| &*buffer.name))?;
        let named: Vec<&str> =
            parameters.iter().map(|(name, _)| &**name).chain([IN_FLIGHT]).collect();
        check_names("parameters", named.into_iter())?;
        for stage in &mut *stages {
            stage.uses.sort_unstable_by_key(|(buffer, _)| *buffer);
        }
        check_uses(*items, buffers, stages)?;
        definition.layout = Layout::new(buffers).ok_or(BuildError::ScratchTooLarge)?;
        Ok(Pipeline::new(definition, bodies))
    }

    pub(crate) fn add_stage(&mut self, name: String, body: Body<'a>) -> StageBuilder<'_, 'a> {
        let (uses, at_most) = (Vec::new(), u64::MAX);
        self.definition.stages.push(StageSpec { name, uses, launch: None, align: 1, at_most });
        self.bodies.push(body);
        StageBuilder { builder: self }
    }

    /// Keeps the first mistake.
    fn mistake(&mut self, mistake: BuildError) {
        self.mistake.get_or_insert(mistake);
    }

    fn buffer<T: Pod>(
        &mut self,
        name: String,
        role: Role,
        extent: fn(u64) -> Extent,
        elements: u64,
    ) -> Buffer<T> {
        let alignment = align_of::<T>();
        let bytes = elements.checked_mul(saturated(size_of::<T>()));
        if bytes == Some(0) {
            self.mistake(BuildError::EmptyBuffer(name.clone()));
        } else if u64::try_from(alignment).is_ok_and(|alignment| alignment > SCRATCH_ALIGNMENT) {
            let (buffer, limit) = (name.clone(), SCRATCH_ALIGNMENT);
            self.mistake(BuildError::Overaligned { buffer, alignment, limit });
        } else if bytes.is_none() {
            self.mistake(BuildError::TooLarge(name.clone()));
        }
        let buffers = &mut self.definition.buffers;
        let id = BufferId { pipeline: self.definition.id, index: buffers.len() };
        let (extent, on_host, lifetime) = (extent(bytes.unwrap_or(0)), false, (0, 0));
        let elements = core::any::type_name::<T>();
        buffers.push(BufferSpec { name, role, extent, elements, on_host, lifetime });
        Buffer::new(id)
    }
}

/// Declares the buffers that a stage uses, and its legal chunks. For a stage that launches a kernel, each
/// buffer is also the kernel's next argument.
#[derive(Debug)]
pub struct StageBuilder<'b, 'a> {
    /// The builder. Its last stage is declared.
    builder: &'b mut PipelineBuilder<'a>,
}

impl<'a> StageBuilder<'_, 'a> {
    /// The stage reads `buffer`.
    pub fn read<T>(self, buffer: Buffer<T>) -> Self {
        self.uses(buffer.id, Access::Read)
    }

    /// The stage reads `buffer` from element `first` on; of a buffer per item, from that element of each
    /// item on. A stage may read several parts of a buffer, for example queries, keys and values that one
    /// product wrote side by side.
    pub fn read_from<T>(mut self, buffer: Buffer<T>, first: u64) -> Self {
        let Some(spec) = self.builder.definition.spec(buffer.id) else { return self.read(buffer) };
        let (Extent::PerItem(bytes) | Extent::Fixed(bytes)) = spec.extent;
        let size = saturated(size_of::<T>());
        let elements = bytes.checked_div(size).unwrap_or(0);
        if first >= elements {
            let (stage, buffer) = (self.name(), spec.name.clone());
            self.builder.mistake(BuildError::PastTheEnd { stage, buffer, first, elements });
            return self;
        }
        let read = (buffer.id.index, Access::Read);
        if !self.stage().is_some_and(|stage| stage.uses.contains(&read)) {
            self = self.declare(|stage| stage.uses.push(read));
        }
        self.argument_at(buffer.id, first.saturating_mul(size))
    }

    /// The stage writes all elements of `buffer` that belong to the chunk, and does not read them before.
    pub fn write<T>(self, buffer: Buffer<T>) -> Self {
        self.uses(buffer.id, Access::Write)
    }

    /// The stage reads and writes `buffer`.
    pub fn update<T>(self, buffer: Buffer<T>) -> Self {
        self.uses(buffer.id, Access::Update)
    }

    /// The stage launches a kernel, for the whole batch by `request`. Chunks are then legal launches, and
    /// keep the batch's index width and alignment.
    pub fn launches(self, request: LaunchRequest, batch: BatchAxis, limits: &LaunchLimits) -> Self {
        let launch = StageLaunch { request, batch, limits: limits.without_forms().into_owned() };
        self.declare(|stage| stage.launch = Some(launch))
    }

    /// Chunks start only at multiples of `items`. Zero counts as one.
    pub fn align(self, items: u64) -> Self {
        self.declare(|stage| stage.align = items.max(1))
    }

    /// Chunks have at most `items`, for example because of a library's index width. Zero counts as one.
    pub fn at_most(self, items: u64) -> Self {
        self.declare(|stage| stage.at_most = items.max(1))
    }

    fn uses(self, buffer: BufferId, access: Access) -> Self {
        if buffer.pipeline != self.builder.definition.id {
            let stage = self.name();
            self.builder.mistake(BuildError::OtherPipeline(stage));
            return self;
        }
        self.declare(|stage| stage.uses.push((buffer.index, access))).argument_at(buffer, 0)
    }

    #[cfg(not(feature = "cuda"))]
    fn argument_at(self, _: BufferId, _: u64) -> Self {
        self
    }

    /// The work of the stage.
    #[cfg(feature = "cuda")]
    pub(crate) fn body(&mut self) -> Option<&mut Body<'a>> {
        self.builder.bodies.last_mut()
    }

    /// The stage has arguments of a kernel, but launches none.
    #[cfg(feature = "cuda")]
    pub(crate) fn refuse_argument(self) -> Self {
        let stage = self.name();
        self.builder.mistake(BuildError::NoKernel(stage));
        self
    }

    fn name(&self) -> String {
        self.stage().map_or_else(String::new, |stage| stage.name.clone())
    }

    fn stage(&self) -> Option<&StageSpec> {
        self.builder.definition.stages.last()
    }

    fn declare(self, declare: impl FnOnce(&mut StageSpec)) -> Self {
        if let Some(stage) = self.builder.definition.stages.last_mut() {
            declare(stage);
        }
        self
    }
}

fn check_names<'n>(
    parts: &'static str,
    names: impl ExactSizeIterator<Item = &'n str>,
) -> Result<(), BuildError> {
    let (given, most) = (names.len(), MAX_PARTS);
    if given > most {
        return Err(BuildError::TooMany { parts, given, most });
    }
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(BuildError::SameName { parts, name: name.to_owned() });
        }
    }
    Ok(())
}

/// Checks every use, and sets the lifetimes of the buffers.
fn check_uses(
    items: u64,
    buffers: &mut [BufferSpec],
    stages: &[StageSpec],
) -> Result<(), BuildError> {
    let (mut used, mut written) = (vec![false; buffers.len()], vec![false; buffers.len()]);
    for (place, spec) in stages.iter().enumerate() {
        if let Some(StageLaunch { batch, .. }) = &spec.launch
            && batch.items() != items
        {
            let (stage, batch) = (spec.name.clone(), batch.items());
            return Err(BuildError::OtherBatch { stage, batch, items });
        }
        let mut last = None;
        for &(index, access) in &spec.uses {
            let (Some(buffer), Some(used), Some(written)) =
                (buffers.get_mut(index), used.get_mut(index), written.get_mut(index))
            else {
                continue;
            };
            let refused: Option<fn(BufferUse) -> BuildError> = match buffer.role {
                _ if last == Some(index) => Some(BuildError::DeclaredTwice),
                Role::Input if access.writes() => Some(BuildError::WritesInput),
                Role::Accumulator if access != Access::Update => {
                    Some(BuildError::AccumulatorNotUpdated)
                }
                Role::Output | Role::Scratch if access.reads() && !*written => {
                    Some(BuildError::ReadBeforeWritten)
                }
                _ => None,
            };
            if let Some(refused) = refused {
                return Err(refused(BufferUse::new(&*spec.name, &*buffer.name)));
            }
            last = Some(index);
            *written |= access.writes();
            let first = if *used { buffer.lifetime.0 } else { place };
            (buffer.lifetime, *used) = ((first, place), true);
        }
    }
    let name = |buffer: Option<&BufferSpec>| buffer.map(|buffer| buffer.name.clone());
    let mut outputs = buffers.iter().zip(&written);
    let unwritten = outputs.find(|(buffer, written)| buffer.role == Role::Output && !**written);
    if let Some(buffer) = name(unwritten.map(|(buffer, _)| buffer)) {
        return Err(BuildError::NeverWritten(buffer));
    }
    let unused = used.iter().position(|used| !used);
    match name(unused.and_then(|index| buffers.get(index))) {
        Some(buffer) => Err(BuildError::NeverUsed(buffer)),
        None => Ok(()),
    }
}

/// The most stages, buffers and parameters of a pipeline.
const MAX_PARTS: usize = 1024;
