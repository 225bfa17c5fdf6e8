//! Where to begin in a space too large to measure all of it.

use std::collections::BTreeMap;

use gridguard::profile::Named;

use crate::number::{count, position, real};
use crate::space::Space;

/// Places of `count` candidates to begin with, the default first: half by the model, half spread
/// evenly over the space, because the model knows nothing of caches.
///
/// The model: time grows with the waves of blocks that are begun, since one that is not full takes
/// as long as one that is, and with the launches, each of which costs [`LAUNCH_NS`]. Parameters are
/// foreign to it, so those near the default come first.
pub(crate) fn start(space: &Space, default_ns: f64, wanted: usize) -> Vec<usize> {
    let all = space.candidates();
    let distances = Distances::new(space);
    let cost = |place| (place, cost_ns(space, &distances, place, default_ns));
    let mut ranked: Vec<(usize, f64)> = (0..all.len()).map(cost).collect();
    ranked.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    let by_model = ranked.into_iter().map(|(place, _)| place).take(wanted / 2);
    let spread = (0..count(wanted)).map(|turn| {
        position(turn.saturating_mul(count(all.len())).checked_div(count(wanted)).unwrap_or(0))
    });
    let mut start = vec![crate::search::run::DEFAULT];
    for place in by_model.chain(spread) {
        if !start.contains(&place) && start.len() < wanted {
            start.push(place);
        }
    }
    start
}

/// How many steps lie between two sets of parameters: over the values that each name takes.
pub(crate) struct Distances {
    values: BTreeMap<String, Vec<u64>>,
}

impl Distances {
    pub(crate) fn new(space: &Space) -> Self {
        let mut values: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (name, value) in space.candidates().iter().flat_map(|one| &one.parameters) {
            values.entry(name.clone()).or_default().push(*value);
        }
        for values in values.values_mut() {
            values.sort_unstable();
            values.dedup();
        }
        Self { values }
    }

    pub(crate) fn between(&self, one: &Named, other: &Named) -> u64 {
        let rank = |name: &str, value: u64| {
            let values = self.values.get(name).map(Vec::as_slice).unwrap_or_default();
            count(values.iter().position(|known| *known == value).unwrap_or(values.len()))
        };
        let steps = one.iter().zip(other).map(|((name, one), (other_name, other))| {
            rank(name, *one).abs_diff(rank(other_name, *other))
        });
        steps.sum()
    }
}

fn cost_ns(space: &Space, distances: &Distances, place: usize, default_ns: f64) -> f64 {
    let (Some(candidate), Some(default)) = (space.candidates().get(place), space.default()) else {
        return f64::INFINITY;
    };
    let waste = |of| {
        let waves = space.waves(of)?;
        Some(real(waves.begun_blocks) / real(waves.exact_blocks.max(1)))
    };
    let (Some(wasted), Some(usual)) = (waste(candidate), waste(default)) else {
        return f64::INFINITY;
    };
    let steps = distances.between(&candidate.parameters, &default.parameters);
    let launches = real(candidate.launches) - real(default.launches);
    let predicted = default_ns * wasted / usual.max(f64::MIN_POSITIVE) + launches * LAUNCH_NS;
    predicted * (1.0 + PENALTY_OF_A_STEP * real(steps))
}

/// What a launch more costs in nanoseconds: 2.9 us from the host
/// (`bench-data/results/nvidia-h200/launch.json`).
const LAUNCH_NS: f64 = 2900.0;
/// A step away from the default's parameters counts as so much slower.
const PENALTY_OF_A_STEP: f64 = 0.02;
