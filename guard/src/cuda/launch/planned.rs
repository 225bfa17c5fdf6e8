//! Plans requests before their launches, and counts and reports them afterwards.
//!
//! Observers run before and after the launches: a launch makes its context current and queries captures itself.

use crate::cuda::error::{Failed, LaunchError, Launches};
use crate::cuda::kernel::Kernel;
use crate::cuda::kernel::tuning::Tuning;
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::validate;
use crate::launch::violation::Violations;
use crate::limits::LaunchLimits;
use crate::observe;
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::launches::Plan;

/// A request, and what its plan depends on.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'r> {
    pub(crate) request: &'r LaunchRequest,
    pub(crate) batch: Option<&'r BatchAxis>,
    pub(crate) tuning: Tuning<'r>,
    pub(crate) limits: &'r LaunchLimits,
}

/// The launches of a request.
#[derive(Clone, Copy)]
pub(crate) enum Planned<'p> {
    /// One legal launch without a batch.
    Whole(&'p ValidLaunch),
    Plan(&'p Plan),
}

impl Guard {
    /// Plans a request, calls `submit`, and counts.
    #[inline]
    pub(crate) fn plan_and_submit(
        &self,
        kernel: &Kernel,
        wanted: Wanted<'_>,
        submit: impl FnOnce(Planned<'_>) -> Launches,
    ) -> Result<u64, LaunchError> {
        // By reference: copying a launch that was just written stalls on the stores.
        if wanted.batch.is_none()
            && let Some(launch) = &ValidLaunch::plain(wanted.request, wanted.limits)
        {
            return self.count(submit(Planned::Whole(launch)));
        }
        self.plan_other(kernel, &wanted, submit)
    }

    /// Submits `plan`, reports and counts it.
    #[inline]
    pub(crate) fn submit_plan(
        &self,
        kernel: &Kernel,
        plan: &Plan,
        submit: impl FnOnce(Planned<'_>) -> Launches,
    ) -> Result<u64, LaunchError> {
        let launched = submit(Planned::Plan(plan));
        if launched.is_ok() {
            observe::launched(Some(kernel.name()), plan);
        }
        self.count(launched)
    }

    /// As [`Self::plan_and_submit`], for launches that are not plain. Out of line, to keep plain ones short.
    #[inline(never)]
    fn plan_other(
        &self,
        kernel: &Kernel,
        wanted: &Wanted<'_>,
        submit: impl FnOnce(Planned<'_>) -> Launches,
    ) -> Result<u64, LaunchError> {
        let refuse =
            |violations: &Violations| Err(self.count_failure(kernel.refusal(violations.clone())));
        if wanted.batch.is_none() {
            match &validate(wanted.request, wanted.limits) {
                Ok(launch) => return self.count(submit(Planned::Whole(launch))),
                Err(violations) if wanted.limits.forms().is_none() => return refuse(violations),
                Err(_) => {}
            }
        }
        match &self.choose(wanted) {
            Ok(plan) => self.submit_plan(kernel, plan, submit),
            Err(violations) => refuse(violations),
        }
    }

    /// The plan that the profile chooses, or else the planner.
    #[inline]
    pub(crate) fn choose(&self, wanted: &Wanted<'_>) -> Result<Plan, Violations> {
        let Wanted { request, batch, tuning, limits } = *wanted;
        #[cfg(feature = "profile")]
        if let Some(tuning) = tuning
            && let Some(plan) = self.tuned_plan(tuning, request, batch, limits)
        {
            return Ok(plan);
        }
        let _ = tuning;
        observe::planning(|| Plan::new(request, batch, limits, Choice::AUTOMATIC))
    }

    /// Counts a request that was launched or not.
    #[inline]
    pub(crate) fn count(&self, launched: Launches) -> Result<u64, LaunchError> {
        match launched {
            Ok(launches) => {
                self.counters.ran(launches);
                Ok(launches)
            }
            Err(Failed(error)) => Err(self.count_failure(*error)),
        }
    }

    #[cold]
    pub(crate) fn count_failure(&self, error: LaunchError) -> LaunchError {
        match &error {
            LaunchError::Stopped(stopped) => self.counters.stopped(stopped.chunk),
            LaunchError::Workspace(_) => self.counters.stopped(0),
            error => {
                if let Some(violations) = error.violations() {
                    self.counters.rejected(violations);
                }
            }
        }
        error
    }
}
