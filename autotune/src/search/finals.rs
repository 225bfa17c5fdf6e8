//! Compares the best candidates and the default round by round, until the result is clear.

use gridguard::profile::StopReason;

use crate::candidate::Candidate;
use crate::control::Stage;
use crate::search::state::{DEFAULT, Halt, Search};
use crate::stats::count;

pub(crate) fn run(search: &mut Search<'_>, pool: &[usize]) -> Result<(), Halt> {
    let finalists = select(search, pool);
    for place in pool.iter().filter(|place| !finalists.contains(place)) {
        search.eliminate(*place, Stage::Finals);
    }
    search.enter(Stage::Finals, count(finalists.len()) * search.effort.finals);
    search.result.stopped = Some(StopReason::Timeout);
    search.result.finalists.clone_from(&finalists);
    let mut contenders = search.open(&finalists);
    for _ in 0..search.effort.finals {
        search.round(&contenders)?;
    }
    loop {
        let winner = decide(search, &finalists).winner;
        contenders = search.open(&finalists);
        contenders.retain(|place| *place == DEFAULT || !is_slower(search, *place, winner));
        let effort = search.effort;
        let reasons: Option<Vec<StopReason>> =
            contenders.iter().map(|place| effort.stop_reason(&search.times(*place))).collect();
        if let Some(reasons) = reasons.filter(|_| !is_worth_more(search, &contenders)) {
            search.result.stopped = reasons.into_iter().max();
            return Ok(());
        }
        if is_beyond(search, &contenders, MOST_SAMPLES) {
            search.result.stopped = Some(StopReason::Ceiling);
            return Ok(());
        }
        search.enter(Stage::Finals, count(contenders.len()));
        search.round(&contenders)?;
    }
}

/// The winner among finalists, and what ties with the fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) winner: usize,
    /// The fastest place, and the places that are not clearly slower.
    pub(crate) ties: Vec<usize>,
}

/// Decides between `finalists` by their samples.
///
/// A finalist that is not clearly slower than the fastest ties with it. If the default ties, it wins. Otherwise
/// the first in the order of ties wins, among those clearly faster than the default.
pub(crate) fn decide(search: &Search<'_>, finalists: &[usize]) -> Decision {
    let against_default = |place: usize| match place {
        DEFAULT => 1.0,
        _ => search.ratios(place, DEFAULT).map_or(f64::INFINITY, |ratios| ratios.median()),
    };
    let mut ties = search.open(finalists);
    let faster =
        |one: &usize, other: &usize| against_default(*one).total_cmp(&against_default(*other));
    let best = ties.iter().copied().min_by(faster).unwrap_or(DEFAULT);
    ties.retain(|place| *place == best || !is_slower(search, *place, best));
    if best == DEFAULT || ties.contains(&DEFAULT) {
        return Decision { winner: DEFAULT, ties };
    }
    let mut better = ties.clone();
    better.retain(|place| is_slower(search, DEFAULT, *place));
    sort_by_tie_order(search, &mut better);
    Decision { winner: better.first().copied().unwrap_or(best), ties }
}

/// Whether `place` is slower than `base` with confidence, and by more than a tie.
fn is_slower(search: &Search<'_>, place: usize, base: usize) -> bool {
    search.ratios(place, base).is_some_and(|ratios| {
        let is_sure = ratios.count() >= MIN_PAIRS && ratios.median_interval()[0] > 1.0;
        is_sure && ratios.median() > TIE_FACTOR
    })
}

/// The default, the two fastest, and the first in the order of ties among those close to the fastest.
///
/// On a plateau the fastest is random. The order of ties makes the winner the same in every run.
fn select(search: &Search<'_>, pool: &[usize]) -> Vec<usize> {
    let mut by_time = search.open(pool);
    by_time.sort_by(|one, other| search.median(*one).total_cmp(&search.median(*other)));
    let close = by_time.first().map_or(0.0, |best| CLOSE_FACTOR * search.median(*best));
    let mut simplest = by_time.clone();
    simplest.retain(|place| search.median(*place) <= close);
    sort_by_tie_order(search, &mut simplest);
    let fastest = by_time.iter().take(1).chain(simplest.iter().take(SIMPLEST));
    let mut finalists = vec![DEFAULT];
    for place in fastest.chain(by_time.iter().take(FASTEST)) {
        if !finalists.contains(place) {
            finalists.push(*place);
        }
    }
    finalists
}

fn sort_by_tie_order(search: &Search<'_>, places: &mut [usize]) {
    let candidate = |place: usize| &search.series[place].candidate;
    places.sort_by(|one, other| Candidate::tie_order(candidate(*one), candidate(*other)));
}

/// Whether another round would exceed this average of samples per candidate.
fn is_beyond(search: &Search<'_>, contenders: &[usize], samples_each: u64) -> bool {
    let candidates = count(search.series.len()).max(SMALL_SPACE);
    search.evaluations + count(contenders.len()) > samples_each * candidates
}

/// Whether another round may change the winner of a search that was cheap so far.
fn is_worth_more(search: &Search<'_>, contenders: &[usize]) -> bool {
    let is_full = count(search.times(DEFAULT).len()) >= search.effort.max_samples;
    if is_full || is_beyond(search, contenders, search.effort.affordable) {
        return false;
    }
    let is_unclear = |one: &usize, other: &usize| {
        search.ratios(*one, *other).is_some_and(|ratios| {
            let [low, high] = ratios.median_interval();
            low < TIE_FACTOR && TIE_FACTOR < high
        })
    };
    contenders.iter().any(|one| contenders.iter().any(|other| is_unclear(one, other)))
}

/// The finals always end at this average of samples per candidate.
const MOST_SAMPLES: u64 = 10;
/// A difference of 2 % or less is a tie.
const TIE_FACTOR: f64 = 1.02;
/// Fewer pairs decide nothing, because one may be an outlier.
const MIN_PAIRS: u64 = 3;
/// A possible tie with the fastest, because medians of four samples are off by 1 %.
const CLOSE_FACTOR: f64 = 1.03;
const SIMPLEST: usize = 2;
const FASTEST: usize = 2;
/// Smaller spaces get the budget of this many candidates: the finals of five take 30 samples.
const SMALL_SPACE: u64 = 6;
