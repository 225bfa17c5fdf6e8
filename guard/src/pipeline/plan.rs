//! The chunks of a pipeline: legal for every stage, and within a budget of memory.

use core::fmt;
use core::iter::FusedIterator;

use crate::launch::request::LaunchRequest;
use crate::pipeline::buffer::Extent;
use crate::pipeline::definition::{Definition, Pipeline, StageLaunch, StageSpec};
use crate::pipeline::error::{PlanError, RunError};
use crate::plan::batch::{BatchAxis, least_common_multiple};
use crate::plan::choice::{Choice, Strategy};
use crate::plan::chunks::{Chunk, Chunks};
use crate::plan::launches::{Plan, PlannedLaunch};

/// What a run of a pipeline may use.
///
/// ```
/// use gridguard::pipeline::Budget;
/// let budget = Budget::bytes(256 << 20).in_flight(2);
/// assert_eq!(Budget::share_of(1000, 40), Budget::bytes(400));
/// # let _ = budget;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Budget {
    bytes: u64,
    in_flight: u64,
    max_items: u64,
}

impl Budget {
    /// Any memory, one chunk at a time.
    pub const UNLIMITED: Self = Self::bytes(u64::MAX);

    /// At most so many bytes of scratch, one chunk at a time.
    pub const fn bytes(bytes: u64) -> Self {
        Self { bytes, in_flight: 1, max_items: u64::MAX }
    }

    /// So many percent of `free_bytes`, at most all of them.
    pub fn share_of(free_bytes: u64, percent: u64) -> Self {
        let bytes = u128::from(free_bytes) * u128::from(percent.min(100)) / 100;
        Self::bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Up to so many chunks at the same time, each with scratch of its own. Zero counts as one.
    pub const fn in_flight(self, chunks: u64) -> Self {
        let in_flight = if chunks == 0 { 1 } else { chunks };
        Self { in_flight, ..self }
    }

    /// Chunks of at most `items`. Zero counts as one.
    pub const fn at_most(self, items: u64) -> Self {
        let max_items = if items == 0 { 1 } else { items };
        Self { max_items, ..self }
    }

    /// The most bytes of scratch.
    #[must_use]
    pub const fn max_bytes(&self) -> u64 {
        self.bytes
    }

    /// The most chunks at the same time.
    #[must_use]
    pub const fn max_in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The most items of a chunk.
    #[must_use]
    pub const fn max_items(&self) -> u64 {
        self.max_items
    }
}

/// The chunks of a pipeline, and the scratch that they need: also for chunks of buffers that are
/// [in host memory](super::PipelineBuilder::in_host_memory).
///
/// All chunks have the same number of items but the last, which may have fewer.
#[derive(Clone, Debug)]
#[must_use]
pub struct PipelinePlan {
    pipeline: u64,
    /// Those that are left, as [`Chunks`] of their own.
    chunks: Chunks,
    /// Items before them.
    done: u64,
    budget: Budget,
    /// Items of the smallest possible chunk.
    unit: u64,
    in_flight: u64,
    /// Whether chunks that follow were left out.
    partial: bool,
    /// Bytes of scratch of a chunk.
    scratch_bytes: u64,
    stages: Vec<StageMemory>,
    /// The launches of the stages that launch.
    launches: Vec<Option<Plan>>,
}

/// The scratch that a stage works in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageMemory {
    /// The stage.
    pub name: String,
    /// Bytes of all scratch buffers that hold something during the stage, for one chunk.
    pub bytes: u64,
}

impl<B> Pipeline<B> {
    /// Plans the largest chunk that is legal for every stage and whose scratch fits the budget, for as
    /// many chunks in flight as fit with the smallest one. Chunks are then made no larger than their
    /// number needs, so that the last one is not much smaller.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if a stage's launch is illegal in any chunk, no chunk suits all stages, or the
    /// budget is too small for the smallest.
    pub fn plan(&self, budget: &Budget) -> Result<PipelinePlan, PlanError> {
        self.definition.plan(budget, 0)
    }

