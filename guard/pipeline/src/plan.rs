//! The chunks of a pipeline: legal for every stage, and within a budget of memory.

use core::fmt;

use crate::buffer::{BufferSpec, saturated};
use crate::definition::{Definition, StageLaunch, StageSpec, next_id};
use crate::error::{Error, ErrorKind};
use crate::pipeline::Pipeline;
use gridguard::{
    BatchAxis, Choice, Chunk, Chunks, LaunchLimits, LaunchRequest, Plan, PlannedLaunch, Strategy,
    Violations, count,
};

/// The limits of a run of a pipeline.
///
/// ```
/// use gridguard_pipeline::Budget;
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

    /// At most `bytes` of scratch, one chunk at a time.
    pub const fn bytes(bytes: u64) -> Self {
        Self { bytes, in_flight: 1, max_items: u64::MAX }
    }

    /// At most `percent` percent of `free_bytes`.
    pub fn share_of(free_bytes: u64, percent: u64) -> Self {
        let bytes = u128::from(free_bytes) * u128::from(percent.min(100)) / 100;
        Self::bytes(saturated(bytes))
    }

    /// At most `chunks` at the same time, each with its own scratch. Zero counts as one.
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
    pub const fn max_bytes(&self) -> u64 {
        self.bytes
    }

    /// The most chunks at the same time.
    pub const fn max_in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The most items of a chunk.
    pub const fn max_items(&self) -> u64 {
        self.max_items
    }
}

/// The chunks of a pipeline, and their scratch.
///
/// All chunks have the same number of items, except that the last one may have fewer.
#[derive(Clone, Debug)]
#[must_use]
pub struct PipelinePlan {
    pub(crate) pipeline: u64,
    /// Identifies the graph that the plan runs as, if any.
    pub(crate) graph: Option<u64>,
    /// The chunks, counted from the first item that is left.
    chunks: Chunks,
    /// Items before the first chunk.
    done: u64,
    budget: Budget,
    /// Items of the smallest possible chunk.
    unit: u64,
    in_flight: u64,
    /// Whether later chunks were left out.
    partial: bool,
    /// Bytes of scratch of a chunk.
    pub(crate) scratch_bytes: u64,
    /// For each stage, its name and the bytes of live scratch.
    stages: Vec<(String, u64)>,
    /// The launches of each stage that launches a kernel.
    launches: Vec<Option<Plan>>,
}

impl Pipeline<'_> {
    /// Plans the largest chunk that is legal for every stage and within the budget. As many chunks are in
    /// flight as fit with the smallest chunk. The chunks are then balanced, so that the last one is not
    /// much smaller than the others.
    ///
    /// # Errors
    ///
    /// [`Error`] if a stage's launch is illegal in any chunk, no chunk suits all stages, or the
    /// budget is too small for the smallest chunk.
    pub fn plan(&self, budget: &Budget) -> Result<PipelinePlan, Error> {
        self.definition.plan(budget, 0)
    }
}

impl PipelinePlan {
    /// Items of all chunks.
    pub const fn items(&self) -> u64 {
        self.chunks.items()
    }

    /// The number of chunks; 0 for a pipeline of zero items.
    pub const fn len(&self) -> u64 {
        self.chunks.launches()
    }

    /// Whether there are no chunks.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items of a chunk; 0 if there is none.
    pub fn chunk_items(&self) -> u64 {
        self.chunks.largest()
    }

    /// Items of the last chunk, if it has fewer than the others.
    pub fn remainder(&self) -> Option<u64> {
        let last = self.chunks.at(self.len().checked_sub(1)?)?;
        (last.items < self.chunk_items()).then_some(last.items)
    }

    /// Chunks that run at the same time.
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Items of the smallest chunk that keeps the alignment of every stage.
    pub const fn smallest_chunk(&self) -> u64 {
        self.unit
    }

    /// The plan as one CUDA graph of all chunks. Its first run captures the graph and launches it; later
    /// runs over the same memory launch it again, each with one call to the driver.
    ///
    /// Chunks in flight are parallel branches of the graph, whatever streams the run has. The pipeline owns
    /// the graph and its scratch, until another graph plan runs or the pipeline is dropped. To capture
    /// again, for example for other memory, call this again. On the host the chunks run as usual.
    pub fn as_graph(self) -> Self {
        Self { graph: Some(next_id()), ..self }
    }

