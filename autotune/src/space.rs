//! All legal ways to run a launch, found through the guard's planner.

mod ladder;

use core::num::NonZeroU64;

use gridguard::profile::{Named, Objective, StoredChoice};
use gridguard::{BatchAxis, Choice, Plan, Strategy};

use crate::candidate::{Candidate, LaunchConfig};
use crate::deal::Part;

/// All candidates of a problem, the default first.
///
/// The default is what the planner does by itself with the first configuration that it accepts.
#[derive(Clone, Debug)]
pub struct Space {
    configurations: Vec<LaunchConfig>,
    /// Their batches as they were given, without the workspace of an objective.
    batches: Vec<BatchAxis>,
    candidates: Vec<Candidate>,
    objective: Objective,
}

impl Space {
    /// Plans every configuration in every way that is worth a measurement: as the planner does by
    /// itself, whole, folded, and in chunks from a wave of blocks on, each twice the one before.
    ///
    /// What the planner refuses is no candidate, and plans that are the same stand once. Why a
    /// configuration has none, [`Plan::new`] says of its request. Candidates are told apart by their
    /// parameters, so no two configurations have the same.
    #[must_use]
    pub fn new(configurations: Vec<LaunchConfig>) -> Self {
        let objective = Objective::Throughput;
        let batches = configurations.iter().map(|configuration| configuration.batch).collect();
        let mut space = Self { configurations, batches, candidates: Vec::new(), objective };
        space.generate();
        space
    }

    /// Makes the candidates anew for `objective`, where it narrows what is legal: a workspace bounds
    /// the chunks. Choices are then spelt out, so that they keep to it wherever they are planned. For
    /// an objective without one, what was narrowed before is legal again.
    pub fn restrict(&mut self, objective: Objective) {
        let narrows = |objective| matches!(objective, Objective::Memory { .. });
        let before = core::mem::replace(&mut self.objective, objective);
        if before == objective || !(narrows(before) || narrows(objective)) {
            return;
        }
        for (configuration, batch) in self.configurations.iter_mut().zip(&self.batches) {
            configuration.batch = match objective {
                Objective::Memory { bytes_per_item, bytes } => {
                    batch.workspace(bytes_per_item, bytes)
                }
                Objective::Throughput | Objective::Latency { .. } => *batch,
            };
        }
        self.candidates.clear();
        self.generate();
    }

    /// All candidates, the default first. Empty where no configuration is legal in any way.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Keeps one part of the candidates, and the default, which all parts are compared with.
    pub fn keep_part(&mut self, part: Part) {
        let Part { index, count } = part;
        let mut place = 0..;
        self.candidates.retain(|_| {
            place.next().is_some_and(|place: usize| place == 0 || place % count.max(1) == index)
        });
    }

    /// Keeps only these candidates, and the default.
    pub fn keep(&mut self, some: &[Candidate]) {
        let default = self.default().cloned();
        self.candidates.retain(|one| default.as_ref() == Some(one) || some.contains(one));
    }

    /// Makes another candidate the default, as if it ran where nothing was tuned: to see what a search
    /// makes of a bad one.
    pub fn make_default(&mut self, candidate: &Candidate) {
        if let Some(place) = self.candidates.iter().position(|one| one == candidate)
            && let Some(before) = self.candidates.get_mut(..=place)
        {
            before.rotate_right(1);
        }
    }

    /// What runs where nothing was tuned.
    #[must_use]
    pub fn default(&self) -> Option<&Candidate> {
        self.candidates.first()
    }

    /// The configuration that a candidate was planned from.
    #[must_use]
    pub fn configuration(&self, parameters: &Named) -> Option<&LaunchConfig> {
        self.configurations.iter().find(|one| one.parameters == *parameters)
    }

    /// The plan of a candidate, under the limits of its configuration.
    #[must_use]
    pub fn plan(&self, candidate: &Candidate) -> Option<Plan> {
        plan(self.configuration(&candidate.parameters)?, candidate.choice)
    }

    /// Adds the candidate that `choice` makes with these parameters, where it is legal. If another
    /// choice already made the same plan, that candidate is returned.
    pub fn add(&mut self, parameters: &Named, choice: StoredChoice) -> Option<Candidate> {
        let candidate = candidate(self.configuration(parameters)?, choice, self.objective)?;
        if let Some(same) = self.candidates.iter().find(|one| same_plan(one, &candidate)) {
            return Some(same.clone());
        }
        self.candidates.push(candidate.clone());
        Some(candidate)
    }

