//! The search space: all legal ways to run a launch, found through the guard's planner.

use gridguard::pipeline::{self, Pipeline};
use gridguard::profile::{Named, Objective, StoredChoice};
use gridguard::{BatchAxis, Choice, LaunchRequest, Plan, Strategy};

use crate::candidate::{Candidate, LaunchConfig, MAX_CHUNK_SIZES, chunked};
use crate::stats::real;
use crate::variant::Variant;

/// All candidates of a problem, the default first.
///
/// The default is the planner's automatic plan of the first configuration that is legal.
#[derive(Clone, Debug)]
pub struct Space {
    configurations: Vec<LaunchConfig>,
    /// The batches as given, without the workspace of an objective.
    batches: Vec<Option<BatchAxis>>,
    /// The candidates as given, if they are not planned.
    listed: Vec<Candidate>,
    /// Pipelines, which plan themselves.
    variants: Vec<Variant>,
    candidates: Vec<Candidate>,
    objective: Objective,
}

impl Space {
    /// Plans every configuration in every way worth measuring: automatic, whole, folded, shifted, and, of
    /// a batch, in chunks from one wave of blocks up, each twice the size of the one before.
    ///
    /// What the planner rejects is left out, and equal plans appear once. [`Plan::new`] tells why a
    /// configuration has no candidate. Candidates name their configuration by its parameters, so no
    /// two configurations may have the same.
    #[must_use]
    pub fn new(configurations: Vec<LaunchConfig>) -> Self {
        let batches = configurations.iter().map(|configuration| configuration.batch).collect();
        let objective = Objective::Throughput;
        let (listed, variants, candidates) = (Vec::new(), Vec::new(), Vec::new());
        let mut space = Self { configurations, batches, listed, variants, candidates, objective };
        space.generate();
        space
    }

    /// A space of these candidates, the default first, whose launches are not known here, such as
    /// those of a [`ProgramProblem`](crate::ProgramProblem).
    ///
    /// No other sizes can be planned: an objective that bounds the time of a launch chooses among
    /// these, if the measurer times single launches, which that of a program does not.
    #[must_use]
    pub fn listed(candidates: Vec<Candidate>) -> Self {
        Self { listed: candidates.clone(), candidates, ..Self::new(Vec::new()) }
    }

    /// Plans each of `pipelines` in every way worth measuring within `budget`: in the largest chunks that
    /// are legal and fit, and in chunks of a half, a quarter and so on of all items, with as many
    /// of them in flight as the budget allows, and with 1, 2, 4 and so on below that.
    ///
    /// The default is the plan of the first pipeline for `budget`. Pipelines are told apart by their
    /// [parameters](gridguard::pipeline::PipelineBuilder::parameter), so no two may have the same. See
    /// [`PipelineWorkload`](crate::PipelineWorkload), which measures them.
    #[must_use]
    pub fn pipelines(pipelines: Vec<Pipeline<'static>>, budget: &pipeline::Budget) -> Self {
        let variants = Variant::all(pipelines, budget);
        let mut space = Self { variants, ..Self::new(Vec::new()) };
        space.generate();
        space
    }

    /// Regenerates the candidates for `objective` if it changes what is legal: a workspace bounds
    /// the chunk size, and that of a pipeline all scratch. Choices are then spelled out as chunk sizes, so
    /// that they respect it wherever they are planned. An objective without a workspace makes all
    /// candidates legal again.
    pub fn restrict(&mut self, objective: Objective) {
        let restricts = |objective| matches!(objective, Objective::Memory { .. });
        let before = core::mem::replace(&mut self.objective, objective);
        if before == objective || !(restricts(before) || restricts(objective)) {
            return;
        }
        for (configuration, batch) in self.configurations.iter_mut().zip(&self.batches) {
            configuration.batch = match objective {
                Objective::Memory { bytes_per_item, bytes } => {
                    batch.map(|batch| batch.workspace(bytes_per_item, bytes))
                }
                Objective::Throughput | Objective::Latency { .. } => *batch,
            };
        }
        self.candidates.clear();
        self.generate();
    }

    /// All candidates, the default first. Empty if no configuration is legal in any way.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Keeps only these candidates, and the default, with which all are compared.
    pub fn keep(&mut self, some: &[Candidate]) {
        let default = self.default().cloned();
        self.candidates.retain(|one| default.as_ref() == Some(one) || some.contains(one));
    }

