//! The search space: all legal ways to run a launch, from the guard's planner.

use std::collections::HashSet;

use gridguard::profile::{Named, Objective, StoredChoice};
use gridguard::{BatchAxis, LaunchRequest, Plan, Strategy};
use gridguard_pipeline::{self as pipeline, Pipeline};

use crate::candidate::{Candidate, LaunchConfig, MAX_CHUNK_SIZES, chunked};
use crate::stats::real;
use crate::variant::Variant;

/// All candidates of a problem, the default first.
///
/// The default is the planner's automatic plan of the first configuration that is legal.
#[derive(Clone, Debug, Default)]
pub struct Space {
    configurations: Vec<LaunchConfig>,
    variants: Vec<Variant>,
    /// Candidates that are not planned.
    listed: Vec<Candidate>,
    candidates: Vec<Candidate>,
    objective: Objective,
}

impl Space {
    /// Plans every configuration in every way worth measuring: automatic, whole, folded and shifted. A batch
    /// is also planned in chunks from one wave of blocks up, each twice as large as the previous one.
    ///
    /// Rejected plans are omitted, and equal plans appear once. [`Plan::new`] explains why a configuration has
    /// no candidate. Candidates name their configuration by its parameters, so no two may have the same.
    #[must_use]
    pub fn new(configurations: Vec<LaunchConfig>) -> Self {
        Self { configurations, ..Default::default() }.generated()
    }

    fn generated(mut self) -> Self {
        self.generate();
        self
    }

    /// A space of these candidates, the default first, with unknown launches, for example of a
    /// [`ProgramProblem`](crate::ProgramProblem).
    ///
    /// No other sizes can be planned, so an objective of latency chooses among these. That needs a measurer
    /// that times single launches, unlike [`ProgramMeasurer`](crate::ProgramMeasurer).
    #[must_use]
    pub fn listed(candidates: Vec<Candidate>) -> Self {
        Self { listed: candidates, ..Default::default() }.generated()
    }

    /// Plans each of `pipelines` in every way worth measuring within `budget`. The chunks are the largest that
    /// are legal and fit, then a half, a quarter and so on of all items. The chunks in flight are the most
    /// that the budget allows, and 1, 2, 4 and so on below that.
    ///
    /// The default is the plan of the first pipeline for `budget`. No two pipelines may have the same
    /// [parameters](gridguard_pipeline::PipelineBuilder::parameter).
    /// [`PipelineWorkload`](crate::PipelineWorkload) measures them.
    #[must_use]
    pub fn pipelines(pipelines: Vec<Pipeline<'static>>, budget: &pipeline::Budget) -> Self {
        let variants = Variant::all(pipelines, budget);
        Self { variants, ..Default::default() }.generated()
    }

    /// Regenerates the candidates if `objective` changes the memory limit, which bounds the workspace of a
    /// chunk and the scratch of a pipeline. With a limit, choices are chunk sizes instead of `automatic`, so
    /// that later plans respect it.
    pub fn restrict(&mut self, objective: Objective) {
        let restricts = |objective| matches!(objective, Objective::Memory { .. });
        let before = core::mem::replace(&mut self.objective, objective);
        if before == objective || !(restricts(before) || restricts(objective)) {
            return;
        }
        self.generate();
    }

    /// All candidates, the default first. Empty if no configuration has a legal plan.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Keeps only these candidates and the default.
    pub fn keep(&mut self, some: &[Candidate]) {
        let kept: HashSet<Candidate> = some.iter().chain(self.default()).cloned().collect();
        self.candidates.retain(|one| kept.contains(one));
    }