    /// The number of items.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.definition.items
    }

    /// The launch parameters that the stages were built with.
    #[must_use]
    pub fn parameters(&self) -> &[(String, u64)] {
        &self.definition.parameters
    }

    /// The same pipeline without what its stages do: a plan of either is a plan of both.
    #[must_use]
    pub fn outline(&self) -> Pipeline<()> {
        let Self { definition, bodies, poisoned } = self;
        let (definition, poisoned) = (definition.clone(), poisoned.clone());
        Pipeline { definition, bodies: vec![(); bodies.len()], poisoned }
    }

    /// Checks that the pipeline can run, and that `plan` is for it.
    pub(crate) fn check_plan(&self, plan: &PipelinePlan) -> Result<(), RunError> {
        match &self.poisoned {
            Some(stage) => Err(RunError::Poisoned { stage: stage.clone() }),
            None if plan.pipeline != self.definition.id => Err(RunError::OtherPlan),
            None => Ok(()),
        }
    }
}

impl PipelinePlan {
    /// Items of all chunks.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.chunks.items()
    }

    /// The number of chunks; 0 for a pipeline of zero items.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.chunks.launches()
    }

    /// Whether there are no chunks.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items of a chunk; 0 if there is none.
    #[must_use]
    pub fn chunk_items(&self) -> u64 {
        self.chunks.largest()
    }

    /// Items of the last chunk, where it has fewer than the others.
    #[must_use]
    pub fn remainder(&self) -> Option<u64> {
        let last = self.chunks.at(self.len().checked_sub(1)?)?;
        (last.items < self.chunk_items()).then_some(last.items)
    }

    /// Chunks that run at the same time.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Items of the smallest possible chunk, which keeps the alignment of every stage.
    #[must_use]
    pub const fn smallest_chunk(&self) -> u64 {
        self.unit
    }

    /// The first chunks that are in flight together, and no others: to see when the first results are
    /// there. Where memory runs out, such a run ends instead of going on with smaller chunks.
    pub fn first_in_flight(&self) -> Self {
        let chunk = self.chunk_items();
        let items = chunk.saturating_mul(self.in_flight).min(self.items());
        let (chunks, partial) = (Chunks::balanced(items, chunk, chunk), items < self.items());
        Self { chunks, partial: self.partial || partial, ..self.clone() }
    }

    /// Bytes of scratch that a run allocates: the most that it uses at any time.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        // Both factors were found to fit the budget.
        self.scratch_bytes.saturating_mul(self.in_flight)
    }

    /// The scratch of each stage, in order.
    #[must_use]
    pub fn stages(&self) -> &[StageMemory] {
        &self.stages
    }

    /// The chunks, in order.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = Chunk> + FusedIterator + use<> {
        let done = self.done;
        self.chunks.map(move |chunk| Chunk { start: chunk.start.saturating_add(done), ..chunk })
    }

    /// Bytes of scratch of one chunk.
    pub(crate) const fn scratch_bytes(&self) -> u64 {
        self.scratch_bytes
    }

    /// The launch of the stage at `index` for one of the plan's chunks; `None` if the stage launches
    /// nothing, or the chunk has the size of none.
    #[must_use]
    pub fn launch(&self, index: usize, chunk: Chunk) -> Option<PlannedLaunch> {
        let of_plan = chunk.items == self.chunk_items() || Some(chunk.items) == self.remainder();
        let plan = self.launches_of(index)?;
        of_plan.then(|| plan.launch_of(chunk))
    }

    /// All launches of the stage at `index`.
    pub(crate) fn launches_of(&self, index: usize) -> Option<&Plan> {
        self.launches.get(index)?.as_ref()
    }
}