    /// Makes another candidate the default, to see how a search does from a bad one.
    pub fn make_default(&mut self, candidate: &Candidate) {
        if let Some(place) = self.candidates.iter().position(|one| one == candidate) {
            self.candidates[..=place].rotate_right(1);
        }
    }

    /// What runs if nothing is tuned.
    #[must_use]
    pub fn default(&self) -> Option<&Candidate> {
        self.candidates.first()
    }

    /// The configuration with these parameters.
    #[must_use]
    pub fn configuration(&self, parameters: &Named) -> Option<&LaunchConfig> {
        self.configurations.iter().find(|one| one.parameters == *parameters)
    }

    /// The plan of a candidate, under the limits of its configuration.
    #[must_use]
    pub fn plan(&self, candidate: &Candidate) -> Option<Plan> {
        plan(self.configuration(&candidate.parameters)?, candidate.choice)
    }

    /// Adds the candidate that `choice` yields with these parameters, if it is legal. If another
    /// choice already yielded the same plan, that candidate is returned.
    pub fn add(&mut self, parameters: &Named, choice: StoredChoice) -> Option<Candidate> {
        let new = match self.variant(parameters) {
            Some(variant) => variant.candidate(choice, self.objective)?,
            None => candidate(self.configuration(parameters)?, choice, self.objective)?,
        };
        if let Some(same) = self.candidates.iter().find(|one| one.is_same_plan(&new)) {
            return Some(same.clone());
        }
        self.candidates.push(new.clone());
        Some(new)
    }

    /// The most items that one launch of the default's configuration may have, if that is fewer
    /// than the batch has.
    #[must_use]
    pub fn largest_legal_chunk(&self) -> Option<u64> {
        let configuration = self.configuration(&self.default()?.parameters)?;
        let batch = configuration.batch?;
        let blocks = configuration.limits.device().max_grid.along(batch.axis());
        Some(batch.items_within(blocks)).filter(|items| *items < batch.items())
    }

    /// The items of the smallest possible chunk with these parameters, at least one.
    pub(crate) fn unit(&self, parameters: &Named) -> u64 {
        match self.variant(parameters) {
            Some(variant) => variant.unit(),
            None => self.configuration(parameters).map_or(1, unit),
        }
    }

    /// The capacity of the candidate's waves in blocks, over the blocks that it launches: 1 if
    /// every wave is full, and for pipelines, whose stages have waves of their own.
    pub(crate) fn wave_padding(&self, candidate: &Candidate) -> Option<f64> {
        if self.variant(&candidate.parameters).is_some() {
            return Some(1.0);
        }
        let configuration = self.configuration(&candidate.parameters)?;
        let wave = u128::from(wave_blocks(configuration));
        let blocks = configuration.request.grid.volume();
        let items = u128::from(items(configuration).max(1));
        let chunk_blocks = blocks.saturating_mul(candidate.largest_chunk.into()).div_ceil(items);
        let waves =
            chunk_blocks.div_ceil(wave).saturating_mul(u128::from(candidate.launches.max(1)));
        Some(real(narrow(waves.saturating_mul(wave))) / real(narrow(blocks).max(1)))
    }

    fn variant(&self, parameters: &Named) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.parameters == *parameters)
    }

    fn generate(&mut self) {
        let listed = self.listed.iter().filter(|one| one.is_within(self.objective));
        self.candidates.extend(listed.cloned());
        for new in self.variants.iter().flat_map(|variant| variant.candidates(self.objective)) {
            if !self.candidates.iter().any(|one| one.is_same_plan(&new)) {
                self.candidates.push(new);
            }
        }
        for configuration in &self.configurations {
            let plans = [
                StoredChoice::Automatic,
                StoredChoice::Whole,
                StoredChoice::Folded,
                StoredChoice::Shifted,
            ];
            let chunks = chunk_sizes(configuration).into_iter().map(chunked);
            for choice in plans.into_iter().chain(chunks) {
                let Some(new) = candidate(configuration, choice, self.objective) else { continue };
                let is_new = !self.candidates.iter().any(|one| one.is_same_plan(&new));
                // Only an automatic plan can become the default.
                if is_new && (choice == StoredChoice::Automatic || !self.candidates.is_empty()) {
                    self.candidates.push(new);
                }
            }
            if self.default().is_some_and(|default| default.launches == 0) {
                return;
            }
        }
    }
}

