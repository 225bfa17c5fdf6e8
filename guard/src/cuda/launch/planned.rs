//! Plans requests before their launches, and counts and reports them afterwards.
//!
//! Observers run before and after the launches: a launch makes its context current and queries captures itself.

use crate::cuda::error::{Failed, LaunchError, Launches};
use crate::cuda::kernel::Kernel;
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::validate;
use crate::observe;
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::launches::Plan;

/// The launches of a request.
#[derive(Clone, Copy)]
pub(crate) enum Planned<'p> {
    /// One legal launch without a batch.
    Whole(&'p ValidLaunch),
    Plan(&'p Plan),
}

impl Guard {
    /// Plans `request`, calls `submit`, and counts.
    #[inline]
    pub(crate) fn plan_and_submit(
        &self,
        kernel: &Kernel,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        submit: impl FnOnce(Planned<'_>) -> Launches,
    ) -> Result<u64, LaunchError> {
        // By reference: copying a launch that was just written stalls on the stores.
        if batch.is_none()
            && let Some(launch) = &ValidLaunch::plain(request, kernel.limits())
        {
            return self.count(submit(Planned::Whole(launch)));
        }
        self.plan_other(kernel, request, batch, submit)
    }

    /// Validates `request`, calls `submit`, and counts.
    #[inline]
    pub(crate) fn validate_and_submit(
        &self,
        kernel: &Kernel,
        request: &LaunchRequest,
        submit: impl FnOnce(&ValidLaunch) -> Launches,
    ) -> Result<u64, LaunchError> {
        if let Some(launch) = &ValidLaunch::plain(request, kernel.limits()) {
            return self.count(submit(launch));
        }
        match &validate(request, kernel.limits()) {
            Ok(launch) => self.count(submit(launch)),
            Err(violations) => Err(self.count_failure(kernel.refusal(violations.clone()))),
        }
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
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        submit: impl FnOnce(Planned<'_>) -> Launches,
    ) -> Result<u64, LaunchError> {
        let limits = kernel.limits();
        #[cfg(feature = "profile")]
        if let Some(tuning) = kernel.tuning()
            && let Some(plan) = &self.tuned_plan(tuning, request, batch, limits)
        {
            return self.submit_plan(kernel, plan, submit);
        }
        if batch.is_none() && (limits.forms().is_none() || validate(request, limits).is_ok()) {
            return self
                .validate_and_submit(kernel, request, |launch| submit(Planned::Whole(launch)));
        }
        let plan = observe::planning(|| Plan::new(request, batch, limits, Choice::AUTOMATIC));
        match &plan {
            Ok(plan) => self.submit_plan(kernel, plan, submit),
            Err(violations) => Err(self.count_failure(kernel.refusal(violations.clone()))),
        }
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
    fn count_failure(&self, error: LaunchError) -> LaunchError {
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