    /// Removes the candidates that `keep` rejects. If the default is among them, the next candidate becomes it.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Candidate) -> bool) {
        self.candidates.retain(keep);
    }

    /// Makes another candidate the default, for example the launch that a program uses today.
    pub fn make_default(&mut self, candidate: &Candidate) {
        if let Some(place) = self.candidates.iter().position(|one| one == candidate) {
            self.candidates[..=place].rotate_right(1);
        }
    }

    /// The candidate that runs untuned.
    #[must_use]
    pub fn default(&self) -> Option<&Candidate> {
        self.candidates.first()
    }

    /// The configuration with these parameters.
    #[must_use]
    pub fn configuration(&self, parameters: &Named) -> Option<&LaunchConfig> {
        self.configurations.iter().find(|one| one.parameters == *parameters)
    }

    /// The plan of a candidate.
    #[must_use]
    pub fn plan(&self, candidate: &Candidate) -> Option<Plan> {
        self.configuration(&candidate.parameters)?.plan(candidate.choice, self.objective).ok()
    }

    /// Adds and returns the candidate for `choice` with these parameters, if legal. Returns an earlier
    /// candidate with the same plan instead, if there is one.
    pub fn add(&mut self, parameters: &Named, choice: StoredChoice) -> Option<Candidate> {
        let new = match self.variant(parameters) {
            Some(variant) => variant.candidate(choice, self.objective)?,
            None => candidate(self.configuration(parameters)?, choice, self.objective)?,
        };
        let same = self.candidates.iter().find(|one| one.is_same_plan(&new)).cloned();
        Some(same.unwrap_or_else(|| {
            self.candidates.push(new.clone());
            new
        }))
    }

    /// The most items of one legal launch of the default's configuration, if fewer than the batch has.
    #[must_use]
    pub fn largest_legal_chunk(&self) -> Option<u64> {
        let configuration = self.configuration(&self.default()?.parameters)?;
        let batch = configuration.batch_within(self.objective)?;
        Some(legal_items(configuration, &batch)).filter(|items| *items < batch.items())
    }

    /// The items of the smallest possible chunk with these parameters, at least one.
    pub(crate) fn unit(&self, parameters: &Named) -> u64 {
        match self.variant(parameters) {
            Some(variant) => variant.unit(),
            None => self.configuration(parameters).map_or(1, unit),
        }
    }

    /// The capacity of the candidate's waves in blocks, divided by its blocks: 1 if every wave is full. 1 for
    /// pipelines, because each stage has its own waves.
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
        let Self { configurations, variants, listed, candidates, objective } = self;
        candidates.clear();
        let mut plans = HashSet::new();
        // Of candidates with the same plan, only the first.
        let mut include = |candidates: &mut Vec<Candidate>, new: Candidate| {
            let (strategy, launches, largest_chunk, parameters) = new.plan();
            if plans.insert((strategy, launches, largest_chunk, parameters.clone())) {
                candidates.push(new);
            }
        };
        let listed = listed.iter().filter(|one| one.is_within(*objective)).cloned();
        for new in listed.chain(variants.iter().flat_map(|one| one.candidates(*objective))) {
            include(candidates, new);
        }
        for configuration in configurations.iter() {
            for choice in choices(configuration, *objective) {
                // Only an automatic plan can become the default.
                if (choice == StoredChoice::Automatic || !candidates.is_empty())
                    && let Some(new) = candidate(configuration, choice, *objective)
                {
                    include(candidates, new);
                }
            }
            if candidates.first().is_some_and(|default| default.launches == 0) {
                return;
            }
        }
    }
}

fn candidate(
    configuration: &LaunchConfig,
    choice: StoredChoice,
    objective: Objective,
) -> Option<Candidate> {
    let plan = configuration.plan(choice, objective).ok()?;
    let spells_out = matches!(objective, Objective::Memory { .. });
    let choice = match (choice, plan.strategy()) {
        (StoredChoice::Automatic, Strategy::Chunked) if !spells_out => choice,
        // The measured size, because another batch could be balanced to larger chunks.
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

/// Automatic, whole, folded, shifted, and chunks.
fn choices(configuration: &LaunchConfig, objective: Objective) -> Vec<StoredChoice> {
    use StoredChoice::{Automatic, Folded, Shifted, Whole};
    let batch = configuration.batch_within(objective);
    let sizes = batch.map(|batch| chunk_sizes(configuration, &batch)).unwrap_or_default();
    [Automatic, Whole, Folded, Shifted].into_iter().chain(sizes.into_iter().map(chunked)).collect()
}

/// The chunk sizes worth measuring, in items: doubling from the chunk that fills the device once, up to all
/// items. The planner decides which are legal.
///
/// A chunk of less than a wave leaves multiprocessors idle. Sizes between two powers of two gain little, because
/// time against chunk size is flat except at its ends.
fn chunk_sizes(configuration: &LaunchConfig, batch: &BatchAxis) -> Vec<u64> {
    let mut sizes = Vec::new();
    let Some(unit) = batch.unit().filter(|_| batch.items() > 0) else { return sizes };
    let mut size = round_up(wave_items(configuration, batch), unit.max(1));
    let legal = legal_items(configuration, batch);
    while size < batch.items() {
        if size / 2 < legal {
            sizes.push(size);
        }
        size = size.saturating_mul(2);
    }
    // Drops the smallest chunks, which need the most launches.
    sizes.drain(..sizes.len().saturating_sub(MAX_CHUNK_SIZES));
    // As many items as fit, even if the default takes fewer.
    sizes.push(batch.items());
    sizes
}

/// The most items of one legal launch.
fn legal_items(configuration: &LaunchConfig, batch: &BatchAxis) -> u64 {
    batch.items_within(configuration.limits.device().max_grid.along(batch.axis()))
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

/// Items that cannot be separated, at least one.
fn unit(configuration: &LaunchConfig) -> u64 {
    configuration.batch.and_then(|batch| batch.unit()).unwrap_or(1).max(1)
}

fn round_up(items: u64, unit: u64) -> u64 {
    items.div_ceil(unit).saturating_mul(unit)
}

fn narrow(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
