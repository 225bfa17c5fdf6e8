//! Compares the best candidates and the default round by round, until the result is clear.
//!
//! Two searches of the same problem must end with the same choice. A choice by the order of measured times would not:
//! on a plateau the fastest is random. So each comparison asks whether one candidate is more than 2 % faster than
//! another, with the confidence of [`SamplingEffort`](crate::sampling::SamplingEffort). Measuring goes on while the
//! answer is open and could change the choice.

use core::cmp::Ordering;

use gridguard::profile::StopReason;

use crate::candidate::Candidate;
use crate::control::Stage;
use crate::search::state::{DEFAULT, Halt, Search};
use crate::stats::{count, side_of};

pub(crate) fn run(search: &mut Search<'_>, pool: &[usize]) -> Result<(), Halt> {
    search.enter(Stage::Finals, count(pool.len()) * search.effort.finals);
    search.result.stopped = Some(StopReason::Timeout);
    search.result.finalists = pool.to_vec();
    if !pool.contains(&DEFAULT) {
        search.result.finalists.push(DEFAULT);
    }
    let mut contenders = search.open(&search.result.finalists);
    for _ in 0..search.effort.finals {
        search.round(&contenders)?;
    }
    loop {
        contenders = left_of(search, &search.open(&contenders));
        let before = contenders.clone();
        let mut places = unclear(search, &mut contenders);
        let dropped = before.into_iter().filter(|place| !contenders.contains(place));
        search.result.undecided.extend(dropped);
        search.result.finalists.clone_from(&contenders);
        if places.is_empty() || is_spent(search) {
            search.result.undecided.append(&mut places);
            places = vec![DEFAULT, decide(search, &contenders).winner];
            places.dedup();
            if let Some(reason) = stop_reason(search, &places) {
                search.result.stopped = Some(reason);
                return Ok(());
            }
        }
        search.enter(Stage::Finals, count(places.len()));
        search.round(&places)?;
    }
}

/// The winner, and the fastest place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) winner: usize,
    pub(crate) fastest: usize,
}

/// Decides between `places` by their samples.
///
/// The default wins, unless other places are clearly faster by more than [`TIE_FACTOR`]. Of these, each place that is
/// clearly within [`TIE_FACTOR`] of the fastest is a tie, and the first in the order of ties wins.
pub(crate) fn decide(search: &Search<'_>, places: &[usize]) -> Decision {
    let against_default = |place: usize| match place {
        DEFAULT => 1.0,
        _ => search.ratios(place, DEFAULT).map_or(f64::INFINITY, |ratios| ratios.median()),
    };
    let open = search.open(places);
    let faster =
        |one: &&usize, other: &&usize| against_default(**one).total_cmp(&against_default(**other));
    let fastest = open.iter().min_by(faster).copied().unwrap_or(DEFAULT);
    let mut better = open.clone();
    better.retain(|place| beats_default(search, *place));
    let Some(best) = better.iter().min_by(faster).copied() else {
        return Decision { winner: DEFAULT, fastest };
    };
    better.retain(|place| *place == best || compare(search, *place, best) == Some(Ordering::Less));
    sort_by_tie_order(search, &mut better);
    Decision { winner: better.first().copied().unwrap_or(best), fastest }
}

/// Whether the median of `place` is at most [`TIE_FACTOR`] times the median of `base`.
pub(crate) fn is_tie(search: &Search<'_>, place: usize, base: usize) -> bool {
    let ratios = search.ratios(place, base);
    place == base || ratios.is_some_and(|ratios| ratios.median() <= TIE_FACTOR)
}

/// Whether `place` takes more or less than [`TIE_FACTOR`] times as long as `base`; `None` if that is open.
fn compare(search: &Search<'_>, place: usize, base: usize) -> Option<Ordering> {
    side_of(&search.pairs(place, base), TIE_FACTOR, search.effort.deviations)
}

fn beats_default(search: &Search<'_>, place: usize) -> bool {
    place != DEFAULT && compare(search, DEFAULT, place) == Some(Ordering::Greater)
}

/// The default, and the places that may still win: not clearly slower than the fastest, nor clearly a tie with the
/// default.
fn left_of(search: &Search<'_>, places: &[usize]) -> Vec<usize> {
    let fastest = decide(search, places).fastest;
    let mut left = places.to_vec();
    left.retain(|place| {
        let loses = || compare(search, *place, fastest) == Some(Ordering::Greater);
        let ties = || compare(search, DEFAULT, *place) == Some(Ordering::Less);
        *place == DEFAULT || !(loses() || ties())
    });
    left
}

/// The places whose samples could change the decision. There are none if only the default is left, or if the first of
/// `places` in the order of ties is clearly faster than the default by more than a tie, and no other place is faster
/// than it by more than a tie.
///
/// Removes places that are still not clear after [`SamplingEffort::max_compared`](crate::sampling::SamplingEffort): the
/// next in order is as likely to be the choice of another search.
fn unclear(search: &Search<'_>, places: &mut Vec<usize>) -> Vec<usize> {
    let mut others = places.clone();
    others.retain(|place| *place != DEFAULT);
    sort_by_tie_order(search, &mut others);
    while !others.is_empty() {
        let first = others.remove(0);
        let mut open = others.clone();
        open.retain(|other| compare(search, first, *other) != Some(Ordering::Less));
        if open.is_empty() && beats_default(search, first) {
            break;
        }
        if count(search.times(first).len()) < search.effort.max_compared {
            open.extend((!beats_default(search, first)).then_some(DEFAULT));
            open.push(first);
            return open;
        }
        places.retain(|place| *place != first);
    }
    Vec::new()
}

fn sort_by_tie_order(search: &Search<'_>, places: &mut [usize]) {
    let candidate = |place: usize| &search.series[place].candidate;
    places.sort_by(|one, other| Candidate::tie_order(candidate(*one), candidate(*other)));
}

/// Why the samples of all these places are enough; `None` if they are not.
fn stop_reason(search: &Search<'_>, places: &[usize]) -> Option<StopReason> {
    let reason = |place: &usize| search.effort.stop_reason(&search.times(*place));
    places.iter().map(reason).try_fold(StopReason::Precise, |most, one| Some(most.max(one?)))
}

/// Whether an open comparison is worth no more samples.
fn is_spent(search: &Search<'_>) -> bool {
    let candidates = count(search.series.len()).max(SMALL_SPACE);
    search.evaluations - search.discarded >= MOST_SAMPLES * candidates
        && search.sampled_ns >= LONG_NS
}

/// A difference of 2 % or less is a tie.
pub(crate) const TIE_FACTOR: f64 = 1.02;
/// The finals of a long search end at this average of samples per candidate.
const MOST_SAMPLES: u64 = 20;
/// Some thousand samples, or fewer of slow candidates.
const LONG_NS: f64 = 3e9;
/// Smaller spaces get the samples of this many candidates.
const SMALL_SPACE: u64 = 6;
