//! All legal ways to run a launch, found through the guard's planner.

mod ladder;

use core::num::NonZeroU64;

use gridguard::profile::{Named, Objective, StoredChoice};
use gridguard::{BatchAxis, Choice, Plan, Strategy};

use crate::candidate::{Candidate, Configuration};
use crate::deal::Part;

/// All candidates of a problem, the default first.
///
/// The default is what the planner does by itself with the first configuration that it accepts.
#[derive(Clone, Debug)]
pub struct Space {
    configurations: Vec<Configuration>,
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
    pub fn new(configurations: Vec<Configuration>) -> Self {
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
    pub fn configuration(&self, parameters: &Named) -> Option<&Configuration> {
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

fn choices(configuration: &Configuration) -> Vec<StoredChoice> {
    let mut choices = vec![StoredChoice::Automatic, StoredChoice::Whole, StoredChoice::Folded];
    choices.extend(ladder::chunk_sizes(configuration).into_iter().map(chunked));
    choices
}

/// Chunks of at most so many items; zero counts as one.
pub(crate) fn chunked(items: u64) -> StoredChoice {
    StoredChoice::Chunked { max_items: NonZeroU64::new(items).unwrap_or(NonZeroU64::MIN) }
}

fn plan(configuration: &Configuration, choice: StoredChoice) -> Option<Plan> {
    let Configuration { request, batch, limits, .. } = configuration;
    Plan::new(request, Some(batch), limits, Choice::from(choice)).ok()
}

fn candidate(
    configuration: &Configuration,
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
mod tests {
    use super::*;
    use gridguard::{Axis, Dim3, KernelLimits, LaunchLimits, LaunchRequest, Strategy, catalog};
    use proptest::prelude::{Just, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
    use proptest::strategy::Strategy as _;

    fn configuration(threads: u64, batch: BatchAxis) -> Configuration {
        let device = catalog::gpu("h200").expect("in the catalogue").limits.clone();
        let blocks = batch.blocks(batch.items()).expect("fits");
        Configuration {
            parameters: vec![("block".to_owned(), threads)],
            request: LaunchRequest::new(
                Dim3::ONE.with(batch.axis(), blocks),
                Dim3::new(threads, 1, 1),
            ),
            batch,
            limits: LaunchLimits::new(device, KernelLimits::unknown("k")),
        }
    }

    fn on_y(items: u64) -> BatchAxis {
        BatchAxis::new(Axis::Y, items)
    }

    #[test]
    fn the_ladder_doubles_from_one_wave_to_the_default() {
        let space = Space::new(vec![configuration(128, on_y(15_360).blocks_per_item(5))]);
        let chunks: Vec<_> =
            space.candidates().iter().map(|one| (one.launches, one.largest_chunk)).collect();
        // A wave is 132 x 16 blocks, 423 items.
        assert_eq!(chunks, [(2, 7680), (37, 416), (19, 809), (10, 1536), (5, 3072), (3, 5120)]);
        assert_eq!(space.default().map(|one| one.choice), Some(StoredChoice::Automatic));
        assert_eq!(space.largest_legal_chunk(), Some(13_107));
    }

    #[test]
    fn a_space_that_was_tuned_within_a_workspace_is_whole_again_for_another_objective() {
        let whole = Space::new(vec![configuration(128, on_y(15_360).blocks_per_item(5))]);
        let mut space = whole.clone();
        for bytes in [64_000, 32_000] {
            space.restrict(Objective::Memory { bytes_per_item: 64, bytes });
            let largest = space.candidates().iter().map(|one| one.largest_chunk).max();
            assert!(largest.is_some_and(|largest| largest <= bytes / 64), "{largest:?}");
        }
        space.restrict(Objective::Latency { max_launch_us: 100 });
        assert_eq!(space.candidates(), whole.candidates());
    }

    #[test]
    fn parts_share_the_candidates_and_each_has_the_default() {
        let space = Space::new(vec![configuration(128, on_y(15_360).blocks_per_item(5))]);
        let mut seen = Vec::new();
        for index in 0..3 {
            let mut part = space.clone();
            part.keep_part(Part { index, count: 3 });
            assert_eq!(part.default(), space.default());
            seen.extend(part.candidates().iter().skip(1).cloned());
        }
        seen.sort();
        let mut all: Vec<_> = space.candidates().iter().skip(1).cloned().collect();
        all.sort();
        assert_eq!(seen, all);
        let mut other = space.clone();
        let third = &space.candidates()[2];
        other.make_default(third);
        assert_eq!(
            (other.default(), other.candidates().len()),
            (Some(third), space.candidates().len())
        );
        let mut some = space.clone();
        some.keep(&all[..1]);
        assert_eq!(some.candidates(), [space.candidates()[0].clone(), all[0].clone()]);
    }

    #[test]
    fn a_fold_is_a_candidate_beside_chunks() {
        let space = Space::new(vec![configuration(128, on_y(76_800).foldable())]);
        let first: Vec<_> =
            space.candidates().iter().take(2).map(|one| (one.strategy, one.launches)).collect();
        assert_eq!(first, [(Strategy::Folded, 1), (Strategy::Chunked, 37)]);
    }

    #[test]
    fn an_empty_batch_has_just_the_default() {
        let space = Space::new(vec![configuration(128, on_y(0)), configuration(256, on_y(0))]);
        assert_eq!(space.candidates().len(), 1);
        assert_eq!(space.default().map(|one| one.launches), Some(0));
    }

    #[test]
    fn the_default_is_of_the_first_configuration_that_is_legal() {
        let both = vec![configuration(2048, on_y(100)), configuration(256, on_y(100))];
        let space = Space::new(both);
        assert_eq!(space.default().map(|one| one.block_threads), Some(256));
        assert!(space.candidates().iter().all(|one| one.block_threads == 256));
        assert!(Space::new(vec![configuration(2048, on_y(100))]).candidates().is_empty());
    }

    #[test]
    fn a_workspace_bounds_every_candidate_and_is_spelt_out() {
        let mut space = Space::new(vec![configuration(128, on_y(60_000))]);
        assert_eq!(space.default().map(|one| one.launches), Some(1));
        space.restrict(Objective::Memory { bytes_per_item: 64, bytes: 1 << 20 });
        assert!(space.candidates().iter().all(|one| one.largest_chunk <= 16_384));
        let choice = StoredChoice::Chunked { max_items: 15_000.try_into().expect("positive") };
        assert_eq!(space.default().map(|one| one.choice), Some(choice));
        assert_eq!(space.largest_legal_chunk(), Some(16_384));
    }

    #[test]
    fn a_proposal_that_makes_a_known_plan_is_that_candidate() {
        let mut space = Space::new(vec![configuration(128, on_y(100_000))]);
        let before = space.candidates().len();
        let parameters = vec![("block".to_owned(), 128)];
        let known = space.add(&parameters, chunked(60_000)).expect("legal");
        assert_eq!((known.choice, space.candidates().len()), (StoredChoice::Automatic, before));
        let new = space.add(&parameters, chunked(30_000)).expect("legal");
        assert_eq!((new.launches, space.candidates().len()), (4, before + 1));
        assert_eq!(space.add(&vec![("block".to_owned(), 7)], chunked(1)), None);
    }

    fn batches() -> impl proptest::strategy::Strategy<Value = BatchAxis> {
        let items = prop_oneof![0..300_u64, 0..3_000_000_u64, Just(u64::MAX / 8)];
        (items, 1..7_u64, 1..5_u64, 1..70_u64, any::<bool>(), any::<bool>()).prop_map(
            |(items, blocks, shared, align, fold, x)| {
                let axis = if x { Axis::X } else { Axis::Y };
                let batch = BatchAxis::new(axis, items).blocks_per_items(blocks, shared);
                let batch = batch.align(align);
                if fold { batch.foldable() } else { batch }
            },
        )
    }

    proptest! {
        #[test]
        fn every_candidate_is_legal_and_stands_once(
            batch in batches(),
            threads in prop::collection::vec(prop_oneof![1..1025_u64, Just(2048)], 1..4),
        ) {
            let configurations: Vec<_> =
                threads.iter().map(|threads| configuration(*threads, batch)).collect();
            let space = Space::new(configurations);
            let all = space.candidates();
            for (place, one) in all.iter().enumerate() {
                let plan = space.plan(one).expect("legal");
                prop_assert_eq!(plan.len(), one.launches);
                prop_assert_eq!(plan.largest_chunk(), one.largest_chunk);
                prop_assert!(!all.iter().take(place).any(|before| same_plan(before, one)));
            }
            let automatic = all.first().map(|one| one.choice);
            prop_assert!(automatic.is_none_or(|choice| choice == StoredChoice::Automatic));
            prop_assert!(all.len() <= threads.len() * (ladder::MOST_POINTS + 4));
            if batch.items() == 0 {
                prop_assert!(all.len() <= 1);
            }
        }
    }
}
