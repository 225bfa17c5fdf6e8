//! The last comparison: the best few beside the default, round by round, until it is clear.

use gridguard::profile::StopReason;

use crate::candidate::Candidate;
use crate::number::count;
use crate::observer::Stage;
use crate::search::Findings;
use crate::search::run::{DEFAULT, Halt, Search};

/// Measures the finalists of `pool` to the end.
pub(crate) fn play(
    run: &mut Search<'_>,
    pool: &[usize],
    findings: &mut Findings,
) -> Result<(), Halt> {
    let finalists = select(run, pool);
    for place in pool.iter().filter(|place| !finalists.contains(place)) {
        run.eliminate(*place, Stage::Finals);
    }
    run.enter(Stage::Finals, count(finalists.len()) * run.effort.finals);
    findings.stopped = Some(StopReason::Timeout);
    findings.finalists.clone_from(&finalists);
    let mut playing = run.open(&finalists);
    for _ in 0..run.effort.finals {
        run.round(&playing)?;
    }
    loop {
        let winner = decide(run, &finalists).winner;
        playing = contenders(run, &finalists, winner);
        let rule = run.effort.rule;
        let reasons: Vec<Option<StopReason>> =
            playing.iter().map(|place| rule.judge(&run.times(*place))).collect();
        let stopped = reasons.into_iter().collect::<Option<Vec<_>>>();
        if let Some(stopped) = stopped.filter(|_| !is_worth_more(run, &playing)) {
            findings.stopped = stopped.into_iter().max_by_key(|reason| severity(*reason));
            return Ok(());
        }
        if is_beyond(run, &playing, run.effort.most) {
            findings.stopped = Some(StopReason::Ceiling);
            return Ok(());
        }
        run.enter(Stage::Finals, count(playing.len()));
        run.round(&playing)?;
    }
}

/// Who wins, and who is as good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) winner: usize,
    /// The winner and all that cannot be told from the best.
    pub(crate) ties: Vec<usize>,
}

/// Decides between `finalists` by what was measured.
///
/// Whoever is not clearly slower than the best ties with it. Among those the default goes first;
/// else the first in the order of ties of those that clearly beat the default.
pub(crate) fn decide(run: &Search<'_>, finalists: &[usize]) -> Decision {
    let open = run.open(finalists);
    let against_default = |place: usize| match place {
        DEFAULT => 1.0,
        _ => run.ratio(place, DEFAULT).map_or(f64::INFINITY, |ratio| ratio.median),
    };
    let faster =
        |one: &usize, other: &usize| against_default(*one).total_cmp(&against_default(*other));
    let best = open.iter().copied().min_by(faster).unwrap_or(DEFAULT);
    let ties = |place: &usize| *place == best || !is_slower(run, *place, best);
    let ties: Vec<usize> = open.iter().copied().filter(ties).collect();
    if best == DEFAULT || ties.contains(&DEFAULT) {
        return Decision { winner: DEFAULT, ties };
    }
    let beats_default = |place: &usize| is_slower(run, DEFAULT, *place);
    let first = in_tie_order(run, ties.iter().copied().filter(beats_default).collect());
    Decision { winner: first.first().copied().unwrap_or(best), ties }
}

/// A gap of so much or less is a tie: 2 %.
pub(crate) const TIE_FACTOR: f64 = 1.02;

/// Whether `place` is slower than `base` by more than a tie, and surely slower.
fn is_slower(run: &Search<'_>, place: usize, base: usize) -> bool {
    run.ratio(place, base).is_some_and(|ratio| {
        ratio.pairs >= FEWEST_PAIRS && ratio.median > TIE_FACTOR && ratio.interval.low > 1.0
    })
}

/// Fewer pairs than this tell nothing: one of them may be an outlier.
const FEWEST_PAIRS: u64 = 3;

/// The default, the fastest, the first in the order of ties among those near it, and the
/// second fastest.
///
/// On a plateau chance decides who is fastest, but not who is first in the order of ties: that one
/// makes the winner the same in every run.
fn select(run: &Search<'_>, pool: &[usize]) -> Vec<usize> {
    let mut by_time = run.open(pool);
    by_time.sort_by(|one, other| run.median(*one).total_cmp(&run.median(*other)));
    let near = by_time.first().map_or(0.0, |best| NEAR_FACTOR * run.median(*best));
    let near = by_time.iter().copied().filter(|place| run.median(*place) <= near).collect();
    let mut finalists = vec![DEFAULT];
    let seats = by_time.iter().copied().take(1);
    let seats = seats.chain(in_tie_order(run, near).into_iter().take(SIMPLEST));
    for place in seats.chain(by_time.iter().copied().take(FASTEST)) {
        if !finalists.contains(&place) {
            finalists.push(place);
        }
    }
    finalists
}

/// As near to the fastest as this may be a tie, when medians of four samples are off by 1 %.
const NEAR_FACTOR: f64 = 1.03;
/// Finalists by the order of ties.
const SIMPLEST: usize = 2;
/// Finalists by time.
const FASTEST: usize = 2;

fn in_tie_order(run: &Search<'_>, mut places: Vec<usize>) -> Vec<usize> {
    let candidate = |place: &usize| run.series.get(*place).map(|series| &series.candidate);
    places.sort_by(|one, other| match (candidate(one), candidate(other)) {
        (Some(one), Some(other)) => Candidate::tie_order(one, other),
        _ => one.cmp(other),
    });
    places
}

/// The default, and who is not clearly slower than the winner.
fn contenders(run: &Search<'_>, finalists: &[usize], winner: usize) -> Vec<usize> {
    let stays =
        |place: &usize| *place == DEFAULT || *place == winner || !is_slower(run, *place, winner);
    run.open(finalists).into_iter().filter(stays).collect()
}

/// Whether another round would take more than so many samples of each candidate, on average.
fn is_beyond(run: &Search<'_>, playing: &[usize], samples_each: u64) -> bool {
    let candidates = count(run.series.len()).max(SMALL_SPACE);
    run.evaluations + count(playing.len()) > samples_each * candidates
}

/// Fewer candidates than this may cost as much as these: the finals of five take 30 samples.
const SMALL_SPACE: u64 = 6;

/// Whether another round may change who wins, in a search that has been cheap so far.
fn is_worth_more(run: &Search<'_>, playing: &[usize]) -> bool {
    let ceiling = count(run.times(DEFAULT).len()) >= run.effort.rule.ceiling;
    if ceiling || is_beyond(run, playing, run.effort.affordable) {
        return false;
    }
    let unclear = |one: &usize, other: &usize| {
        run.ratio(*one, *other).is_some_and(|ratio| {
            ratio.interval.low < TIE_FACTOR && ratio.interval.high > TIE_FACTOR
        })
    };
    playing.iter().any(|one| playing.iter().any(|other| unclear(one, other)))
}

const fn severity(stopped: StopReason) -> u8 {
    match stopped {
        StopReason::Precise => 0,
        StopReason::Noise => 1,
        StopReason::Ceiling => 2,
        StopReason::Timeout => 3,
    }
}