    /// The most items that one launch of the default's configuration may have, where that is fewer
    /// than there are.
    #[must_use]
    pub fn largest_legal_chunk(&self) -> Option<u64> {
        let configuration = self.configuration(&self.default()?.parameters)?;
        let batch = &configuration.batch;
        let blocks = configuration.limits.device().max_grid.along(batch.axis());
        Some(batch.items_within(blocks)).filter(|items| *items < batch.items())
    }

    /// How often a candidate fills the device: exactly, and in waves that have begun.
    pub(crate) fn waves(&self, candidate: &Candidate) -> Option<Waves> {
        let configuration = self.configuration(&candidate.parameters)?;
        let wave = u128::from(ladder::wave_blocks(configuration));
        let blocks = configuration.request.grid.volume();
        let items = u128::from(configuration.batch.items().max(1));
        let blocks_of_a_chunk =
            blocks.saturating_mul(candidate.largest_chunk.into()).div_ceil(items);
        let begun =
            blocks_of_a_chunk.div_ceil(wave).saturating_mul(u128::from(candidate.launches.max(1)));
        let narrow = |waves: u128| u64::try_from(waves).unwrap_or(u64::MAX);
        Some(Waves {
            exact_blocks: narrow(blocks),
            begun_blocks: narrow(begun.saturating_mul(wave)),
        })
    }

    fn generate(&mut self) {
        for index in 0..self.configurations.len() {
            let choices = self.configurations.get(index).map(choices).unwrap_or_default();
            for choice in choices {
                let Some(configuration) = self.configurations.get(index) else { continue };
                let Some(made) = candidate(configuration, choice, self.objective) else { continue };
                // Before there is a default, only an automatic plan can become it.
                if self.candidates.is_empty() && choice != StoredChoice::Automatic {
                    continue;
                }
                if !self.candidates.iter().any(|one| same_plan(one, &made)) {
                    self.candidates.push(made);
                }
            }
            let empty = self.candidates.first().is_some_and(|default| default.launches == 0);
            if empty {
                return;
            }
        }
    }
}

/// Blocks of a launch, and of all the waves that it begins.
pub(crate) struct Waves {
    pub(crate) exact_blocks: u64,
    pub(crate) begun_blocks: u64,
}

fn choices(configuration: &LaunchConfig) -> Vec<StoredChoice> {
    let mut choices = vec![StoredChoice::Automatic, StoredChoice::Whole, StoredChoice::Folded];
    choices.extend(ladder::chunk_sizes(configuration).into_iter().map(chunked));
    choices
}

/// Chunks of at most so many items; zero counts as one.
pub(crate) fn chunked(items: u64) -> StoredChoice {
    StoredChoice::Chunked { max_items: NonZeroU64::new(items).unwrap_or(NonZeroU64::MIN) }
}

fn plan(configuration: &LaunchConfig, choice: StoredChoice) -> Option<Plan> {
    let LaunchConfig { request, batch, limits, .. } = configuration;
    Plan::new(request, Some(batch), limits, Choice::from(choice)).ok()
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
        // The size that is measured, and no more where another batch would balance otherwise.
        (_, Strategy::Chunked) => chunked(whole_units(&configuration.batch, plan.largest_chunk())),
        _ => choice,
    };
    Some(Candidate {
        parameters: configuration.parameters.clone(),
        choice,
        strategy: plan.strategy(),
        launches: plan.len(),
        largest_chunk: plan.largest_chunk(),
        block_threads: u64::try_from(configuration.request.block.volume()).unwrap_or(u64::MAX),
    })
}

/// The last chunk of a plan may be cut short by the end of the batch; its size stands for whole units.
fn whole_units(batch: &BatchAxis, items: u64) -> u64 {
    let unit = batch.unit().unwrap_or(1).max(1);
    items.div_ceil(unit).saturating_mul(unit)
}

fn same_plan(one: &Candidate, other: &Candidate) -> bool {
    let plan = |of: &Candidate| (of.strategy, of.launches, of.largest_chunk);
    plan(one) == plan(other) && one.parameters == other.parameters
}

#[cfg(test)]
mod tests;
