//! The tuner: a space and a measurer in, an outcome out.

use gridguard::profile::{Objective, StopReason};

use crate::budget::Budget;
use crate::measurer::{MeasureFailure, Measurer};
use crate::observer::Observer;
use crate::outcome::{CandidateVerdict, LatencyOutcome, MeasuredCandidate, TuningOutcome};
use crate::search::finals;
use crate::search::latency::{Found, NANOSECONDS_OF_A_MICROSECOND};
use crate::search::run::{DEFAULT, Halt, Search, Series, Standing};
use crate::search::{Findings, search};
use crate::space::Space;
use crate::stats::Samples;

/// Why there is no outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TuneError {
    /// No configuration is legal in any way.
    #[error("no configuration of the launch is legal")]
    NoCandidate,
    /// What everything is compared with does not run.
    #[error("the default failed: {0}")]
    Default(#[source] MeasureFailure),
}

/// Finds the best candidate of `space` for `objective`.
///
/// `space` is [restricted](Space::restrict) to the objective, and has what the search tried beside its
/// own candidates afterwards.
///
/// Candidates are checked before they are timed; those that fail are recorded and left out. Samples
/// of different candidates take turns, so that drift meets all alike. The default wins where it is
/// not clearly beaten. Where the budget ends or somebody interrupts, the outcome is what is known
/// until then and says so.
///
/// # Errors
///
/// [`TuneError`] where nothing is legal, or where the default fails.
pub fn tune(
    measurer: &mut dyn Measurer,
    space: &mut Space,
    objective: Objective,
    budget: &Budget<'_>,
    observer: &mut dyn Observer,
) -> Result<TuningOutcome, TuneError> {
    space.restrict(objective);
    if space.default().is_none() {
        return Err(TuneError::NoCandidate);
    }
    let mut run = Search::new(measurer, observer, budget, space);
    let mut findings = Findings::default();
    let complete = match search(&mut run, space, objective, &mut findings) {
        Ok(()) => true,
        Err(Halt::Ended) => false,
        Err(Halt::DefaultFailed(failure)) => return Err(TuneError::Default(failure)),
    };
    outcome(&run, objective, &findings, complete).ok_or(TuneError::NoCandidate)
}

/// `None` only where there is no default.
fn outcome(
    run: &Search<'_>,
    objective: Objective,
    findings: &Findings,
    complete: bool,
) -> Option<TuningOutcome> {
    let finalists = match findings.finalists.is_empty() {
        false => findings.finalists.clone(),
        true => (0..run.series.len()).collect(),
    };
    let decision = finals::decide(run, &finalists);
    let found = findings.latency.as_ref().filter(|found| run.is_open(found.place));
    let winner = match objective {
        Objective::Latency { .. } => found.map_or(DEFAULT, |found| found.place),
        _ => decision.winner,
    };
    let verdict = |place: usize, series: &Series| match &series.standing {
        Standing::Failed(_) => CandidateVerdict::Failed,
        _ if place == DEFAULT => CandidateVerdict::Default,
        _ if place == winner => CandidateVerdict::Winner,
        Standing::Eliminated(stage) => CandidateVerdict::Eliminated { stage: *stage },
        Standing::Open if run.times(place).is_empty() => CandidateVerdict::Unmeasured,
        Standing::Open if decision.ties.contains(&place) => CandidateVerdict::Tie,
        Standing::Open => CandidateVerdict::Slower,
    };
    let places = run.series.iter().enumerate();
    let candidates: Vec<MeasuredCandidate> = places
        .map(|(place, series)| measured(run, place, series, verdict(place, series)))
        .collect();
    let failures = run.series.iter().filter_map(|series| match &series.standing {
        Standing::Failed(failure) => Some((series.candidate.clone(), failure.clone())),
        _ => None,
    });
    Some(TuningOutcome {
        objective,
        winner: candidates.get(winner)?.candidate.clone(),
        default: candidates.get(DEFAULT)?.candidate.clone(),
        chosen: candidates.get(winner)?.summary,
        baseline: candidates.get(DEFAULT)?.summary,
        failures: failures.collect(),
        candidates,
        latency: latency(objective, found, findings),
        evaluations: run.evaluations,
        stopped: findings.stopped.unwrap_or(StopReason::Timeout),
        complete,
        throttled: run.throttle.happened(),
        wall_time: run.elapsed(),
    })
}

fn measured(
    run: &Search<'_>,
    place: usize,
    series: &Series,
    verdict: CandidateVerdict,
) -> MeasuredCandidate {
    let samples = run.samples(place);
    MeasuredCandidate {
        candidate: series.candidate.clone(),
        summary: samples.as_ref().map(Samples::summary).unwrap_or_default(),
        spread: samples.map(|samples| samples.spread()),
        against_default: run.ratio(place, DEFAULT).filter(|_| place != DEFAULT),
        verdict,
    }
}

fn latency(
    objective: Objective,
    found: Option<&Found>,
    findings: &Findings,
) -> Option<LatencyOutcome> {
    let Objective::Latency { max_launch_us } = objective else { return None };
    let found = found?;
    Some(LatencyOutcome {
        max_launch_ns: max_launch_us.saturating_mul(NANOSECONDS_OF_A_MICROSECOND),
        launch: found.launch.summary(),
        met: found.met,
        failed_choices: findings.failed_choices,
        stands_in: findings.stands_in,
    })
}

#[cfg(test)]
mod tests;
