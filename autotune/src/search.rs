//! Staged elimination: a few samples of everything, more of what is not far behind.

mod descent;
mod effort;
pub(crate) mod finals;
pub(crate) mod latency;
mod model;
pub(crate) mod run;
mod turns;

use gridguard::profile::Objective;

use crate::number::count;
use crate::observer::Stage;
use crate::space::Space;
use run::{DEFAULT, Halt, Search};

/// What a search came to, beside the samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// Why the last sampling ended.
    pub(crate) stopped: Option<gridguard::profile::StopReason>,
    /// Who was compared to the end, the default among them.
    pub(crate) finalists: Vec<usize>,
    /// What the bound on a launch came to.
    pub(crate) latency: Option<latency::Found>,
    /// Chunks that led there and failed beside the default.
    pub(crate) failed_choices: u64,
    /// Whether no chunk was left, so that the default is all there is.
    pub(crate) stands_in: bool,
}

/// Searches until it is done or halted; `findings` has what is known either way.
pub(crate) fn search(
    run: &mut Search<'_>,
    space: &mut Space,
    objective: Objective,
    findings: &mut Findings,
) -> Result<(), Halt> {
    let all: Vec<usize> = (0..space.candidates().len()).collect();
    run.enter(Stage::Check, expected(count(all.len())));
    run.check(&[DEFAULT])?;
    if let Objective::Latency { max_launch_us } = objective {
        return latency::search(run, space, max_launch_us, findings);
    }
    let pool = if all.len() <= MOST_EXHAUSTIVE {
        run.check(&all)?;
        staged(run, &all)?
    } else {
        descent::search(run, space)?
    };
    finals::play(run, &pool, findings)
}

/// The coarse and the fine stage over `places`; who is left.
pub(crate) fn staged(run: &mut Search<'_>, places: &[usize]) -> Result<Vec<usize>, Halt> {
    run.enter(Stage::Coarse, expected(count(places.len())));
    // Whether samples are slow is known after the default's first one.
    run.round(places)?;
    run.rounds_up_to(places, run.effort.coarse)?;
    let left = keep_within(run, &run.open(places), Search::least, COARSE_FACTOR, Stage::Coarse);
    run.enter(Stage::Fine, count(left.len()) * (run.effort.fine - run.effort.coarse) + FINALS);
    run.rounds_up_to(&left, run.effort.fine)?;
    Ok(keep_within(run, &run.open(&left), Search::median, FINE_FACTOR, Stage::Fine))
}

/// Puts out what is slower than the fastest by more than `factor`; never the default.
pub(crate) fn keep_within<'a>(
    run: &mut Search<'a>,
    places: &[usize],
    time: fn(&Search<'a>, usize) -> f64,
    factor: f64,
    stage: Stage,
) -> Vec<usize> {
    let most = factor * places.iter().map(|place| time(run, *place)).fold(f64::INFINITY, f64::min);
    let keeps = |place: &usize| *place == DEFAULT || time(run, *place) <= most;
    let (left, out): (Vec<usize>, Vec<usize>) = places.iter().copied().partition(keeps);
    for place in out {
        run.eliminate(place, stage);
    }
    left
}

/// Up to so many candidates are all measured; beyond, a model chooses where to begin.
const MOST_EXHAUSTIVE: usize = 64;
/// After the coarse stage, what is half again as slow as the fastest is out, by the lesser of its
/// two samples: what disturbs a sample only makes it longer, and a median of two would let one
/// interrupt put out the best.
pub(crate) const COARSE_FACTOR: f64 = 1.5;
/// After the fine stage, 15 %: more than the medians of four samples are wrong by.
pub(crate) const FINE_FACTOR: f64 = 1.15;
/// Samples of the finals, for an estimate: five finalists, six rounds.
const FINALS: u64 = 30;

/// An estimate of the samples that so many candidates take: three of each, two more of half.
const fn expected(candidates: u64) -> u64 {
    4 * candidates + FINALS
}
