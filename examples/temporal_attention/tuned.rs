//! Looks up the tuned choice in the user's own profile, or in the one shipped for the device.

use std::error::Error;

use gridguard::profile::{Objective, Policy, TunedChoice};
use gridguard::{Choice, Guard, Plan};
use gridguard_kernels::Operation;
use gridguard_kernels::temporal_attention::TemporalAttention;

use crate::backend::Backend;
use crate::report;

/// Loads the profile of the guard's device, and prints notices about its files.
pub(crate) fn with_profile(guard: Guard) -> Guard {
    let (guard, notices) = guard.with_device_profile();
    for notice in &notices {
        eprintln!("profile: {notice}");
    }
    guard
}

/// The attention with the parameters and the choice of its profile entry. If there is none, or it
/// is not legal here, the attention is unchanged and the choice automatic.
pub(crate) fn choose(
    guard: &Guard,
    backend: &Backend,
    attention: TemporalAttention,
) -> Result<(TemporalAttention, Choice), Box<dyn Error>> {
    let key = attention.key(guard.limits(), Policy::default(), Objective::default())?;
    let (names, sizes): (Vec<&str>, Vec<u64>) = attention.sizes().into_iter().unzip();
    let entry = guard.tuned(&key, &names, &sizes);
    report::profile(guard, &entry);
    match with_entry(guard, backend, attention, &entry) {
        Ok(tuned) => Ok((tuned, entry.choice())),
        Err(reason) => {
            println!("         not legal here, so the planner chooses: {reason}");
            entry.refused();
            Ok((attention, Choice::AUTOMATIC))
        }
    }
}

/// The attention with the entry's parameters, if that can be planned.
fn with_entry(
    guard: &Guard,
    backend: &Backend,
    attention: TemporalAttention,
    entry: &TunedChoice<'_>,
) -> Result<TemporalAttention, Box<dyn Error>> {
    let tuned = attention.with_parameters(entry.parameters())?;
    let limits = backend.limits(guard, &tuned)?;
    let plan = Plan::new(&tuned.request(), Some(&tuned.batch()), &limits, entry.choice());
    plan.map(|_| tuned).map_err(Into::into)
}