    /// The first chunks that are in flight together, to measure or to see first results. If memory runs
    /// out, such a run fails instead of continuing with smaller chunks.
    pub fn first_in_flight(&self) -> Self {
        let chunk = self.chunk_items();
        let items = chunk.saturating_mul(self.in_flight).min(self.items());
        let (chunks, partial) = (Chunks::balanced(items, chunk, chunk), items < self.items());
        let graph = self.graph.map(|_| next_id());
        Self { chunks, graph, partial: self.partial || partial, ..self.clone() }
    }

    /// Bytes of scratch that a run allocates.
    pub const fn bytes(&self) -> u64 {
        // The product is within the budget.
        self.scratch_bytes.saturating_mul(self.in_flight)
    }

    /// The name of each stage, and the bytes of scratch of one chunk that are live at it.
    pub fn stages(&self) -> impl ExactSizeIterator<Item = (&str, u64)> {
        self.stages.iter().map(|(name, bytes)| (&**name, *bytes))
    }

    /// The chunks, in order.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + use<> {
        let done = self.done;
        self.chunks
            .iter()
            .map(move |chunk| Chunk { start: chunk.start.saturating_add(done), ..chunk })
    }

    /// The launch of the stage at `index` for one of the plan's chunks; `None` if the stage launches
    /// nothing, or no chunk of the plan has this size.
    pub fn launch(&self, index: usize, chunk: Chunk) -> Option<PlannedLaunch> {
        let after = chunk.start.checked_sub(self.done)?;
        let mut planned = self.launches_of(index)?.at(after.checked_div(self.chunk_items())?)?;
        let is_same = (planned.chunk.start, planned.chunk.items) == (after, chunk.items);
        planned.chunk = chunk;
        is_same.then_some(planned)
    }

    /// All launches of the stage at `index`.
    pub(crate) fn launches_of(&self, index: usize) -> Option<&Plan> {
        self.launches.get(index)?.as_ref()
    }
}

impl fmt::Display for PipelinePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (items, len, chunk) = (self.items(), self.len(), self.chunk_items());
        write!(f, "{} in {} of {chunk}", count(items, "item"), count(len, "chunk"))?;
        if let Some(last) = self.remainder() {
            write!(f, ", the last of {last}")?;
        }
        write!(f, ", {} in flight, {} of scratch", self.in_flight, count(self.bytes(), "byte"))?;
        for (name, bytes) in &self.stages {
            write!(f, "\n  {name}: {} a chunk", count(*bytes, "byte"))?;
        }
        Ok(())
    }
}

impl Definition {
    /// Plans the items after the first `done`, which end at the end of a chunk.
    pub(crate) fn plan(&self, budget: &Budget, done: u64) -> Result<PipelinePlan, Error> {
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
            let message = format!(
                "{limited_by} allows chunks of at most {}, the smallest that keeps the \
                 alignment of every stage has {smallest}: raise the limit, or lower an alignment",
                count(cap, "item")
            );
            return Err(Error::new(ErrorKind::Alignment, message));
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
        let stages = self.stages.iter().enumerate();
        let stages =
            stages.map(|(index, stage)| (stage.name.clone(), self.live_bytes(index, chunk)));
        Ok(PipelinePlan {
            pipeline: self.id,
            graph: None,
            chunks,
            done,
            budget: *budget,
            unit: smallest,
            in_flight: in_flight.min(chunks.launches()).max(1),
            partial: false,
            scratch_bytes: if items == 0 { 0 } else { saturated(self.layout.bytes(chunk)) },
            stages: stages.collect(),
            launches,
        })
    }

    /// A plan for the items after the first `done`, in chunks of half the size, or else with half as many
    /// in flight; `None` if `plan` has one chunk of the smallest size in flight.
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
    fn unit(&self, done: u64) -> Result<u64, Error> {
        let mut unit = 1;
        for stage in &self.stages {
            let both = stage.unit(done)?.and_then(|own| least_common_multiple(unit, own));
            unit = both.unwrap_or(u64::MAX);
        }
        Ok(unit)
    }

