//! Coordinate descent, for spaces too large to measure completely.

use std::collections::{BTreeMap, BTreeSet};

use gridguard::profile::Named;

use crate::candidate::Candidate;
use crate::control::Stage;
use crate::search::elimination::{self, COARSE_FACTOR, FINE_FACTOR, keep_within};
use crate::search::state::{DEFAULT, Halt, Search};
use crate::space::Space;
use crate::stats::{count, real};

/// Measures the starting points of a model, then moves from the best to its neighbours until none is better.
/// Returns the candidates close to the fastest.
pub(crate) fn run(search: &mut Search<'_>, space: &Space) -> Result<Vec<usize>, Halt> {
    let distances = Distances::new(space);
    let starts = starting_points(space, &distances, search.median(DEFAULT));
    let mut pool = elimination::run(search, &starts)?;
    for _ in 0..MAX_STEPS {
        let Some(incumbent) = search.fastest(&search.open(&pool)) else { break };
        let mut new = neighbours(space, &distances, incumbent);
        new.retain(|place| search.is_new(*place));
        if new.is_empty() {
            break;
        }
        let left = step(search, incumbent, &new)?;
        let is_better = |place: &usize| {
            search.ratios(*place, incumbent).is_some_and(|ratios| ratios.median() < WORTH_A_STEP)
        };
        let improved = left.iter().any(is_better);
        pool.extend(left);
        if !improved {
            break;
        }
    }
    let open = search.open(&pool);
    Ok(keep_within(search, &open, FINE_FACTOR, Stage::Descent))
}

/// Measures `new` interleaved with the incumbent. Returns the candidates close to it.
fn step(search: &mut Search<'_>, incumbent: usize, new: &[usize]) -> Result<Vec<usize>, Halt> {
    search.enter(Stage::Descent, (count(new.len()) + 1) * (search.effort.fine + 1));
    let mut places = new.to_vec();
    places.push(incumbent);
    search.rounds_up_to(&places, search.effort.coarse)?;
    let most = COARSE_FACTOR * search.least(incumbent);
    for place in new {
        if search.least(*place) > most {
            search.eliminate(*place, Stage::Descent);
        }
    }
    places = search.open(&places);
    search.rounds_up_to(&places, search.effort.fine)?;
    places.retain(|place| *place != incumbent);
    Ok(places)
}

/// The adjacent chunk sizes, and the most similar chunk size of each of the nearest sets of parameters.
fn neighbours(space: &Space, distances: &Distances, incumbent: usize) -> Vec<usize> {
    let all = space.candidates();
    let from = &all[incumbent];
    let mut sets = BTreeMap::<&Named, Vec<usize>>::new();
    for (place, candidate) in all.iter().enumerate() {
        sets.entry(&candidate.parameters).or_default().push(place);
    }
    let mut same = sets.remove(&from.parameters).unwrap_or_default();
    same.sort_by_key(|place| all[*place].largest_chunk);
    let at = same.iter().position(|place| *place == incumbent).unwrap_or(0);
    let adjacent = [at.checked_sub(1), at.checked_add(1)].into_iter().flatten();
    let mut found: Vec<usize> = adjacent.filter_map(|at| same.get(at).copied()).collect();

    let distance = |set: &Named| distances.between(set, &from.parameters);
    let nearest = sets.keys().map(|set| distance(set)).min().unwrap_or(0).max(1);
    let gap = |place: &usize| all[*place].largest_chunk.abs_diff(from.largest_chunk);
    let near = sets.into_iter().filter(|(set, _)| distance(set) == nearest);
    found.extend(near.filter_map(|(_, places)| places.into_iter().min_by_key(gap)));
    found
}

/// The starting points, the default first: half by a model, half spread evenly over the space, because the
/// model ignores caches.
///
/// In the model, time grows with the waves of blocks, because a partial wave takes as long as a full one. Each
/// launch costs [`LAUNCH_NS`]. Parameters near the default's are preferred.
fn starting_points(space: &Space, distances: &Distances, default_ns: f64) -> Vec<usize> {
    let all = space.candidates();
    let cost = |place: usize| (place, cost_ns(space, distances, &all[place], default_ns));
    let mut ranked: Vec<(usize, f64)> = (0..all.len()).map(cost).collect();
    ranked.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let by_model = ranked.into_iter().map(|(place, _)| place).take(STARTS / 2);
    let spread = (0..STARTS).map(|turn| turn * all.len() / STARTS);
    let mut starts = vec![DEFAULT];
    for place in by_model.chain(spread) {
        if !starts.contains(&place) && starts.len() < STARTS {
            starts.push(place);
        }
    }
    starts
}

fn cost_ns(space: &Space, distances: &Distances, candidate: &Candidate, default_ns: f64) -> f64 {
    let default = &space.candidates()[DEFAULT];
    let padding = space.wave_padding(candidate).zip(space.wave_padding(default));
    let Some((padding, default_padding)) = padding else { return f64::INFINITY };
    let steps = distances.between(&candidate.parameters, &default.parameters);
    let launches = real(candidate.launches) - real(default.launches);
    let predicted = default_ns * padding / default_padding.max(f64::MIN_POSITIVE);
    (predicted + launches * LAUNCH_NS) * (1.0 + STEP_PENALTY * real(steps))
}

/// The sorted values of each parameter.
struct Distances(BTreeMap<String, Vec<u64>>);

impl Distances {
    fn new(space: &Space) -> Self {
        let mut values = BTreeMap::<String, BTreeSet<u64>>::new();
        for (name, value) in space.candidates().iter().flat_map(|one| &one.parameters) {
            values.entry(name.clone()).or_default().insert(*value);
        }
        Self(values.into_iter().map(|(name, set)| (name, set.into_iter().collect())).collect())
    }

    /// Steps between two sets of parameters.
    fn between(&self, one: &Named, other: &Named) -> u64 {
        let rank = |(name, value): &(String, u64)| {
            self.0.get(name).map_or(0, |values| values.partition_point(|other| other < value))
        };
        count(one.iter().zip(other).map(|(one, other)| rank(one).abs_diff(rank(other))).sum())
    }
}

/// Starting points: as many as an ordinary space has candidates.
const STARTS: usize = 40;
/// The most steps. A kernel has two or three parameters of four or five values, so ten steps reach all.
const MAX_STEPS: u32 = 10;
/// Another step follows a gain of at least 1 %.
const WORTH_A_STEP: f64 = 0.99;
/// The cost of one more launch in nanoseconds: 2.9 us from the host
/// (`bench-data/results/nvidia-h200/launch.json`).
const LAUNCH_NS: f64 = 2900.0;
/// The predicted slowdown per step away from the default's parameters.
const STEP_PENALTY: f64 = 0.02;
