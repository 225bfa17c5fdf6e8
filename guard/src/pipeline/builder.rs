//! Declares the buffers and stages of a pipeline, and checks them.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashSet;

use bytemuck::Pod;

use crate::launch::request::LaunchRequest;
use crate::limits::LaunchLimits;
use crate::pipeline::buffer::{Access, Buffer, BufferId, BufferSpec, Extent, Role};
use crate::pipeline::definition::{Definition, OTHER_PIPELINE, Pipeline, StageLaunch, StageSpec};
use crate::pipeline::error::BuildError;
use crate::pipeline::layout::{Layout, Lifetime, SCRATCH_ALIGNMENT};
use crate::plan::batch::BatchAxis;

/// The most stages of a pipeline, the most buffers, and the most parameters.
pub const MAX_PARTS: usize = 1024;

/// The name of the launch parameter that every pipeline has: its chunks in flight.
pub const IN_FLIGHT: &str = "in_flight";

/// Declares the buffers and stages of a [`Pipeline`].
///
/// Elements of buffers are bytemuck's `Pod`: every bit pattern is a valid value, and there is no padding.
/// A buffer then holds values of its type, whatever bits a stage left there.
///
/// Mistakes are reported by [`Self::build`].
#[derive(Debug)]
pub struct PipelineBuilder<B> {
    id: u64,
    items: u64,
    buffers: Vec<BufferSpec>,
    stages: Vec<StageSpec>,
    bodies: Vec<B>,
    parameters: Vec<(String, u64)>,
    sources: Vec<String>,
    /// The first mistake in a declaration.
    mistake: Option<BuildError>,
}

impl<B> Pipeline<B> {
    /// A pipeline of `items` independent items.
    #[must_use]
    pub fn builder(items: u64) -> PipelineBuilder<B> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        PipelineBuilder {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            items,
            buffers: Vec::new(),
            stages: Vec::new(),
            bodies: Vec::new(),
            parameters: Vec::new(),
            sources: Vec::new(),
            mistake: None,
        }
    }
}

impl<B> PipelineBuilder<B> {
    /// The caller's memory of so many elements an item, which stages only read.
    pub fn input<T: Pod>(&mut self, name: impl Into<String>, elements_per_item: u64) -> Buffer<T> {
        self.buffer(name.into(), Role::Input, Extent::PerItem, elements_per_item)
    }

    /// The caller's memory of so many elements, which stages only read, in every chunk as a whole: such
    /// as weights.
    pub fn shared_input<T: Pod>(&mut self, name: impl Into<String>, elements: u64) -> Buffer<T> {
        self.buffer(name.into(), Role::Input, Extent::Fixed, elements)
    }

    /// The caller's memory of so many elements an item, which a stage writes before any reads it.
    pub fn output<T: Pod>(&mut self, name: impl Into<String>, elements_per_item: u64) -> Buffer<T> {
        self.buffer(name.into(), Role::Output, Extent::PerItem, elements_per_item)
    }

    /// The caller's memory of so many elements an item, with contents that stages read and change.
    pub fn in_place<T: Pod>(
        &mut self,
        name: impl Into<String>,
        elements_per_item: u64,
    ) -> Buffer<T> {
        self.buffer(name.into(), Role::InPlace, Extent::PerItem, elements_per_item)
    }

    /// The caller's memory of so many elements, which stages update with every chunk: such as a sum over
    /// all items. Chunks then run one after another.
    pub fn accumulator<T: Pod>(&mut self, name: impl Into<String>, elements: u64) -> Buffer<T> {
        self.buffer(name.into(), Role::Accumulator, Extent::Fixed, elements)
    }

    /// Memory of the pipeline of so many elements an item, for a chunk, from the first stage that uses it
    /// to the last. Aligned to 256 bytes.
    pub fn scratch<T: Pod>(
        &mut self,
        name: impl Into<String>,
        elements_per_item: u64,
    ) -> Buffer<T> {
        self.buffer(name.into(), Role::Scratch, Extent::PerItem, elements_per_item)
    }

    /// As [`Self::scratch`], of so many elements for a chunk of any size: such as a library's workspace.
    pub fn fixed_scratch<T: Pod>(&mut self, name: impl Into<String>, elements: u64) -> Buffer<T> {
        self.buffer(name.into(), Role::Scratch, Extent::Fixed, elements)
    }

