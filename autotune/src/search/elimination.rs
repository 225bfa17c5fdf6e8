//! The coarse and the fine stage eliminate candidates that are clearly slower than the fastest.

use crate::control::Stage;
use crate::search::state::{DEFAULT, Halt, Search};
use crate::stats::count;

/// Runs both stages over `places`. Returns the remaining places.
pub(crate) fn run(search: &mut Search<'_>, places: &[usize]) -> Result<Vec<usize>, Halt> {
    search.enter(Stage::Coarse, expected_samples(count(places.len())));
    search.rounds_up_to(places, search.effort.coarse)?;
    let open = search.open(places);
    let at_limit = search.at_limit(&open);
    if !at_limit.is_empty() {
        return Ok(at_limit);
    }
    let left = keep_within(search, &open, COARSE_FACTOR, Stage::Coarse);
    let more = search.effort.fine - search.effort.coarse;
    search.enter(Stage::Fine, count(left.len()) * more + FINALS);
    search.rounds_up_to(&left, search.effort.fine)?;
    let open = search.open(&left);
    Ok(keep_within(search, &open, FINALS_FACTOR, Stage::Fine))
}

/// Eliminates places, except the default, whose every sample is longer than the fastest median by more than `factor`.
/// A place that ties with the fastest stays, even if all of its samples but one were disturbed.
pub(crate) fn keep_within(
    search: &mut Search<'_>,
    places: &[usize],
    factor: f64,
    stage: Stage,
) -> Vec<usize> {
    let medians = places.iter().map(|place| search.median(*place));
    let most = factor * medians.fold(f64::INFINITY, f64::min);
    let keeps = |place: &usize| *place == DEFAULT || search.least(*place) <= most;
    let (left, out): (Vec<usize>, Vec<usize>) = places.iter().copied().partition(keeps);
    for place in out {
        search.eliminate(place, stage);
    }
    left
}

/// How many times the fastest median each sample of a candidate exceeds that `stage` eliminates.
pub(crate) const fn eliminating_factor(stage: Stage) -> f64 {
    match stage {
        Stage::Fine => FINALS_FACTOR,
        Stage::Coarse => COARSE_FACTOR,
        _ => FINE_FACTOR,
    }
}

/// The estimated samples of a search over `candidates`: three of each, eight more of half.
pub(crate) const fn expected_samples(candidates: u64) -> u64 {
    7 * candidates + FINALS
}

/// The coarse stage eliminates candidates that take 1.5 times as long as the fastest.
pub(crate) const COARSE_FACTOR: f64 = 1.5;
/// A candidate that is 15 % slower will not be the fastest: that is more than the error of a median of four samples.
pub(crate) const FINE_FACTOR: f64 = 1.15;
/// The fine stage eliminates candidates whose four samples are 6 % slower: a tie is at most 2 %.
const FINALS_FACTOR: f64 = 1.06;
/// The estimated samples of the end of the finals: ten rounds of three contenders.
const FINALS: u64 = 30;
