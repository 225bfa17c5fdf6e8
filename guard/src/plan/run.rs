//! Runs the launches of a plan one by one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use derive_more::Display;

use crate::launch::violation::count;
use crate::plan::launches::{Plan, PlannedLaunch};

/// A plan that failed at a chunk: the failed chunk, and the items done before it. The message includes the `source`.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display("launch {chunk} of {launches} was refused after {items_done} of {}: {source}", count(*items, "item"))]
pub struct PartialRun<E: core::error::Error + 'static> {
    /// The index of the failed launch, from 0.
    pub chunk: u64,
    /// The number of launches of the plan.
    pub launches: u64,
    /// Items of the launches before it, which were all submitted.
    pub items_done: u64,
    /// Items of the batch.
    pub items: u64,
    /// Why the launch failed.
    pub source: E,
}

impl<E: core::error::Error + 'static> core::error::Error for PartialRun<E> {}

/// Calls `launch` for each launch of `plan` in order, and returns the number of launches. Stops at the first failure.
#[inline]
pub(crate) fn run<E>(
    plan: &Plan,
    mut launch: impl FnMut(&PlannedLaunch) -> Result<(), E>,
) -> Result<u64, PartialRun<E>>
where
    E: core::error::Error + 'static,
{
    for planned in plan.launches() {
        if let Err(source) = launch(&planned) {
            return Err(partial_run(plan, &planned, source));
        }
    }
    Ok(plan.len())
}

#[cold]
fn partial_run<E>(plan: &Plan, planned: &PlannedLaunch, source: E) -> PartialRun<E>
where
    E: core::error::Error + 'static,
{
    PartialRun {
        chunk: planned.chunk.index,
        launches: plan.len(),
        items_done: planned.chunk.start,
        items: plan.items(),
        source,
    }
}

/// Calls the caller's code, whose output is discarded if it panics.
///
/// # Errors
///
/// The text of the panic.
pub fn catch_panic<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let owned = || panic.downcast_ref::<String>().map(String::as_str);
        let message = text.or_else(owned).unwrap_or("no message").to_owned();
        // Dropping the payload may panic.
        core::mem::forget(panic);
        message
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest,
    };

    #[derive(Debug, PartialEq, Eq, thiserror::Error)]
    #[error("refused")]
    struct Refused;

    fn refuses_at(chunk: u64) -> impl Fn(&PlannedLaunch) -> Result<(), Refused> {
        move |launch| if launch.chunk.index == chunk { Err(Refused) } else { Ok(()) }
    }

    fn plan() -> Plan {
        let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("k"));
        let request = LaunchRequest::new(Dim3::new(1, 196_606, 1), Dim3::ONE);
        let batch = BatchAxis::new(Axis::Y, 196_606);
        Plan::new(&request, Some(&batch), &limits, Choice::AUTOMATIC).expect("splits")
    }

    #[test]
    fn all_launches_are_counted() {
        assert_eq!(run(&plan(), refuses_at(9)), Ok(4));
    }

    #[test]
    fn a_failed_launch_reports_the_items_done() {
        let stopped = run(&plan(), refuses_at(2)).expect_err("refused at the third");
        assert_eq!((stopped.chunk, stopped.items_done), (2, 98_302));
        assert_eq!(
            stopped.to_string(),
            "launch 2 of 4 was refused after 98302 of 196606 items: refused"
        );
    }
}
