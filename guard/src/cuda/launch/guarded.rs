//! Launches with [`Args`]: cudarc's memory and stream enter, the number of launches leaves.

use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use crate::cuda::arguments::Args;
use crate::cuda::arguments::uses::InUse;
use crate::cuda::driver::library::{CAPTURE_ERRORS, handle};
use crate::cuda::driver::symbols::Handle;
use crate::cuda::error::{LaunchError, LaunchErrorKind};
use crate::cuda::kernel::{Inner, Kernel};
use crate::cuda::launch::capture::{is_captured, may_capture};
use crate::cuda::launch::planned::{Call, Launch, PlanInput, ValidLaunches};
use crate::cuda::launch::{Contract, Submission, Values};
use crate::guard::Guard;
use crate::plan::arguments::ArgumentList;

/// A kernel with [`Args`].
#[derive(Clone, Copy)]
pub(crate) struct GuardedCall<'c, 'a> {
    pub(crate) kernel: &'c Kernel,
    pub(crate) args: &'c Args<'a>,
    pub(crate) contract: Contract,
    pub(crate) call_site: &'static Location<'static>,
}

impl Guard {
    /// Submits a launch of `kernel` to the stream of `args` and returns the number of launches, before they have run.
    ///
    /// `launch` is a plan (`&plan`), or a request to plan first: `&request`, or `(&request, &batch)` to split the batch
    /// if one launch is too large.
    ///
    /// A kernel `with_tuning` (feature `profile`) is planned as the guard's profile says, if the request has
    /// a batch, or the kernel is rewritten and the grid is too large. If the profile has no entry for its
    /// shape, or the stored choice is not legal here, the planner chooses: see the profile's counts and
    /// the miss log.
    ///
    /// A stream that is being captured is refused, since the graph would hold neither kernel nor memory.
    /// Within [`capture_launches`](crate::cuda::capture_launches) the launches become nodes of the graph, and
    /// nothing here synchronises or allocates.
    ///
    /// # Errors
    ///
    /// - [`LaunchError`] before anything is launched: no plan is legal, plan, arguments, stream and kernel do not
    ///   belong together, a cooperative grid or a cluster does not fit the device, or the stream is being captured.
    /// - [`LaunchErrorKind::Stopped`] if the driver refuses a launch, or another thread begins to capture the
    ///   stream between two chunks.
    #[inline]
    #[track_caller]
    pub fn launch<'l>(
        &self,
        kernel: &Kernel,
        launch: impl Into<Launch<'l>>,
        args: Args<'_>,
    ) -> Result<u64, LaunchError> {
        let (contract, call_site) = (Contract::Declared, Location::caller());
        let call = GuardedCall { kernel, args: &args, contract, call_site };
        match launch.into() {
            Launch::Plan(plan) => self.launch_plan(&call, plan),
            Launch::Request(request, batch) => {
                let (tuning, limits) = (kernel.tuning(), kernel.limits());
                self.launch_guarded(&call, PlanInput { request, batch, tuning, limits })
            }
        }
    }

    /// Launches a request, with the workspace that its arguments declare.
    #[inline]
    pub(crate) fn launch_guarded(
        &self,
        call: &GuardedCall<'_, '_>,
        input: PlanInput<'_>,
    ) -> Result<u64, LaunchError> {
        if call.args.list.has_workspace() {
            return self.launch_with_workspace(call, &input);
        }
        self.launch_request(call, input)
    }

    /// The launches of a call, with these argument values.
    ///
    /// # Safety
    ///
    /// [`Self::bind`] returned the stream, and the uses that it began have not ended. `values` has the arguments of
    /// the call. A workspace among them has the bytes that the batch declares.
    #[inline]
    pub(crate) unsafe fn submission<'s>(
        &self,
        call: &GuardedCall<'s, '_>,
        stream: Handle,
        values: &'s ArgumentList<'_>,
    ) -> Submission<'s> {
        let GuardedCall { kernel, contract, call_site, .. } = *call;
        // SAFETY:
        // - `bind` found the stream to be of the kernel's context, and made that current.
        // - The caller of `Module::kernel`, or of the unsafe launch, vouches for every launch with arguments of
        //   the declared kinds. These are checked before the launch.
        // - `Memory` is sealed, so memory has cudarc's types and elements. It is of this context, long enough for
        //   the items, and borrowed by the arguments.
        // - `MemoryUses` orders later uses and the deallocation after the launches. It cannot order them after a graph,
        //   so `bind` refuses captures, unless the caller of `capture_launches` or of an unsafe launch vouches
        //   for them. No code of the program runs between its query and the launches.
        // - The kernel keeps its module loaded, and unloading waits for the launches.
        unsafe {
            Submission::new(kernel, stream, Values::Args(values), self.watch(call_site), contract)
        }
    }

    /// Makes the kernel's context current and returns the stream of the arguments, whose memory is in use from now
    /// on, if all belong together.
    #[inline(always)]
    pub(crate) fn bind<'c, 'a>(
        &self,
        call: &GuardedCall<'c, 'a>,
    ) -> Result<(Handle, InUse<'c, 'a>), LaunchError> {
        let GuardedCall { kernel, args, contract, .. } = *call;
        let is_declared = contract == Contract::Declared;
        let Inner { driver, context, ref owned, .. } = *kernel.inner;
        if is_declared && owned.is_none() {
            return Err(LaunchErrorKind::Undeclared { kernel: kernel.name().to_owned() }.into());
        }
        if let Some(what) = self.foreign_to(context, args) {
            return Err(
                LaunchErrorKind::OtherContext { what, kernel: kernel.name().to_owned() }.into()
            );
        }
        let stream = handle(args.stream());
        driver.bind(context)?;
        // SAFETY: `args` hold the stream, of the context that is current now.
        if is_declared && unsafe { is_captured(driver, stream) } {
            return Err(refuse_capture(kernel, args));
        }
        let uses = args.uses();
        if !uses.is_empty() {
            uses.check()?;
            if is_declared && uses.added_in_capture && !may_capture() {
                return Err(kernel.captured());
            }
        }
        Ok((stream, uses.begin()))
    }

    /// The part that does not belong to `context`, if any.
    #[inline]
    fn foreign_to(&self, context: Handle, args: &Args<'_>) -> Option<&'static str> {
        // Handles can be compared, because all contexts are alive here.
        let is_own = |other: &Arc<CudaContext>| other.cu_ctx().addr() == context.addr();
        if !self.context().is_some_and(is_own) {
            return Some("the guard");
        }
        if !is_own(args.stream().context()) {
            return Some("the stream");
        }
        args.uses().is_foreign().then_some("an argument's memory")
    }
}