impl fmt::Display for PipelinePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (items, len, chunk) = (self.items(), self.len(), self.chunk_items());
        let plural = if len == 1 { "chunk" } else { "chunks" };
        write!(f, "{items} items in {len} {plural} of {chunk}")?;
        if let Some(last) = self.remainder() {
            write!(f, ", the last of {last}")?;
        }
        write!(f, ", {} in flight, {} bytes of scratch", self.in_flight, self.bytes())?;
        for StageMemory { name, bytes } in &self.stages {
            write!(f, "\n  {name}: {bytes} bytes a chunk")?;
        }
        Ok(())
    }
}

impl Definition {
    /// Plans the items after the first `done`, which end at the end of a chunk.
    pub(crate) fn plan(&self, budget: &Budget, done: u64) -> Result<PipelinePlan, PlanError> {
        let items = self.items.saturating_sub(done);
        let unit = self.unit(done)?;
        let smallest = unit.min(items);
        let (mut cap, mut limited_by) = (budget.max_items, "the budget".to_owned());
        for stage in &self.stages {
            if stage.cap() < cap {
                (cap, limited_by) = (stage.cap(), format!("stage {}", stage.name));
            }
        }
        if cap < smallest {
            return Err(PlanError::NoCommonChunk { limited_by, largest: cap, unit: smallest });
        }
        let (fitting, in_flight) = match items {
            0 => (0, 1),
            _ => self.within(budget, smallest)?,
        };
        let cap = cap.min(fitting);
        let chunk = if items <= cap {
            items
        } else {
            let units = items.div_ceil(unit);
            units.div_ceil(units.div_ceil(cap / unit)).saturating_mul(unit)
        };
        let chunks = Chunks::balanced(items, chunk, chunk);
        let launches =
            self.stages.iter().map(|stage| stage.plan(done, chunk)).collect::<Result<_, _>>()?;
        let stages = self.stages.iter().map(|stage| stage.memory(chunk)).collect();
        Ok(PipelinePlan {
            pipeline: self.id,
            chunks,
            done,
            budget: *budget,
            unit: smallest,
            in_flight: in_flight.min(chunks.launches()).max(1),
            partial: false,
            scratch_bytes: if items == 0 { 0 } else { saturated(self.layout.bytes(chunk)) },
            stages,
            launches,
        })
    }

    /// A plan for the items after the first `done`, in chunks of half the size of those of `plan`, or with
    /// fewer of them in flight; `None` if those are the smallest.
    pub(crate) fn plan_smaller(&self, plan: &PipelinePlan, done: u64) -> Option<PipelinePlan> {
        let chunk = plan.chunk_items();
        let budget = if plan.partial {
            return None;
        } else if chunk > plan.unit {
            plan.budget.at_most((chunk / 2).max(plan.unit))
        } else if plan.in_flight > 1 {
            plan.budget.in_flight(plan.in_flight / 2)
        } else {
            return None;
        };
        self.plan(&budget, done).ok()
    }

    /// The smallest chunk, in items, that keeps the alignment of every stage; saturated.
    fn unit(&self, done: u64) -> Result<u64, PlanError> {
        let mut unit = 1;
        for stage in &self.stages {
            let own = match stage.launch_after(done) {
                Some((request, batch)) => stage.check(&request, &batch)?,
                None => Some(1),
            };
            let both = own.and_then(|own| least_common_multiple(own, stage.align));
            unit = both.and_then(|both| least_common_multiple(unit, both)).unwrap_or(u64::MAX);
        }
        Ok(unit)
    }

    /// The largest chunk within the budget, and how many in flight, if the `smallest` fits.
    fn within(&self, budget: &Budget, smallest: u64) -> Result<(u64, u64), PlanError> {
        let wanted = if self.is_sequential() { 1 } else { budget.in_flight };
        let least = self.layout.bytes(smallest);
        let fitting = u128::from(budget.bytes).checked_div(least).map_or(u64::MAX, saturated);
        let in_flight = wanted.min(fitting);
        let each = budget.bytes.checked_div(in_flight);
        match each.and_then(|each| self.layout.items_within(each)) {
            Some(items) => Ok((items, in_flight)),
            None => Err(PlanError::BudgetTooSmall {
                budget: budget.bytes,
                smallest: saturated(least),
                chunk: smallest,
            }),
        }
    }

