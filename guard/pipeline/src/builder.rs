//! Declares the buffers and stages of a pipeline, and checks them.

use core::marker::PhantomData;
use std::collections::HashSet;

use bytemuck::Pod;

use crate::buffer::{Access, Buffer, BufferId, BufferSpec, Extent, Role, saturated};
use crate::definition::{Definition, StageLaunch, StageSpec, next_id};
use crate::error::Error;
use crate::layout::{Layout, SCRATCH_ALIGNMENT};
use crate::pipeline::{Pipeline, StageWork};
use gridguard::{BatchAxis, LaunchLimits, LaunchRequest, count};

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
    work: Vec<StageWork<'a>>,
    /// The first mistake in a declaration.
    mistake: Option<Error>,
}

impl<'a> Pipeline<'a> {
    /// Declares a pipeline of `items` independent items.
    pub fn builder(items: u64) -> PipelineBuilder<'a> {
        let definition = Definition { id: next_id(), items, ..Definition::default() };
        PipelineBuilder { definition, work: Vec::new(), mistake: None }
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
        let refused = Error::declaration(format!(
            "{} cannot be in host memory: only an input, an output or an in-place buffer of the \
             pipeline can, each per item",
            self.definition.buffer_name(buffer.id)
        ));
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
        self.add_stage(name.into(), StageWork::Outline(PhantomData))
    }

    /// Checks the declarations and returns the pipeline.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Declaration`](crate::ErrorKind) if a stage reads a buffer that no stage wrote, writes one that
    /// another chunk reads, or a declaration contradicts another.
    pub fn build(self) -> Result<Pipeline<'a>, Error> {
        let Self { mut definition, work, mistake } = self;
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        let Definition { items, buffers, stages, parameters, .. } = &mut definition;
        if stages.is_empty() {
            return Err(Error::declaration("the pipeline has no stages"));
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
        definition.layout = Layout::new(buffers).ok_or_else(|| {
            Error::declaration("the scratch buffers have more than 2^64 - 1 bytes an item")
        })?;
        Ok(Pipeline::new(definition, work))
    }

    pub(crate) fn add_stage(&mut self, name: String, body: StageWork<'a>) -> StageBuilder<'_, 'a> {
        let (uses, at_most) = (Vec::new(), u64::MAX);
        self.definition.stages.push(StageSpec { name, uses, launch: None, align: 1, at_most });
        self.work.push(body);
        StageBuilder { builder: self }
    }

    /// Keeps the first mistake.
    fn mistake(&mut self, mistake: Error) {
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
            self.mistake(Error::declaration(format!(
                "buffer {name} is empty: zero elements, or a zero-sized type"
            )));
        } else if u64::try_from(alignment).is_ok_and(|alignment| alignment > SCRATCH_ALIGNMENT) {
            self.mistake(Error::declaration(format!(
                "elements of buffer {name} are aligned to {alignment} bytes, the limit is \
                 {SCRATCH_ALIGNMENT}"
            )));
        } else if bytes.is_none() {
            self.mistake(Error::declaration(format!(
                "buffer {name} has more than 2^64 - 1 bytes an item"
            )));
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
            let (stage, buffer) = (self.name(), &spec.name);
            let past =
                format!("stage {stage} reads {buffer} from element {first} on, it has {elements}");
            self.builder.mistake(Error::declaration(past));
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
            let other = format!("stage {} uses a buffer of another pipeline", self.name());
            self.builder.mistake(Error::declaration(other));
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
    pub(crate) fn body(&mut self) -> Option<&mut StageWork<'a>> {
        self.builder.work.last_mut()
    }

    /// The stage has arguments of a kernel, but launches none.
    #[cfg(feature = "cuda")]
    pub(crate) fn refuse_argument(self) -> Self {
        self.builder.mistake(Error::declaration(format!(
            "stage {} launches no kernel: remove its arguments, or declare it with kernel",
            self.name()
        )));
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
) -> Result<(), Error> {
    let given = names.len();
    if given > MAX_PARTS {
        let too_many = format!("the pipeline has {given} {parts}, the limit is {MAX_PARTS}");
        return Err(Error::declaration(too_many));
    }
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::declaration(format!("two {parts} have the name {name}")));
        }
    }
    Ok(())
}

/// Checks every use, and sets the lifetimes of the buffers.
fn check_uses(items: u64, buffers: &mut [BufferSpec], stages: &[StageSpec]) -> Result<(), Error> {
    let (mut used, mut written) = (vec![false; buffers.len()], vec![false; buffers.len()]);
    for (place, spec) in stages.iter().enumerate() {
        if let Some(StageLaunch { batch, .. }) = &spec.launch
            && batch.items() != items
        {
            return Err(Error::declaration(format!(
                "the launch of stage {} has a batch of {}, the pipeline has {items}",
                spec.name,
                count(batch.items(), "item")
            )));
        }
        let mut last = None;
        for &(index, access) in &spec.uses {
            let (Some(buffer), Some(used), Some(written)) =
                (buffers.get_mut(index), used.get_mut(index), written.get_mut(index))
            else {
                continue;
            };
            let (stage, name) = (&spec.name, &buffer.name);
            let refused = match buffer.role {
                _ if last == Some(index) => format!(
                    "declares buffer {name} twice: declare one that is read and written with update"
                ),
                Role::Input if access.writes() => format!(
                    "writes input {name}, which other stages and chunks read: declare the buffer \
                     with in_place, or with accumulator if all chunks update it"
                ),
                Role::Accumulator if access != Access::Update => format!(
                    "does not update accumulator {name} but reads or overwrites what other chunks \
                     left there: declare the use with update, or the buffer per item"
                ),
                Role::Output | Role::Scratch if access.reads() && !*written => format!(
                    "reads {name}, which no stage before it writes: declare the stage that does, or \
                     the buffer as input or in_place if the caller fills it"
                ),
                _ => String::new(),
            };
            if !refused.is_empty() {
                return Err(Error::declaration(format!("stage {stage} {refused}")));
            }
            last = Some(index);
            *written |= access.writes();
            let first = if *used { buffer.lifetime.0 } else { place };
            (buffer.lifetime, *used) = ((first, place), true);
        }
    }
    let mut outputs = buffers.iter().zip(&written);
    let unwritten = outputs.find(|(buffer, written)| buffer.role == Role::Output && !**written);
    if let Some((buffer, _)) = unwritten {
        return Err(Error::declaration(format!("no stage writes output {}", buffer.name)));
    }
    match buffers.iter().zip(&used).find(|(_, used)| !**used) {
        Some((buffer, _)) => {
            Err(Error::declaration(format!("no stage uses buffer {}", buffer.name)))
        }
        None => Ok(()),
    }
}

/// The most stages, buffers and parameters of a pipeline.
const MAX_PARTS: usize = 1024;
