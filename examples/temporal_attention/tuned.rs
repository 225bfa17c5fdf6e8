//! Asks the profile how to launch: the user's own, or the one that was shipped for the device.

use std::error::Error;

use gridguard::profile::{Layers, Objective, Policy, TunedChoice};
use gridguard::{Choice, Guard, Plan};
use gridguard_kernels::temporal_attention::TemporalAttention;
use gridguard_kernels::{Operation, Tunable};

use crate::backend::Backend;
use crate::report;

/// The guard with the profile of its device, and what is to be said of the files.
pub(crate) fn with_profile(guard: Guard) -> Guard {
    let identity = guard.identity();
    let layers = Layers::new().user().built_in(&identity);
    let loaded = layers.load(&identity, &guard.environment());
    for finding in &loaded.findings {
        eprintln!("profile: {finding}");
    }
    guard.with_profile(loaded.profile.into())
}

/// The attention and the choice that the profile has for it; both as they are where it has none, or
/// one that is not legal here.
pub(crate) fn choose(
    guard: &Guard,
    backend: &Backend,
    attention: TemporalAttention,
) -> Result<(TemporalAttention, Choice), Box<dyn Error>> {
    let key = attention.key(guard.limits(), Policy::default(), Objective::default())?;
    let (names, sizes): (Vec<&str>, Vec<u64>) = attention.sizes().into_iter().unzip();
    let answer = guard.tuned(&key, &names, &sizes);
    report::profile(guard, &answer);
    match replay(guard, backend, attention, &answer) {
        Ok(tuned) => Ok((tuned, answer.choice())),
        Err(reason) => {
            println!("         not legal here, so the planner chooses: {reason}");
            if let Some(profile) = guard.profile() {
                profile.refused();
            }
            Ok((attention, Choice::AUTOMATIC))
        }
    }
}

/// The attention as the entry has it, where that can be planned.
fn replay(
    guard: &Guard,
    backend: &Backend,
    attention: TemporalAttention,
    answer: &TunedChoice<'_>,
) -> Result<TemporalAttention, Box<dyn Error>> {
    let tuned = Tunable::with_parameters(&attention, answer.parameters())?;
    let limits = backend.limits(guard, &tuned)?;
    let plan = Plan::new(&tuned.request(), Some(&tuned.batch()), &limits, answer.choice());
    plan.map(|_| tuned).map_err(Into::into)
}