fn plan(configuration: &LaunchConfig, choice: StoredChoice) -> Option<Plan> {
    let LaunchConfig { request, batch, limits, .. } = configuration;
    Plan::new(request, batch.as_ref(), limits, Choice::from(choice)).ok()
}

fn candidate(
    configuration: &LaunchConfig,
    choice: StoredChoice,
    objective: Objective,
) -> Option<Candidate> {
    let plan = plan(configuration, choice)?;
    let spells_out = matches!(objective, Objective::Memory { .. });
    let choice = match (choice, plan.strategy()) {
        (StoredChoice::Automatic, Strategy::Chunked) if !spells_out => choice,
        // The size that is measured, so that another batch size is not balanced to a larger one.
        (_, Strategy::Chunked) => chunked(round_up(plan.largest_chunk(), unit(configuration))),
        _ => choice,
    };
    // A rewritten kernel's plan counts blocks.
    let blocks = u128::from(plan.largest_chunk()).saturating_mul(items(configuration).into());
    let candidate = Candidate {
        parameters: configuration.parameters.clone(),
        choice,
        strategy: plan.strategy(),
        launches: plan.len(),
        largest_chunk: narrow(blocks.div_ceil(u128::from(plan.items()).max(1))),
        block_threads: narrow(configuration.request.block.volume()),
        scratch_bytes: 0,
    };
    // The planner bounds the workspace of a batch.
    Some(candidate).filter(|one| configuration.batch.is_some() || one.is_within(objective))
}

/// The chunk sizes worth measuring, in items: doubling from the chunk that fills the device once,
/// up to all items. The planner decides which of them are legal.
///
/// A chunk of less than a wave leaves multiprocessors idle, and between two powers of two there is
/// little to gain: time against chunk size is flat except at its ends.
fn chunk_sizes(configuration: &LaunchConfig) -> Vec<u64> {
    let mut sizes = Vec::new();
    if let Some(batch) = configuration.batch.filter(|batch| batch.items() > 0)
        && let Some(unit) = batch.unit()
    {
        let mut size = round_up(wave_items(configuration, &batch), unit.max(1));
        let legal = batch.items_within(configuration.limits.device().max_grid.along(batch.axis()));
        while size < batch.items() {
            if size / 2 < legal {
                sizes.push(size);
            }
            size = size.saturating_mul(2);
        }
        // Beyond the most points the smallest chunks are dropped, which need the most launches.
        sizes.drain(..sizes.len().saturating_sub(MAX_CHUNK_SIZES));
        // As many items as fit, whatever the default does.
        sizes.push(batch.items());
    }
    sizes
}

/// Blocks that fill the device once, at least one.
fn wave_blocks(configuration: &LaunchConfig) -> u64 {
    let LaunchRequest { block, dynamic_shared_bytes, .. } = configuration.request;
    let resident = configuration.limits.blocks_per_multiprocessor(block, dynamic_shared_bytes);
    configuration.limits.device().multiprocessors.saturating_mul(resident).max(1)
}

/// Items whose blocks fill the device once, at least one.
fn wave_items(configuration: &LaunchConfig, batch: &BatchAxis) -> u64 {
    let grid = configuration.request.grid;
    let other_axes = narrow(grid.with(batch.axis(), 1).volume()).max(1);
    let blocks = u128::from(wave_blocks(configuration).div_ceil(other_axes));
    let all_blocks = u128::from(grid.along(batch.axis()).max(1));
    let items = u128::from(batch.items()).saturating_mul(blocks).div_ceil(all_blocks);
    narrow(items).max(1)
}

/// Items of the batch, or all blocks.
fn items(configuration: &LaunchConfig) -> u64 {
    let blocks = || narrow(configuration.request.grid.volume());
    configuration.batch.map_or_else(blocks, |batch| batch.items())
}

/// Items that only go together, at least one.
fn unit(configuration: &LaunchConfig) -> u64 {
    configuration.batch.and_then(|batch| batch.unit()).unwrap_or(1).max(1)
}

fn round_up(items: u64, unit: u64) -> u64 {
    items.div_ceil(unit).saturating_mul(unit)
}

fn narrow(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