    /// The caller's memory of `buffer`, an input, an output or an in-place buffer per item, is in pinned
    /// host memory: so that a batch can be larger than the device.
    ///
    /// A chunk's items are copied to the device before the first stage that uses the buffer, and back
    /// after the last one. They lie in scratch meanwhile, which the plan counts. The copies of a chunk
    /// overlap the stages and the copies of the others in flight: with three, the device can compute and
    /// copy in both directions at the same time. On the host nothing is copied.
    pub fn in_host_memory<T>(&mut self, buffer: Buffer<T>) {
        let of_pipeline = buffer.id.pipeline == self.id;
        let spec = self.buffers.get_mut(buffer.id.index).filter(|_| of_pipeline);
        let refused = match spec {
            Some(BufferSpec { role, extent: Extent::PerItem(_), on_host, .. })
                if *role != Role::Scratch =>
            {
                *on_host = true;
                return;
            }
            Some(spec) => spec.name.clone(),
            None => OTHER_PIPELINE.to_owned(),
        };
        self.mistake.get_or_insert(BuildError::NotOnHost { buffer: refused });
    }

    /// A launch parameter that a stage is built with, such as `attention.block`: a tuner tells pipelines
    /// apart by theirs, and a tuned plan is only for one that was built with the same. No name appears
    /// twice, and none is [`IN_FLIGHT`].
    pub fn parameter(&mut self, name: impl Into<String>, value: u64) {
        self.parameters.push((name.into(), value));
    }

    /// A hash of the code of stages, or its version: when it changes, profiles no longer apply. The
    /// source of a kernel `with_tuning` (features `cuda` and `profile`) is declared by its stage.
    pub fn source(&mut self, hash: impl Into<String>) {
        self.sources.push(hash.into());
    }

    /// The pipeline.
    ///
    /// # Errors
    ///
    /// [`BuildError`] if a stage reads what none wrote, writes what another chunk reads, or a declaration
    /// contradicts another.
    pub fn build(self) -> Result<Pipeline<B>, BuildError> {
        let Self { id, items, mut buffers, mut stages, bodies, parameters, sources, mistake } =
            self;
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        if stages.is_empty() {
            return Err(BuildError::NoStages);
        }
        check_names("stages", stages.iter().map(|stage| &*stage.name))?;
        check_names("buffers", buffers.iter().map(|buffer| &*buffer.name))?;
        let named: Vec<&str> =
            parameters.iter().map(|(name, _)| &**name).chain([IN_FLIGHT]).collect();
        check_names("parameters", named.into_iter())?;
        for stage in &mut stages {
            stage.uses.sort_unstable_by_key(|(buffer, _)| *buffer);
        }
        let lifetimes = check_uses(items, &buffers, &stages)?;
        for (buffer, lifetime) in buffers.iter_mut().zip(lifetimes) {
            buffer.lifetime = lifetime;
        }
        let (places, layout) = place(&buffers, &mut stages)?;
        let definition =
            Definition { id, items, buffers, places, layout, stages, parameters, sources };
        Ok(Pipeline { definition, bodies, poisoned: None })
    }

    /// Adds a stage that does `body`, after those before it.
    pub(crate) fn add_stage(&mut self, name: String, body: B) -> StageBuilder<'_> {
        self.add_stage_and_body(name, body).0
    }

    /// As [`Self::add_stage`]; also returns the body.
    pub(crate) fn add_stage_and_body(
        &mut self,
        name: String,
        body: B,
    ) -> (StageBuilder<'_>, Option<&mut B>) {
        let (uses, at_most, live) = (Vec::new(), u64::MAX, (0, 0));
        self.stages.push(StageSpec { name, uses, launch: None, align: 1, at_most, live });
        self.bodies.push(body);
        let (pipeline, buffers) = (self.id, self.buffers.as_slice());
        let (stages, mistake) = (&mut self.stages, &mut self.mistake);
        (StageBuilder { pipeline, buffers, stages, mistake }, self.bodies.last_mut())
    }

    /// The size of a buffer, if it is of this pipeline.
    #[cfg(feature = "cuda")]
    pub(crate) fn extent(&self, buffer: BufferId) -> Option<Extent> {
        let spec = self.buffers.get(buffer.index).filter(|_| buffer.pipeline == self.id);
        spec.map(|spec| spec.extent)
    }

    fn buffer<T: Pod>(
        &mut self,
        name: String,
        role: Role,
        extent: fn(u64) -> Extent,
        elements: u64,
    ) -> Buffer<T> {
        let size = u64::try_from(size_of::<T>()).unwrap_or(u64::MAX);
        let alignment = align_of::<T>();
        let bytes = elements.checked_mul(size);
        let buffer = || name.clone();
        let mistake = if bytes == Some(0) {
            Some(BuildError::EmptyBuffer { buffer: buffer() })
        } else if u64::try_from(alignment).is_ok_and(|alignment| alignment > SCRATCH_ALIGNMENT) {
            Some(BuildError::Overaligned { buffer: buffer(), alignment, limit: SCRATCH_ALIGNMENT })
        } else if bytes.is_none() {
            Some(BuildError::TooLarge { buffer: buffer() })
        } else {
            None
        };
        self.mistake = self.mistake.take().or(mistake);
        let id = BufferId { pipeline: self.id, index: self.buffers.len() };
        let (extent, on_host, lifetime) = (extent(bytes.unwrap_or(0)), false, (0, 0));
        let elements = core::any::type_name::<T>();
        self.buffers.push(BufferSpec { name, role, extent, elements, on_host, lifetime });
        Buffer::new(id)
    }
}