    /// The offset and bytes of the buffer at `index` for `items`, in the scratch of a chunk of `plan`;
    /// `None` if it is not in scratch.
    pub(crate) fn scratch_place(
        &self,
        index: usize,
        plan: &PipelinePlan,
        items: u64,
    ) -> Option<(u64, u64)> {
        let (buffer, place) = (self.buffers.get(index)?, (*self.places.get(index)?)?);
        let offset = match buffer.extent {
            Extent::PerItem(_) => self.layout.per_item_offset(place, plan.chunk_items()),
            Extent::Fixed(_) => self.layout.fixed_offset(place),
        };
        Some((offset, saturated(buffer.extent.bytes(items))))
    }
}

impl StageSpec {
    /// The most items of a chunk.
    fn cap(&self) -> u64 {
        let launch =
            self.launch.as_ref().map_or(u64::MAX, |StageLaunch { batch, limits, .. }| {
                batch.items_within(limits.thresholds().grid.along(batch.axis()))
            });
        launch.min(self.at_most)
    }

    /// The launch for the items after the first `done`.
    fn launch_after(&self, done: u64) -> Option<(LaunchRequest, BatchAxis)> {
        let StageLaunch { request, batch, .. } = self.launch.as_ref()?;
        let rest = batch.after(done);
        let blocks = rest.blocks(rest.items()).unwrap_or(u64::MAX);
        // Those of the caller are checked as they are. A kernel that may begin before the launch before
        // it ends would overlap another stage, so chunks are ordinary launches.
        let grid = match done {
            0 => request.grid,
            _ => request.grid.with(batch.axis(), blocks),
        };
        Some((LaunchRequest { grid, dependent: false, ..*request }, rest))
    }

    /// Checks that the launch is legal whole or in chunks, and returns the smallest chunk that it can be
    /// split into, in items.
    fn check(&self, request: &LaunchRequest, batch: &BatchAxis) -> Result<Option<u64>, PlanError> {
        let Some(StageLaunch { limits, .. }) = &self.launch else { return Ok(Some(1)) };
        let plan = Plan::new(request, Some(batch), limits, Choice::AUTOMATIC);
        let _legal = plan.map_err(|violations| self.illegal(violations))?;
        let cluster = request.cluster_with(limits.kernel());
        Ok(batch.cluster_unit(cluster.map_or(1, |cluster| cluster.along(batch.axis()))))
    }

    /// The launches of chunks of `chunk` items, after the first `done`.
    fn plan(&self, done: u64, chunk: u64) -> Result<Option<Plan>, PlanError> {
        let (Some(StageLaunch { limits, .. }), Some((request, batch))) =
            (&self.launch, self.launch_after(done))
        else {
            return Ok(None);
        };
        // Aligned to its multiples, the planner's chunks are the pipeline's.
        let batch = if chunk < batch.items() { batch.align(chunk) } else { batch };
        let choice = Choice::at_most(chunk).strategy(Strategy::Chunked);
        let plan = Plan::new(&request, Some(&batch), limits, choice);
        plan.map(Some).map_err(|violations| self.illegal(violations))
    }

    fn memory(&self, chunk: u64) -> StageMemory {
        let (per_item, fixed) = self.live;
        let bytes = u128::from(per_item) * u128::from(chunk) + u128::from(fixed);
        StageMemory { name: self.name.clone(), bytes: saturated(bytes) }
    }

    fn illegal(&self, violations: crate::launch::violation::Violations) -> PlanError {
        PlanError::Stage { stage: self.name.clone(), violations }
    }
}

fn saturated(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
