//! The methods of [`Guard`] for CUDA devices.

use core::ops::RangeInclusive;
use core::panic::Location;
use std::sync::Arc;

#[cfg(feature = "profile")]
use arrayvec::ArrayVec;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};

use crate::cuda::arguments::Args;
use crate::cuda::arguments::uses::check_order;
use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::history::{ContextHistory, GuardContext, LaunchRecord, Watch};
use crate::cuda::driver::library::{CAPTURE_ERRORS, from_cudarc};
use crate::cuda::driver::nvrtc::{CompileOptions, Compiler};
use crate::cuda::driver::query;
use crate::cuda::driver::symbols::{Driver, Handle};
use crate::cuda::error::{CudaError, Failed, LaunchError, Launches, LoadError, NvrtcError};
use crate::cuda::kernel::Kernel;
use crate::cuda::kernel::module::Module;
#[cfg(feature = "profile")]
use crate::cuda::kernel::tuning::KernelTuning;
use crate::cuda::launch::capture::{is_captured, may_capture};
use crate::cuda::launch::planned::{count, launched_plan};
use crate::cuda::launch::{Submission, prepare};
use crate::guard::{FallbackReason, Guard};
use crate::image::Image;
use crate::launch::request::LaunchRequest;
#[cfg(feature = "profile")]
use crate::launch::validate::check;
#[cfg(feature = "profile")]
use crate::limits::LaunchLimits;
use crate::plan::arguments::KernelArgs;
use crate::plan::backoff::{
    AllocationError, BackoffError, ChunkedRun, WorkspaceLauncher, WorkspaceUse, launch_with_backoff,
};
use crate::plan::batch::BatchAxis;
use crate::plan::choice::Choice;
use crate::plan::launches::{Plan, PlannedLaunch};
#[cfg(feature = "profile")]
use crate::plan::parts::saturated;
#[cfg(feature = "profile")]
use crate::profile::model::MAX_SIZES;

