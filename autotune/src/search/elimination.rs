//! The coarse and the fine stage eliminate candidates that are clearly slower than the fastest.

use crate::control::Stage;
use crate::search::state::{DEFAULT, Halt, Search};
use crate::stats::count;

/// Runs both stages over `places`. Returns the remaining places.
pub(crate) fn run(search: &mut Search<'_>, places: &[usize]) -> Result<Vec<usize>, Halt> {
    search.enter(Stage::Coarse, expected_samples(count(places.len())));
    // The default's first sample shows whether samples are slow.
    search.round(places)?;
    search.rounds_up_to(places, search.effort.coarse)?;
    let open = search.open(places);
    let left = keep_within(search, &open, Search::least, COARSE_FACTOR, Stage::Coarse);
    let more = search.effort.fine - search.effort.coarse;
    search.enter(Stage::Fine, count(left.len()) * more + FINALS);
    search.rounds_up_to(&left, search.effort.fine)?;
    let open = search.open(&left);
    Ok(keep_within(search, &open, Search::median, FINE_FACTOR, Stage::Fine))
}

/// Eliminates places slower than the fastest by more than `factor`, except the default.
pub(crate) fn keep_within<'a>(
    search: &mut Search<'a>,
    places: &[usize],
    time: fn(&Search<'a>, usize) -> f64,
    factor: f64,
    stage: Stage,
) -> Vec<usize> {
    let fastest = places.iter().map(|place| time(search, *place)).fold(f64::INFINITY, f64::min);
    let keeps = |place: &usize| *place == DEFAULT || time(search, *place) <= factor * fastest;
    let (left, out): (Vec<usize>, Vec<usize>) = places.iter().copied().partition(keeps);
    for place in out {
        search.eliminate(place, stage);
    }
    left
}

/// The estimated samples of a search over `candidates`: three of each, two more of half.
pub(crate) const fn expected_samples(candidates: u64) -> u64 {
    4 * candidates + FINALS
}

/// The coarse stage eliminates candidates that take 1.5 times as long as the fastest. It compares the lesser of
/// two samples, because disturbances only lengthen a sample.
pub(crate) const COARSE_FACTOR: f64 = 1.5;
/// The fine stage eliminates candidates that are 15 % slower, more than the error of a median of four samples.
pub(crate) const FINE_FACTOR: f64 = 1.15;
/// The estimated samples of the finals: five finalists, six rounds.
const FINALS: u64 = 30;
