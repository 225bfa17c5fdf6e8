//! Plans requests before their launches, and counts and reports them afterwards.
//!
//! Observers run before and after the launches: a launch makes its context current and queries captures itself.

use derive_more::From;

use crate::cuda::error::{LaunchError, LaunchErrorKind};
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

/// What [`Guard::launch`] launches: a plan, or a request that is planned first.
#[derive(Clone, Copy, Debug, From)]
pub enum Launch<'l> {
    /// Every launch of a plan.
    Plan(&'l Plan),
    /// A request, whose items are split along the batch if one launch is too large.
    Request(&'l LaunchRequest, Option<&'l BatchAxis>),
}

impl<'l> From<&'l LaunchRequest> for Launch<'l> {
    #[inline]
    fn from(request: &'l LaunchRequest) -> Self {
        Self::Request(request, None)
    }
}

impl<'l> From<(&'l LaunchRequest, &'l BatchAxis)> for Launch<'l> {
    #[inline]
    fn from((request, batch): (&'l LaunchRequest, &'l BatchAxis)) -> Self {
        Self::Request(request, Some(batch))
    }
}

/// A request, and what its plan depends on.
#[derive(Clone, Copy)]
pub(crate) struct PlanInput<'r> {
    pub(crate) request: &'r LaunchRequest,
    pub(crate) batch: Option<&'r BatchAxis>,
    pub(crate) tuning: Tuning<'r>,
    pub(crate) limits: &'r LaunchLimits,
}

/// Validated launches.
#[derive(Clone, Copy)]
pub(crate) enum ValidLaunches<'p> {
    /// One launch without a batch.
    Whole(&'p ValidLaunch),
    Plan(&'p Plan),
}

/// A kernel and its arguments, on their way to the driver.
pub(crate) trait Call {
    fn kernel(&self) -> &Kernel;

    /// Makes the kernel's context current and submits the launches.
    fn submit(&self, guard: &Guard, launches: ValidLaunches<'_>) -> Result<u64, LaunchError>;
}

impl Guard {
    /// Validates or plans a request, submits its launches and counts them.
    #[inline]
    pub(crate) fn launch_request(
        &self,
        call: &impl Call,
        input: PlanInput<'_>,
    ) -> Result<u64, LaunchError> {
        // By reference, because copying a launch that was just written stalls on the stores.
        if input.batch.is_none()
            && let Some(launch) = &ValidLaunch::plain(input.request, input.limits)
        {
            return self.count(call.submit(self, ValidLaunches::Whole(launch)));
        }
        self.launch_other_request(call, &input)
    }

    /// As [`Self::launch_request`], for launches that are not plain. Out of line, to keep the path of plain launches
    /// short.
    #[inline(never)]
    fn launch_other_request(
        &self,
        call: &impl Call,
        input: &PlanInput<'_>,
    ) -> Result<u64, LaunchError> {
        let refuse = |violations: &Violations| {
            Err(self.count_failure(call.kernel().refusal(violations.clone())))
        };
        if input.batch.is_none() {
            match &validate(input.request, input.limits) {
                Ok(launch) => return self.count(call.submit(self, ValidLaunches::Whole(launch))),
                Err(violations) if input.limits.forms().is_none() => return refuse(violations),
                Err(_) => {}
            }
        }
        match &self.choose(input) {
            Ok(plan) => self.launch_plan(call, plan),
            Err(violations) => refuse(violations),
        }
    }

    /// Submits the launches of `plan`, reports and counts them.
    #[inline]
    pub(crate) fn launch_plan(&self, call: &impl Call, plan: &Plan) -> Result<u64, LaunchError> {
        let launched = self.count(call.submit(self, ValidLaunches::Plan(plan)))?;
        observe::launched(Some(call.kernel().name()), plan);
        Ok(launched)
    }

    /// The plan that the profile chooses, or else the plan of the planner.
    #[inline]
    pub(crate) fn choose(&self, input: &PlanInput<'_>) -> Result<Plan, Violations> {
        let PlanInput { request, batch, tuning, limits } = *input;
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
    pub(crate) fn count(&self, launched: Result<u64, LaunchError>) -> Result<u64, LaunchError> {
        match launched {
            Ok(launches) => {
                self.counters.ran(launches);
                Ok(launches)
            }
            Err(error) => Err(self.count_failure(error)),
        }
    }

    /// Counts a request that was not launched to its end, and tells observers about an error of an earlier launch.
    #[cold]
    pub(crate) fn count_failure(&self, error: LaunchError) -> LaunchError {
        if !matches!(error.kind(), LaunchErrorKind::Unknown(_)) {
            error.driver().inspect(|error| error.report());
        }
        match error.kind() {
            LaunchErrorKind::Stopped(stopped) => self.counters.stopped(stopped.chunk),
            LaunchErrorKind::Workspace(_) => self.counters.stopped(0),
            _ => {
                if let Some(violations) = error.violations() {
                    self.counters.rejected(violations);
                }
            }
        }
        error
    }
}
