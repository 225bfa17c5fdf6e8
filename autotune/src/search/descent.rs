//! Coordinate descent in a space too large to measure all of it.

use crate::candidate::Candidate;
use crate::number::count;
use crate::observer::Stage;
use crate::search::model::{Distances, start};
use crate::search::run::{DEFAULT, Halt, Search};
use crate::search::{COARSE_FACTOR, FINE_FACTOR, keep_within, staged};
use crate::space::Space;

/// Measures a start that the model proposes, then walks from the best to its neighbours until none
/// is better. Everything measured that is not far behind is left for the finals.
pub(crate) fn search(run: &mut Search<'_>, space: &Space) -> Result<Vec<usize>, Halt> {
    run.round(&[DEFAULT])?;
    let mut pool = staged(run, &start(space, run.median(DEFAULT), STARTS))?;
    let distances = Distances::new(space);
    for _ in 0..MOST_STEPS {
        let Some(incumbent) = run.fastest(&run.open(&pool)) else { break };
        let new: Vec<usize> = neighbours(space, &distances, incumbent)
            .into_iter()
            .filter(|place| run.is_new(*place))
            .collect();
        if new.is_empty() {
            break;
        }
        let left = step(run, incumbent, &new)?;
        let better = left.iter().any(|place| gains(run, *place, incumbent));
        pool.extend(left);
        if !better {
            break;
        }
    }
    Ok(keep_within(run, &run.open(&pool), Search::median, FINE_FACTOR, Stage::Descent))
}

/// Measures `new` beside the incumbent; those that are not far behind it.
fn step(run: &mut Search<'_>, incumbent: usize, new: &[usize]) -> Result<Vec<usize>, Halt> {
    run.enter(Stage::Descent, (count(new.len()) + 1) * (run.effort.fine + 1));
    let mut places = new.to_vec();
    places.push(incumbent);
    run.rounds_up_to(&places, run.effort.coarse)?;
    let least = COARSE_FACTOR * run.least(incumbent);
    for place in new.iter().copied().filter(|place| run.least(*place) > least).collect::<Vec<_>>() {
        run.eliminate(place, Stage::Descent);
    }
    places = run.open(&places);
    run.rounds_up_to(&places, run.effort.fine)?;
    places.retain(|place| *place != incumbent);
    Ok(places)
}

fn gains(run: &Search<'_>, place: usize, incumbent: usize) -> bool {
    run.ratio(place, incumbent).is_some_and(|ratio| ratio.median < WORTH_A_STEP)
}

/// The candidates one step away: the chunk sizes beside it, and a like chunk size with the sets of
/// parameters that are nearest.
fn neighbours(space: &Space, distances: &Distances, incumbent: usize) -> Vec<usize> {
    let all = space.candidates();
    let Some(from) = all.get(incumbent) else { return Vec::new() };
    let mut same: Vec<usize> = places(all, |one| one.parameters == from.parameters);
    same.sort_by_key(|place| all.get(*place).map(|one| one.largest_chunk));
    let at = same.iter().position(|place| *place == incumbent).unwrap_or(0);
    let beside = [at.checked_sub(1), at.checked_add(1)].into_iter().flatten();
    let mut found: Vec<usize> = beside.filter_map(|at| same.get(at).copied()).collect();

    let away = |one: &Candidate| distances.between(&one.parameters, &from.parameters);
    let others = || all.iter().filter(|one| one.parameters != from.parameters);
    let nearest = others().map(away).min().unwrap_or(0).max(1);
    let mut sets: Vec<_> =
        others().filter(|one| away(one) == nearest).map(|one| &one.parameters).collect();
    sets.sort();
    sets.dedup();
    for set in sets {
        let like = places(all, |one| one.parameters == *set).into_iter().min_by_key(|place| {
            all.get(*place).map(|one| one.largest_chunk.abs_diff(from.largest_chunk))
        });
        found.extend(like);
    }
    found
}

fn places(all: &[Candidate], wanted: impl Fn(&Candidate) -> bool) -> Vec<usize> {
    all.iter().enumerate().filter(|(_, one)| wanted(one)).map(|(place, _)| place).collect()
}

/// Candidates to begin with: as many as a space of ordinary size has.
const STARTS: usize = 40;
/// A kernel has two or three parameters of four or five values, so ten steps reach any of them.
const MOST_STEPS: u32 = 10;
/// A step must gain 1 % at least to be followed by another.
const WORTH_A_STEP: f64 = 0.99;