impl Call for GuardedCall<'_, '_> {
    #[inline]
    fn kernel(&self) -> &Kernel {
        self.kernel
    }

    #[inline(always)]
    fn submit(&self, guard: &Guard, launches: ValidLaunches<'_>) -> Result<u64, LaunchError> {
        let (stream, _in_use) = guard.bind(self)?;
        // SAFETY: `bind` returned the stream, and its uses have begun.
        let submission = unsafe { guard.submission(self, stream, &self.args.list) };
        self.end(submission.submit(launches))
    }
}

impl GuardedCall<'_, '_> {
    /// Ends the uses of the arguments' memory.
    #[inline]
    pub(crate) fn end(&self, launched: Result<u64, LaunchError>) -> Result<u64, LaunchError> {
        let has_captured = self.args.uses().end();
        if has_captured && launched.is_ok() { Err(self.kernel.captured()) } else { launched }
    }
}

/// The error of a launch that would be captured without the caller's promise.
#[cold]
fn refuse_capture(kernel: &Kernel, args: &Args<'_>) -> LaunchError {
    match args.uses().check() {
        // cudarc may have waited for earlier work on the memory, which is not captured.
        Err(error) if !CAPTURE_ERRORS.contains(&error.code) => error.into(),
        _ => kernel.captured(),
    }
}
