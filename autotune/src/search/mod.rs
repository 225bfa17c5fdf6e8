//! Staged elimination: a few samples of every candidate, then more of the faster ones.

mod descent;
mod elimination;
pub(crate) mod finals;
pub(crate) mod latency;
pub(crate) mod state;

use gridguard::profile::Objective;

use crate::control::Stage;
use crate::space::Space;
use crate::stats::count;
pub(crate) use elimination::{FINE_FACTOR, eliminating_factor};
use state::{DEFAULT, Halt, Search};

/// Searches until done or halted. Fills `search.result` either way.
pub(crate) fn run(
    search: &mut Search<'_>,
    space: &mut Space,
    objective: Objective,
) -> Result<(), Halt> {
    let all: Vec<usize> = (0..space.candidates().len()).collect();
    search.enter(Stage::Check, elimination::expected_samples(count(all.len())));
    search.check(&[DEFAULT])?;
    if let Objective::Latency { max_launch_us } = objective {
        return latency::run(search, space, max_launch_us);
    }
    // This also shows whether samples are slow.
    search.round(&[DEFAULT])?;
    if !search.at_limit(&[DEFAULT]).is_empty() {
        search.rounds_up_to(&[DEFAULT], search.effort.fine)?;
        if !search.at_limit(&[DEFAULT]).is_empty() {
            return finals::run(search, &[DEFAULT]);
        }
    }
    let pool = if all.len() <= search.effort.exhaustive {
        search.check(&all)?;
        elimination::run(search, &all)?
    } else {
        descent::run(search, space)?
    };
    finals::run(search, &pool)
}