    /// Bytes of scratch of a chunk of `items` that are live at the stage at `index`; saturated.
    fn live_bytes(&self, index: usize, items: u64) -> u64 {
        let is_live = |buffer: &&BufferSpec| {
            let (first, last) = buffer.lifetime;
            buffer.in_scratch() && (first..=last).contains(&index)
        };
        let live = self.buffers.iter().filter(is_live);
        saturated(live.map(|buffer| buffer.extent.bytes(items)).sum::<u128>())
    }

    /// The largest chunk within the budget, and the number of chunks in flight.
    fn within(&self, budget: &Budget, smallest: u64) -> Result<(u64, u64), Error> {
        let wanted = if self.is_sequential() { 1 } else { budget.in_flight };
        let least = self.layout.bytes(smallest);
        let fitting = u128::from(budget.bytes).checked_div(least).map_or(u64::MAX, saturated);
        let in_flight = wanted.min(fitting);
        let each = budget.bytes.checked_div(in_flight);
        match each.and_then(|each| self.layout.items_within(each)) {
            Some(items) => Ok((items, in_flight)),
            None => {
                let (budget, chunk, smallest) = (budget.bytes, smallest, saturated(least));
                let message = format!(
                    "the budget is {}, the smallest possible chunk of {} needs {} of scratch: raise the budget to that",
                    count(budget, "byte"),
                    count(chunk, "item"),
                    count(smallest, "byte")
                );
                Err(Error::new(ErrorKind::Budget { smallest, chunk }, message))
            }
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
        let buffer = self.buffers.get(index).filter(|buffer| buffer.in_scratch())?;
        let offset = self.layout.offset(index, plan.chunk_items());
        Some((offset, saturated(buffer.extent.bytes(items))))
    }
}

impl StageSpec {
    /// The most items of a chunk.
    fn cap(&self) -> u64 {
        let launch = self.launch.as_ref().map(|StageLaunch { batch, limits, .. }| {
            batch.items_within(limits.device().max_grid.along(batch.axis()).min(u32::MAX.into()))
        });
        launch.map_or(self.at_most, |cap| cap.min(self.at_most))
    }

    /// The launch for the items after the first `done`.
    fn launch_after(&self, done: u64) -> Option<(LaunchRequest, BatchAxis, &LaunchLimits)> {
        let StageLaunch { request, batch, limits } = self.launch.as_ref()?;
        let rest = batch.after(done);
        let blocks = rest.blocks(rest.items()).unwrap_or(u64::MAX);
        // The caller's grid is checked unchanged. A dependent launch would overlap the stage before it, so
        // chunks are ordinary launches.
        let grid = match done {
            0 => request.grid,
            _ => request.grid.with(batch.axis(), blocks),
        };
        let mut request = *request;
        (request.grid, request.dependent) = (grid, false);
        Some((request, rest, limits))
    }

    /// The items of the smallest chunk, if the launch is legal whole or in chunks; `None` past u64.
    fn unit(&self, done: u64) -> Result<Option<u64>, Error> {
        let Some((request, batch, limits)) = self.launch_after(done) else {
            return Ok(Some(self.align));
        };
        let _legal = self.legal(Plan::new(&request, Some(&batch), limits, Choice::AUTOMATIC))?;
        let unit = batch.smallest_chunk(&request, limits);
        Ok(unit.and_then(|unit| least_common_multiple(unit, self.align)))
    }

    /// The launches of chunks of `chunk` items, after the first `done`.
    fn plan(&self, done: u64, chunk: u64) -> Result<Option<Plan>, Error> {
        let Some((request, batch, limits)) = self.launch_after(done) else { return Ok(None) };
        // The alignment makes the planner choose the pipeline's chunks.
        let batch = if chunk < batch.items() { batch.align(chunk) } else { batch };
        let choice = Choice::at_most(chunk).strategy(Strategy::Chunked);
        self.legal(Plan::new(&request, Some(&batch), limits, choice)).map(Some)
    }

    fn legal(&self, plan: Result<Plan, Violations>) -> Result<Plan, Error> {
        plan.map_err(|violations| Error::illegal(&self.name, violations))
    }
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a.checked_div(divisor)?.checked_mul(b)
}