impl PipelineBuilder<()> {
    /// Adds a stage after those before it, to be planned only.
    pub fn stage(&mut self, name: impl Into<String>) -> StageBuilder<'_> {
        self.add_stage(name.into(), ())
    }
}

/// Declares what a stage uses, and which chunks are legal for it.
#[derive(Debug)]
pub struct StageBuilder<'b> {
    pipeline: u64,
    #[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "kernels read parts of buffers"))]
    buffers: &'b [BufferSpec],
    /// The last one is declared.
    stages: &'b mut Vec<StageSpec>,
    mistake: &'b mut Option<BuildError>,
}

impl StageBuilder<'_> {
    /// The stage reads `buffer`.
    pub fn reads<T>(self, buffer: Buffer<T>) -> Self {
        self.uses(buffer.id, Access::Read)
    }

    /// The stage reads `buffer` from an element on, of each item if it is per item. It may do so again.
    #[cfg(feature = "cuda")]
    pub(crate) fn reads_from<T>(self, buffer: Buffer<T>, first: u64) -> Self {
        let id = buffer.id;
        let spec = self.buffers.get(id.index).filter(|_| id.pipeline == self.pipeline);
        let Some(BufferSpec {
            name, extent: Extent::PerItem(bytes) | Extent::Fixed(bytes), ..
        }) = spec
        else {
            return self.reads(buffer);
        };
        let size = u64::try_from(size_of::<T>()).unwrap_or(u64::MAX);
        let elements = bytes.checked_div(size).unwrap_or(0);
        let last = self.stages.last();
        if first >= elements {
            let stage = last.map_or_else(String::new, |stage| stage.name.clone());
            let past = BuildError::PastTheEnd { stage, buffer: name.clone(), first, elements };
            self.mistake.get_or_insert(past);
            return self;
        }
        let reads = last.is_some_and(|stage| stage.uses.contains(&(id.index, Access::Read)));
        if reads { self } else { self.reads(buffer) }
    }

    /// The stage writes all of `buffer` that belongs to the chunk, whatever it held.
    pub fn writes<T>(self, buffer: Buffer<T>) -> Self {
        self.uses(buffer.id, Access::Write)
    }

    /// The stage reads and writes `buffer`.
    pub fn updates<T>(self, buffer: Buffer<T>) -> Self {
        self.uses(buffer.id, Access::Update)
    }

    /// The stage launches a kernel, for the whole batch by `request`: chunks are then legal for it, and
    /// within its index width and its alignment.
    pub fn launches(self, request: LaunchRequest, batch: BatchAxis, limits: &LaunchLimits) -> Self {
        let launch = StageLaunch { request, batch, limits: limits.without_forms().into_owned() };
        self.declare(|stage| stage.launch = Some(launch))
    }

    /// Chunks start only at multiples of `items`. Zero counts as one.
    pub fn align(self, items: u64) -> Self {
        self.declare(|stage| stage.align = items.max(1))
    }

    /// Chunks have at most `items`, such as a library's index width allows. Zero counts as one.
    pub fn at_most(self, items: u64) -> Self {
        self.declare(|stage| stage.at_most = items.max(1))
    }

    fn uses(self, buffer: BufferId, access: Access) -> Self {
        if buffer.pipeline == self.pipeline {
            return self.declare(|stage| stage.uses.push((buffer.index, access)));
        }
        let stage = self.stages.last().map_or_else(String::new, |stage| stage.name.clone());
        self.mistake.get_or_insert(BuildError::OtherPipeline { stage });
        self
    }

    fn declare(self, declare: impl FnOnce(&mut StageSpec)) -> Self {
        if let Some(stage) = self.stages.last_mut() {
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

/// Checks every use, and returns the first and the last stage that uses each buffer.
fn check_uses(
    items: u64,
    buffers: &[BufferSpec],
    stages: &[StageSpec],
) -> Result<Vec<(usize, usize)>, BuildError> {
    let mut lifetimes: Vec<Option<(usize, usize)>> = vec![None; buffers.len()];
    let mut written = vec![false; buffers.len()];
    for (place, spec) in stages.iter().enumerate() {
        if let Some(StageLaunch { batch, .. }) = &spec.launch
            && batch.items() != items
        {
            let (stage, batch) = (spec.name.clone(), batch.items());
            return Err(BuildError::OtherBatch { stage, batch, items });
        }
        let mut last = None;
        for &(index, access) in &spec.uses {
            let (Some(buffer), Some(lifetime), Some(written)) =
                (buffers.get(index), lifetimes.get_mut(index), written.get_mut(index))
            else {
                continue;
            };
            check_use(spec, buffer, access, *written, last == Some(index))?;
            last = Some(index);
            *written |= access.writes();
            let (first, _) = lifetime.unwrap_or((place, place));
            *lifetime = Some((first, place));
        }
    }
    for (buffer, written) in buffers.iter().zip(written) {
        if buffer.role == Role::Output && !written {
            return Err(BuildError::NeverWritten { buffer: buffer.name.clone() });
        }
    }
    let never_used = |buffer: &BufferSpec| BuildError::NeverUsed { buffer: buffer.name.clone() };
    let pairs = lifetimes.into_iter().zip(buffers);
    pairs.map(|(lifetime, buffer)| lifetime.ok_or_else(|| never_used(buffer))).collect()
}

fn check_use(
    stage: &StageSpec,
    buffer: &BufferSpec,
    access: Access,
    written: bool,
    again: bool,
) -> Result<(), BuildError> {
    let names = || (stage.name.clone(), buffer.name.clone());
    if again {
        let (stage, buffer) = names();
        return Err(BuildError::DeclaredTwice { stage, buffer });
    }
    match buffer.role {
        Role::Input if access.writes() => {
            let (stage, buffer) = names();
            Err(BuildError::WritesInput { stage, buffer })
        }
        Role::Accumulator if access != Access::Update => {
            let (stage, buffer) = names();
            Err(BuildError::AccumulatorNotUpdated { stage, buffer })
        }
        Role::Output | Role::Scratch if access.reads() && !written => {
            let (stage, buffer) = names();
            Err(BuildError::ReadBeforeWritten { stage, buffer })
        }
        _ => Ok(()),
    }
}

/// Lays out scratch, and sums up for each stage what lives at it.
fn place(
    buffers: &[BufferSpec],
    stages: &mut [StageSpec],
) -> Result<(Vec<Option<usize>>, Layout), BuildError> {
    let (mut fixed, mut per_item) = (Vec::new(), Vec::new());
    let mut places = Vec::new();
    for buffer in buffers {
        let (first, last) = buffer.lifetime;
        let (list, bytes) = match buffer.extent {
            _ if !buffer.in_scratch() => {
                places.push(None);
                continue;
            }
            Extent::PerItem(bytes) => (&mut per_item, bytes),
            Extent::Fixed(bytes) => (&mut fixed, bytes),
        };
        places.push(Some(list.len()));
        list.push(Lifetime { first, last, bytes });
    }
    let layout = Layout::new(&fixed, &per_item).ok_or(BuildError::ScratchTooLarge)?;
    // The layout found that the sum of all sizes fits.
    let live = |list: &[Lifetime], stage: usize| -> u64 {
        let alive = list.iter().filter(|buffer| (buffer.first..=buffer.last).contains(&stage));
        alive.map(|buffer| buffer.bytes).sum()
    };
    for (index, stage) in stages.iter_mut().enumerate() {
        stage.live = (live(&per_item, index), live(&fixed, index));
    }
    Ok((places, layout))
}
