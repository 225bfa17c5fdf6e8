//! Searches a space with a measurer and returns the outcome.

use gridguard::profile::{Objective, StopReason};

use crate::control::{Budget, Observer};
use crate::error::Error;
use crate::measure::Measurer;
use crate::outcome::{CandidateVerdict, MeasuredCandidate, TuningOutcome};
use crate::search::state::{DEFAULT, Halt, Search, Series, Status};
use crate::search::{self, finals};
use crate::space::Space;
use crate::stats::{MIN_FOR_INTERVAL, Samples};

/// Finds the best candidate of `space` for `objective`.
///
/// This [restricts](Space::restrict) `space` to the objective, and adds the candidates of the search to it.
///
/// Each candidate is checked before it is timed; a failed one is recorded and excluded. Samples of different candidates
/// are interleaved, so drift affects all alike. The default wins unless another candidate is faster by more than 2 %,
/// with a confidence of 99.9 % (less if samples take a second). All such candidates within 2 % of the fastest count as
/// equal. Of these the one with the least scratch wins; then the fewest launches; then the smallest blocks. So every
/// search of a problem has the same result, unless a time is at the margin. When the budget ends or the search is
/// interrupted, the outcome is marked incomplete. Disturbed samples are taken again; if a machine stays busy, the
/// outcome is undecided, with the default as its winner.
///
/// # Errors
///
/// [`Error`] if no candidate is legal, the default fails, or measuring ends.
pub fn tune(
    measurer: &mut dyn Measurer,
    space: &mut Space,
    objective: Objective,
    budget: &Budget<'_>,
    observer: &mut dyn Observer,
) -> Result<TuningOutcome, Error> {
    space.restrict(objective);
    if space.default().is_none() {
        return Err(Error::no_candidate());
    }
    let mut search = Search::new(measurer, observer, budget, space);
    match search::run(&mut search, space, objective) {
        Ok(()) => Ok(outcome(&search, space, objective, true)),
        Err(Halt::Ended) => Ok(outcome(&search, space, objective, false)),
        Err(Halt::Failed(error)) => Err(error),
    }
}

fn outcome(
    search: &Search<'_>,
    space: &Space,
    objective: Objective,
    complete: bool,
) -> TuningOutcome {
    let result = &search.result;
    let decision = match result.finalists.as_slice() {
        [] => finals::decide(search, &(0..search.series.len()).collect::<Vec<_>>()),
        finalists => finals::decide(search, finalists),
    };
    let bounded = result.bounded.filter(|(place, _)| search.is_open(*place));
    let winner = match (bounded, objective) {
        (Some((place, _)), _) => place,
        (None, Objective::Latency { .. }) => DEFAULT,
        (None, Objective::Throughput | Objective::Memory { .. }) => decision.winner,
    };
    let is_disturbed = |place: usize| search.is_disturbed(place) || search.is_disturbed(DEFAULT);
    // The default needs no proof.
    let undecided = winner != DEFAULT && is_disturbed(winner);
    let winner = if undecided { DEFAULT } else { winner };
    let verdict = |place: usize, series: &Series| match &series.status {
        Status::Failed(_) => CandidateVerdict::Failed,
        _ if place == DEFAULT => CandidateVerdict::Default,
        _ if place == winner => CandidateVerdict::Winner,
        Status::Eliminated(stage) => CandidateVerdict::Eliminated { stage: *stage },
        Status::Open if search.times(place).is_empty() => CandidateVerdict::Unmeasured,
        Status::Open if is_disturbed(place) || result.undecided.contains(&place) => {
            CandidateVerdict::Undecided
        }
        Status::Open if finals::is_tie(search, place, decision.fastest) => CandidateVerdict::Tie,
        Status::Open => CandidateVerdict::Slower,
    };
    let measured = |(place, series): (usize, &Series)| {
        let samples = search.samples(place);
        let ratios = search.ratios(place, DEFAULT).filter(|_| place != DEFAULT);
        MeasuredCandidate {
            candidate: series.candidate.clone(),
            summary: samples.map(Samples::summary).unwrap_or_default(),
            spread: samples.map(Samples::spread),
            against_default: ratios.as_ref().map(Samples::median),
            against_default_interval: ratios
                .filter(|ratios| ratios.count() >= MIN_FOR_INTERVAL)
                .map(|ratios| ratios.median_interval()),
            verdict: verdict(place, series),
            failure: match &series.status {
                Status::Failed(failure) => Some(failure.clone()),
                Status::Open | Status::Eliminated(_) => None,
            },
        }
    };
    let candidates: Vec<_> = search.series.iter().enumerate().map(measured).collect();
    let (chosen, default) = (&candidates[winner], &candidates[DEFAULT]);
    TuningOutcome {
        objective,
        winner: chosen.candidate.clone(),
        default: default.candidate.clone(),
        chosen: chosen.summary,
        baseline: default.summary,
        latency: bounded.map(|(_, latency)| latency),
        evaluations: search.evaluations,
        stopped: result.stopped.unwrap_or(StopReason::Timeout),
        complete,
        throttled: search.throttle.happened,
        discarded: search.discarded,
        undecided,
        largest_legal_chunk: space.largest_legal_chunk(),
        wall_time_s: search.elapsed().as_secs_f64(),
        candidates,
    }
}