impl Guard {
    /// A guard of device `ordinal`, in its primary context.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if there is no driver, no such device, or the context cannot be created.
    pub fn cuda(ordinal: usize) -> Result<Self, CudaError> {
        let count = query::device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal)
            .map_err(|error| from_cudarc(None, "cuDevicePrimaryCtxRetain", error))?;
        Self::with_context(context)
    }

    /// A guard in the caller's context.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the device cannot be queried.
    pub fn with_context(context: Arc<CudaContext>) -> Result<Self, CudaError> {
        let limits = query::limits_of_context(Driver::get()?, &context)?;
        let mut guard = Self::host(limits);
        guard.cuda = Some(GuardContext::new(context));
        Ok(guard)
    }

    /// A guard of the device with the most free memory, in its primary context.
    pub(crate) fn with_most_free_memory() -> Result<Self, CudaError> {
        let count = query::device_count()?;
        if count == 1 {
            return Self::cuda(0);
        }
        // A device that cannot be queried is skipped as long as another can.
        let mut best = Err(CudaError::NoSuchDevice { ordinal: 0, count });
        for ordinal in 0..count {
            best = match (query::free_memory(ordinal), best) {
                (Ok((free, _)), Ok((most, other))) if most >= free => Ok((most, other)),
                (Ok((free, _)), _) => Ok((free, ordinal)),
                (Err(_), Ok(other)) => Ok(other),
                (Err(error), Err(_)) => Err(error),
            };
        }
        best.and_then(|(_, ordinal)| Self::cuda(ordinal))
    }

    /// The same guard, which synchronises each launch at once if `checked`, so that an error names the
    /// faulting launch instead of a list of suspects. Slow: for debugging. If other processes cause
    /// faults on the same device at the same time, the driver may report a fault one launch late (seen
    /// once in some hundreds of runs, H200, driver 580.159.04).
    ///
    /// By default the environment variable `GRIDGUARD_SYNC` decides, read once: `1` turns it on, also
    /// for launches without a guard. Launches during stream capture cannot be synchronised; they are
    /// counted in [`Counts::unchecked_in_capture`](crate::Counts::unchecked_in_capture).
    #[must_use]
    pub fn with_checked_launches(mut self, checked: bool) -> Self {
        if let Some(cuda) = &mut self.cuda {
            cuda.checked = checked;
        }
        self
    }

    /// Waits for all launches on `stream`. They are no longer suspects of an error that surfaces
    /// later.
    ///
    /// # Errors
    ///
    /// [`CudaError::Driver`] with its suspects, if an earlier launch failed.
    pub fn synchronize(&self, stream: &CudaStream) -> Result<(), CudaError> {
        let (driver, context) = (Driver::get()?, stream.context().cu_ctx().cast());
        driver.bind(context)?;
        let history = ContextHistory::of(context);
        // SAFETY: `stream` holds the stream, whose context is current.
        Ok(unsafe { driver.synchronize(&history, stream.cu_stream().cast()) }?)
    }

    /// The recent launches in the guard's context, the newest first: up to 64 of each of 15 streams,
    /// and 64 of all others; including those through launch builders and raw handles.
    #[must_use]
    pub fn recent_launches(&self) -> Vec<LaunchRecord> {
        self.cuda.as_ref().map(|cuda| cuda.history.launches()).unwrap_or_default()
    }

    /// The context that the guard launches in; `None` on the host.
    #[must_use]
    pub fn context(&self) -> Option<&Arc<CudaContext>> {
        self.cuda.as_ref().map(|cuda| &cuda.context)
    }

    /// The priorities that launches on the device can have, from the highest (the lowest number) to
    /// the lowest; `0..=0` if the device has none, `None` if the driver has no such query.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the query fails, or the guard runs on the host.
    pub fn priorities(&self) -> Result<Option<RangeInclusive<i32>>, CudaError> {
        query::priorities_of(self.device_context()?)
    }

    /// Free and total memory of the guard's device in bytes, at this moment. Freed memory that the
    /// pools of streams retain does not count as free.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the query fails, or the guard runs on the host.
    pub fn free_memory(&self) -> Result<(u64, u64), CudaError> {
        let context = self.device_context()?.cu_ctx().cast();
        Ok(query::free_memory_in(Driver::get()?, context)?)
    }

    /// `batch` with `bytes_per_item` bytes of workspace for each item, within nine tenths of what is
    /// free on the device now: see [`BatchAxis::workspace_within_free`].
    ///
    /// # Errors
    ///
    /// As [`Self::free_memory`].
    pub fn workspace(&self, batch: BatchAxis, bytes_per_item: u64) -> Result<BatchAxis, CudaError> {
        Ok(batch.workspace_within_free(bytes_per_item, self.free_memory()?.0))
    }

    /// Loads an image into the guard's context.
    ///
    /// # Errors
    ///
    /// [`CudaError::Load`] if the image is for another architecture, newer than the driver, or
    /// rejected; and as in [`Self::fallback`] if the guard runs on the host.
    pub fn load(&self, image: &Image) -> Result<Module, CudaError> {
        Module::load(self.device_context()?, image)
    }

    /// Compiles `source` with NVRTC for the guard's device and loads it.
    ///
    /// # Errors
    ///
    /// [`CudaError::Compile`] if there is no NVRTC or the source does not compile, and as
    /// [`Self::load`].
    pub fn compile(&self, name: &str, source: &str) -> Result<Module, CudaError> {
        let options = CompileOptions::new(name, self.limits().compute_capability);
        let compiler = Compiler::find().map_err(NvrtcError::from)?;
        self.load(&compiler.compile(source, &options)?.image)
    }

    /// Submits every launch of `plan` to the stream of `args` and returns their number, before they
    /// have run.
    ///
    /// A stream that is being captured is refused, since the graph would hold neither kernel nor memory.
    /// Within [`capture_launches`](crate::cuda::capture_launches), which says when the driver is asked, the
    /// launches become nodes of the graph, and nothing here synchronises or allocates.
    ///
    /// # Errors
    ///
    /// Before anything is launched, [`LaunchError`] if plan, arguments, stream and kernel do not
    /// belong together, a cooperative grid or a cluster does not fit the device, or the stream is being
    /// captured; [`LaunchError::Stopped`] if the driver refuses a launch, or another thread begins to capture
    /// the stream between two chunks.
    #[track_caller]
    pub fn launch(&self, kernel: &Kernel, plan: &Plan, args: Args<'_>) -> Result<u64, LaunchError> {
        let submission = self.submission(kernel, &args, Location::caller())?;
        let launched = end(kernel, submission.submit(plan), &args);
        launched_plan(kernel, plan, &self.counters, launched)
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
        #[cfg(feature = "profile")]
        if let Some(tuning) = kernel.tuning()
            && let Some(plan) = self.tuned_plan(tuning, request, batch, kernel.limits())
        {
            return self.launch(kernel, &plan, args);
        }
        let call_site = Location::caller();
        let launched = kernel.plan_and_submit(request, batch, |planned| {
            let submission = self.submission(kernel, &args, call_site)?;
            end(kernel, submission.submit_planned(planned), &args)
        });
        count(&self.counters, launched).map_err(Failed::into_error)
    }

    /// Plans `request` and launches it with a workspace that this call allocates, as large as
    /// [`BatchAxis::workspace`] declares: [`Args::workspace`] marks the kernel's parameter. The memory
    /// is allocated on the stream, not initialised, and freed there.
    ///
    /// If an allocation is out of memory, the remaining items are launched in smaller chunks; the
    /// returned [`ChunkedRun`] has their size. Any other failure ends the run. Chunks never overlap,
    /// since they may share the workspace.
    ///
    /// A [`dependent`](LaunchRequest::dependent) request is validated as such, but launched as an
    /// ordinary one: the kernel might clear its workspace before it waits, while the launch before
    /// still uses that memory, which the stream's pool reuses as soon as it is freed.
    ///
    /// During stream capture, within [`capture_launches`](crate::cuda::capture_launches), allocations and
    /// launches become nodes of the graph, in the chunks that the planner chooses: memory is reserved when
    /// the graph is instantiated or launched, which then fails if there is too little. Cap the workspace by
    /// what will be free, as [`Self::workspace`] does.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Backoff`] with what was done, if the smallest chunk does not fit, an
    /// allocation fails for another reason, or the driver refuses a launch;
    /// [`LaunchError::Unsupported`] during stream capture on a device without memory pools, where the
    /// memory would be freed before the graph runs; and as [`Self::plan_and_launch`]. After an error
    /// during capture discard the graph: it holds what was captured before.
    #[track_caller]
    pub fn launch_with_workspace(
        &self,
        kernel: &Kernel,
        request: &LaunchRequest,
        batch: &BatchAxis,
        choice: Choice,
        usage: WorkspaceUse,
        args: Args<'_>,
    ) -> Result<ChunkedRun, LaunchError> {
        let watch = self.watch(Location::caller());
        let plan = self.plan(request, Some(batch), &kernel.limits().without_forms(), choice)?;
        let owner = args.workspace_stream()?;
        let stream = self.bind(kernel, &args)?;
        let template = args.values();
        let placed = template.with_workspace_at(WORKSPACE_ALIGNMENT);
        if plan.shares_blocks() {
            // Even one launch may be split, if its workspace does not fit.
            template.check_values(plan.items())?;
        }
        let items = plan.batch_items();
        // SAFETY: `owner` holds the stream, whose context `bind` made current.
        unsafe { prepare(kernel, stream, plan.largest_launch(), items, &placed) }?;
        // SAFETY: as above.
        let is_capturing = || unsafe { kernel.inner().driver.is_capturing(stream) };
        if !owner.context().has_async_alloc() && is_capturing()? {
            let what = "workspaces during stream capture";
            return Err(LaunchError::Unsupported { symbol: "cuMemAllocAsync", what });
        }
        let request = &LaunchRequest { dependent: false, ..*request };
        let mut launcher = StreamLauncher { kernel, owner, stream, template, watch };
        let run =
            launch_with_backoff(request, batch, kernel.limits(), choice, usage, &mut launcher);
        if args.uses().end() && run.is_ok() {
            return Err(kernel.captured());
        }
        match &run {
            Ok(run) => self.counters.ran(run.launches),
            Err(BackoffError::Invalid(violations)) => self.counters.rejected(violations),
            Err(error) => {
                let launched = error.failure().map_or(0, |(done, _)| done.launches);
                self.counters.stopped(launched);
            }
        }
        Ok(run?)
    }

    /// The context that the guard launches in, or why it runs on the host.
    pub(crate) fn device_context(&self) -> Result<&Arc<CudaContext>, CudaError> {
        self.context().ok_or_else(|| match self.fallback() {
            Some(FallbackReason::Cuda(reason)) => reason.clone(),
            _ => LoadError::NoDevice.into(),
        })
    }

    /// The plan that the profile chooses; `None` where it has no entry for the shape, or its choice is
    /// not legal here, which is counted. Allocates nothing, and takes no lock but the miss log's.
    #[cfg(feature = "profile")]
    pub(crate) fn tuned_plan(
        &self,
        tuning: &KernelTuning<'_>,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        limits: &LaunchLimits,
    ) -> Option<Plan> {
        let items = match batch {
            Some(batch) => batch.items(),
            // There is something to choose for a rewritten kernel alone.
            None if limits.forms().is_none() || check(request, limits).is_ok() => return None,
            None => saturated(request.grid.volume()),
        };
        let mut sizes = ArrayVec::<u64, MAX_SIZES>::new();
        // No entry has more sizes, so a longer shape is looked up as it is and found missing.
        let sizes = match sizes.try_extend_from_slice(tuning.sizes()) {
            Ok(()) => sizes.as_mut_slice(),
            Err(_) => &mut tuning.sizes().to_vec(),
        };
        if let Some(first) = sizes.first_mut() {
            *first = items;
        }
        let tuned = self.tuned(tuning.key(), tuning.names(), sizes);
        tuned.entry?;
        let plan = Plan::new(request, batch, limits, tuned.choice());
        if let (Err(_), Some(profile)) = (&plan, self.profile()) {
            profile.refused();
        }
        plan.ok()
    }

    /// Launches of `kernel` with `args`, if all belong together. Makes the kernel's context current.
    #[inline]
    fn submission<'a>(
        &self,
        kernel: &'a Kernel,
        args: &'a Args<'_>,
        call_site: &'static Location<'static>,
    ) -> Result<Submission<'a>, LaunchError> {
        let (stream, watch) = (self.bind(kernel, args)?, self.watch(call_site));
        // SAFETY: `bind` found the stream to be of the kernel's context, which it made current.
        // `Module::kernel`'s caller vouches for every launch with arguments of the declared kinds, which
        // are checked before it: memory is cudarc's own types with their own elements, since `Memory` is
        // sealed, of this context, long enough for the items, and borrowed by `args`. When these end, `Uses`
        // orders later uses and the deallocation after the launches. It cannot order them after a graph:
        // `bind` refused captures, unless `capture_launches`'s caller vouches for them, and no code of the
        // program runs between its query and the launches. `capture_launches` says what other threads may do.
        // The kernel keeps its module loaded, and unloading waits for the launches.
        Ok(unsafe { Submission::uncaptured(kernel, stream, args.values(), watch) })
    }

    #[inline]
    pub(crate) const fn watch(&self, call_site: &'static Location<'static>) -> Watch {
        let checked = matches!(&self.cuda, Some(GuardContext { checked: true, .. }));
        Watch { call_site, checked }
    }

    /// Makes the kernel's context current and returns the stream of `args`, if all belong together.
    #[inline]
    fn bind(&self, kernel: &Kernel, args: &Args<'_>) -> Result<Handle, LaunchError> {
        if let Some(what) = self.foreign_to(kernel, args) {
            return Err(other_context(what, kernel));
        }
        let (driver, stream) = (kernel.inner().driver, args.stream().cu_stream().cast());
        driver.bind(kernel.inner().context)?;
        // SAFETY: `args` hold the stream, of the context that is current now.
        if unsafe { is_captured(driver, stream) } {
            return Err(refuse_capture(kernel, args));
        }
        if !args.uses().is_empty() {
            check_order(args.uses())?;
            if args.uses().were_added_in_capture() && !may_capture() {
                return Err(kernel.captured());
            }
        }
        args.uses().begin();
        Ok(stream)
    }

    /// What does not belong to the context of `kernel`, if anything.
    #[inline]
    fn foreign_to(&self, kernel: &Kernel, args: &Args<'_>) -> Option<&'static str> {
        let own = kernel.inner().owned.as_ref();
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
fn end(kernel: &Kernel, launched: Launches, args: &Args<'_>) -> Launches {
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

#[cold]
pub(crate) fn other_context(what: &'static str, kernel: &Kernel) -> LaunchError {
    let name = kernel.name().to_owned();
    match &kernel.inner().owned {
        Some(_) => LaunchError::OtherContext { what, kernel: name },
        None => LaunchError::Undeclared { kernel: name },
    }
}

impl From<BackoffError<DriverError>> for LaunchError {
    fn from(error: BackoffError<DriverError>) -> Self {
        match error {
            BackoffError::Invalid(violations) => Self::Invalid(violations),
            error => Self::Backoff(Box::new(error)),
        }
    }
}

/// Launches with a workspace that is allocated on their stream.
struct StreamLauncher<'a> {
    kernel: &'a Kernel,
    owner: &'a Arc<CudaStream>,
    /// The handle of `owner`, which `bind` found to be a stream of the kernel's context.
    stream: Handle,
    template: &'a KernelArgs<'a>,
    watch: Watch,
}

impl WorkspaceLauncher for StreamLauncher<'_> {
    /// Its address, and the memory, which is freed in the order of the stream.
    type Workspace = (u64, CudaSlice<u8>);
    type Error = DriverError;

    fn allocate(&mut self, bytes: u64) -> Result<Self::Workspace, AllocationError<DriverError>> {
        let driver = self.kernel.inner().driver;
        let mut memory = driver.allocate(self.owner, bytes)?;
        // All uses are on the stream that frees it, so the use need not be recorded.
        let (address, _) = memory.device_ptr_mut(self.owner);
        Ok((address, memory))
    }

    fn launch(
        &mut self,
        planned: &PlannedLaunch,
        launches: u64,
        (address, _): &mut Self::Workspace,
    ) -> Result<(), DriverError> {
        let args = self.template.with_workspace_at(*address);
        let Self { kernel, stream, watch, .. } = *self;
        let PlannedLaunch { chunk, launch, .. } = planned;
        // SAFETY: `bind` found the stream to be of the kernel's context and made that current. The arguments are
        // as in `submission`. The workspace has the bytes that the batch declares, and is freed later.
        let submission = unsafe { Submission::uncaptured(kernel, stream, &args, watch) };
        // SAFETY: as above.
        unsafe { submission.check_capture() }?;
        // SAFETY: planned for this kernel; `prepare` checked the arguments and the largest launch.
        unsafe { submission.launch(chunk, launch, launch.is_dependent(), launches) }
    }
}

/// The alignment in bytes that CUDA guarantees for every allocation: a kernel that needs more for its
/// workspace is rejected.
const WORKSPACE_ALIGNMENT: u64 = 256;
