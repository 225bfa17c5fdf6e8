//! Launches with [`Args`]: cudarc's memory and stream enter, the number of launches leaves.

use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use crate::cuda::arguments::Args;
use crate::cuda::arguments::uses::{InUse, check_order};
use crate::cuda::driver::library::CAPTURE_ERRORS;
use crate::cuda::driver::symbols::Handle;
use crate::cuda::error::{LaunchError, Launches};
use crate::cuda::guard::other_context;
use crate::cuda::kernel::Kernel;
use crate::cuda::launch::Submission;
use crate::cuda::launch::capture::{is_captured, may_capture};
use crate::cuda::launch::planned::Planned;
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::plan::batch::BatchAxis;
use crate::plan::launches::Plan;

/// Who vouches that a launch keeps the kernel's contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contract {
    /// The caller that declared the kernel's parameters.
    Declared,
    /// The caller of this unsafe launch, also for a graph that captures it.
    Launched,
}

impl Guard {
    /// Submits every launch of `plan` to the stream of `args` and returns their number, before they
    /// have run.
    ///
    /// A stream that is being captured is refused, since the graph would hold neither kernel nor memory.
    /// Within [`capture_launches`](crate::cuda::capture_launches) the launches become nodes of the graph, and
    /// nothing here synchronises or allocates.
    ///
    /// # Errors
    ///
    /// - [`LaunchError`] before anything is launched: plan, arguments, stream and kernel do not belong together, a
    ///   cooperative grid or a cluster does not fit the device, or the stream is being captured.
    /// - [`LaunchError::Stopped`] if the driver refuses a launch, or another thread begins to capture the
    ///   stream between two chunks.
    #[track_caller]
    pub fn launch(&self, kernel: &Kernel, plan: &Plan, args: Args<'_>) -> Result<u64, LaunchError> {
        let call_site = Location::caller();
        self.submit_plan(kernel, plan, |planned| {
            self.submit(kernel, &args, Contract::Declared, call_site, planned)
        })
    }

    /// Plans `request` for `kernel` and launches it: [`Self::plan`] and [`Self::launch`] in one.
    ///
    /// A kernel `with_tuning` (feature `profile`) is planned as the guard's profile says, if the request has
    /// a batch, or the kernel is rewritten and the grid is too large. If the profile has no entry for its
    /// shape, or the stored choice is not legal here, the planner chooses: see the profile's counts and
    /// the miss log.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Invalid`] if no plan is legal, and as [`Self::launch`].
    #[inline]
    #[track_caller]
    pub fn plan_and_launch(
        &self,
        kernel: &Kernel,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        args: Args<'_>,
    ) -> Result<u64, LaunchError> {
        let call_site = Location::caller();
        self.plan_and_launch_args(kernel, request, batch, &args, Contract::Declared, call_site)
    }

    /// [`Self::plan_and_launch`] under `contract`.
    #[inline]
    pub(crate) fn plan_and_launch_args(
        &self,
        kernel: &Kernel,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        args: &Args<'_>,
        contract: Contract,
        call_site: &'static Location<'static>,
    ) -> Result<u64, LaunchError> {
        if args.values().has_workspace() {
            return self.launch_with_workspace(kernel, request, batch, args, contract, call_site);
        }
        self.plan_and_submit(kernel, request, batch, |planned| {
            self.submit(kernel, args, contract, call_site, planned)
        })
    }

    /// Submits launches with `args`, if all belong together, and orders later uses of their memory after them.
    #[inline]
    pub(crate) fn submit(
        &self,
        kernel: &Kernel,
        args: &Args<'_>,
        contract: Contract,
        call_site: &'static Location<'static>,
        planned: Planned<'_>,
    ) -> Launches {
        let (stream, _in_use) = self.bind(kernel, args, contract)?;
        let watch = self.watch(call_site);
        // SAFETY:
        // - `bind` found the stream to be of the kernel's context, and made that current.
        // - The caller of `Module::kernel`, or of the unsafe launch, vouches for every launch with arguments of
        //   the declared kinds. These are checked before the launch.
        // - `Memory` is sealed, so memory has cudarc's types and elements. It is of this context, long enough for
        //   the items, and borrowed by `args`.
        // - `Uses` orders later uses and the deallocation after the launches. It cannot order them after a graph,
        //   so `bind` refuses captures, unless the caller of `capture_launches` or of an unsafe launch vouches
        //   for them. No code of the program runs between its query and the launches.
        // - The kernel keeps its module loaded, and unloading waits for the launches.
        let submission = unsafe {
            match contract {
                Contract::Declared => Submission::uncaptured(kernel, stream, args.values(), watch),
                Contract::Launched => Submission::new(kernel, stream, args.values(), watch),
            }
        };
        end(kernel, submission.submit(planned), args)
    }

    /// Makes the kernel's context current and returns the stream of `args`, whose memory is in use from now on, if all
    /// belong together.
    #[inline]
    pub(crate) fn bind<'u, 'a>(
        &self,
        kernel: &Kernel,
        args: &'u Args<'a>,
        contract: Contract,
    ) -> Result<(Handle, InUse<'u, 'a>), LaunchError> {
        let is_declared = contract == Contract::Declared;
        // A function of cudarc was looked up for the context of the stream.
        let own =
            if is_declared { kernel.inner().owned.as_ref() } else { Some(args.stream().context()) };
        if let Some(what) = self.foreign_to(own, args) {
            return Err(match own {
                Some(_) => LaunchError::OtherContext { what, kernel: kernel.name().to_owned() },
                None => other_context(what, kernel),
            });
        }
        let (driver, stream) = (kernel.inner().driver, args.stream().cu_stream().cast());
        driver.bind(kernel.inner().context)?;
        // SAFETY: `args` hold the stream, of the context that is current now.
        if is_declared && unsafe { is_captured(driver, stream) } {
            return Err(refuse_capture(kernel, args));
        }
        let uses = args.uses();
        if !uses.is_empty() {
            check_order(uses)?;
            if is_declared && uses.were_added_in_capture() && !may_capture() {
                return Err(kernel.captured());
            }
        }
        let in_use = if is_declared { uses.begin() } else { uses.begin_unsafe() };
        Ok((stream, in_use))
    }

    /// What does not belong to the context `own`, if anything.
    #[inline]
    fn foreign_to(&self, own: Option<&Arc<CudaContext>>, args: &Args<'_>) -> Option<&'static str> {
        let is_own = |context: Option<&Arc<CudaContext>>| match (own, context) {
            (Some(own), Some(context)) => Arc::ptr_eq(own, context) || own == context,
            _ => false,
        };
        if !is_own(self.context()) {
            return Some("the guard");
        }
        if !is_own(Some(args.stream().context())) {
            return Some("the stream");
        }
        args.uses().has_foreign_memory().then_some("an argument's memory")
    }
}

/// Ends the uses of the arguments' memory.
#[inline]
pub(crate) fn end(kernel: &Kernel, launched: Launches, args: &Args<'_>) -> Launches {
    let has_captured = args.uses().end();
    if has_captured && launched.is_ok() { Err(kernel.captured().into()) } else { launched }
}

/// Why a launch is refused that would be captured without the caller's promise.
#[cold]
fn refuse_capture(kernel: &Kernel, args: &Args<'_>) -> LaunchError {
    match check_order(args.uses()) {
        // cudarc may have waited for earlier work on the memory, which is not captured.
        Err(error) if !CAPTURE_ERRORS.contains(&error.code) => error.into(),
        _ => kernel.captured(),
    }
}
