//! Plans requests before their launches, and counts and reports them afterwards.

use crate::cuda::error::{Failed, LaunchError, Launches};
use crate::cuda::kernel::Kernel;
use crate::launch::request::LaunchRequest;
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::validate;
use crate::observe;
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::launches::Plan;
use crate::record::counters::Counters;

/// The launches of a request.
pub(crate) enum Planned<'p> {
    /// One launch without a batch, legal as it is.
    Whole(&'p ValidLaunch),
    Plan(&'p Plan),
}

impl Kernel {
    /// Plans `request` and calls `submit`. Observers run before and after `submit`, which makes its context
    /// current and queries captures itself.
    #[inline]
    pub(crate) fn plan_and_submit(
        &self,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        submit: impl FnOnce(Planned<'_>) -> Launches,
    ) -> Launches {
        // A single launch needs no plan around it. By reference: a copy of what was just written waits
        // for the writes.
        if batch.is_none()
            && let Some(launch) = &ValidLaunch::plain(request, self.limits())
        {
            return submit(Planned::Whole(launch));
        }
        self.plan_other(request, batch, submit)
    }

    /// As [`Self::plan_and_submit`], for launches that are not plain. Out of line, to keep plain ones short.
    #[inline(never)]
    fn plan_other(
        &self,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        submit: impl FnOnce(Planned<'_>) -> Launches,
    ) -> Launches {
        let limits = self.limits();
        if batch.is_none() {
            match validate(request, limits) {
                Ok(launch) => return submit(Planned::Whole(&launch)),
                Err(violations) if limits.forms().is_none() => {
                    return Err(self.refusal(violations).into());
                }
                Err(_) => {}
            }
        }
        let plan = observe::planning(|| Plan::new(request, batch, limits, Choice::AUTOMATIC));
        let plan = &plan.map_err(|violations| self.refusal(violations))?;
        let launched = submit(Planned::Plan(plan));
        if launched.is_ok() {
            observe::launched(Some(self.name()), plan);
        }
        launched
    }
}

/// Counts a plan that was launched or not.
#[inline]
pub(crate) fn count(counters: &Counters, launched: Launches) -> Launches {
    match &launched {
        Ok(launches) => counters.ran(*launches),
        Err(Failed(error)) => count_failure(counters, error),
    }
    launched
}

/// Reports and counts a plan after its launches and the end of its uses.
pub(crate) fn launched_plan(
    kernel: &Kernel,
    plan: &Plan,
    counters: &Counters,
    launched: Launches,
) -> Result<u64, LaunchError> {
    if launched.is_ok() {
        observe::launched(Some(kernel.name()), plan);
    }
    count(counters, launched).map_err(Failed::into_error)
}

#[cold]
fn count_failure(counters: &Counters, error: &LaunchError) {
    if let LaunchError::Stopped(stopped) = error {
        counters.stopped(stopped.chunk);
    } else if let Some(violations) = error.violations() {
        counters.rejected(violations);
    }
}
