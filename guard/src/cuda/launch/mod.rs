//! Submits validated launches to a stream, and records them.

pub(crate) mod capture;
pub(crate) mod planned;
pub(crate) mod raw;
#[cfg(feature = "ptx")]
pub(crate) mod rewritten;
pub(crate) mod send;

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use crate::cuda::arguments::packed::Packed;
use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::history::Watch;
use crate::cuda::driver::symbols::Handle;
use crate::cuda::error::{LaunchError, Launches};
use crate::cuda::kernel::{Inner, Kernel};
use crate::cuda::launch::capture::{is_captured, refuse_rest};
use crate::cuda::launch::planned::Planned;
use crate::cuda::launch::send::send;
use crate::launch::request::LaunchRequest;
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::validate;
use crate::plan::arguments::KernelArgs;
use crate::plan::chunks::Chunk;
use crate::plan::launches::{Plan, PlannedLaunch};
use crate::plan::run::{Launcher, PartialRun, run};

/// A kernel and a stream that it is launched on: what guards and raw kernels share.
///
/// Launching neither synchronizes, unless launches are checked, nor allocates, so that it works while the
/// stream is captured.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) stream: Handle,
    watch: Watch,
}

/// Launches with the same arguments.
pub(crate) struct Submission<'a> {
    pub(crate) to: Target<'a>,
    pub(crate) args: &'a KernelArgs<'a>,
    /// Whether the caller did not promise to keep kernel and memory for a graph.
    refuses_captures: bool,
}

impl<'a> Target<'a> {
    /// # Safety
    ///
    /// For as long as it is launched through it, `stream` is a live stream of the kernel's context, or null
    /// for its default one, and that context is current. A kernel with dependent launches or overlapping
    /// chunks keeps its contract of [`Kernel::with_dependent_launches`] or
    /// [`Kernel::with_overlapping_chunks`].
    #[inline]
    pub(crate) const unsafe fn new(kernel: &'a Kernel, stream: Handle, watch: Watch) -> Self {
        Self { kernel, stream, watch }
    }

    /// Launches a request without a batch, with the arguments that `params` points to.
    ///
    /// # Safety
    ///
    /// `params` points to as many values as the function has parameters, which meet the kernel's contract.
    #[inline]
    pub(crate) unsafe fn validate_and_launch(
        &self,
        request: &LaunchRequest,
        params: *mut *mut c_void,
    ) -> Launches {
        // By reference: a copy of what was just written waits for the writes.
        match &ValidLaunch::plain(request, self.kernel.limits()) {
            // SAFETY: this function's contract.
            Some(launch) => unsafe { self.launch_one(launch, params) },
            None => {
                let valid = validate(request, self.kernel.limits());
                let launch = valid.map_err(|violations| self.kernel.refusal(violations))?;
                // SAFETY: this function's contract.
                unsafe { self.launch_one(&launch, params) }
            }
        }
    }

    /// # Safety
    ///
    /// As [`Self::validate_and_launch`]; the launch was validated for the kernel.
    #[inline]
    unsafe fn launch_one(&self, launch: &ValidLaunch, params: *mut *mut c_void) -> Launches {
        // SAFETY: stream and context by the contract of `new`.
        unsafe { prepare_launch(self.kernel, self.stream, launch) }?;
        let chunk = Chunk::only(1);
        let overlap = launch.is_dependent() && self.may_overlap();
        // SAFETY: validated, and prepared just now; the rest is this function's contract.
        match unsafe { self.launch_with(params, &chunk, launch, overlap, 1) } {
            Ok(()) => Ok(1),
            Err(source) => Err(stopped_at_once(chunk.items, source).into()),
        }
    }

    /// Makes one launch of a plan of `launches` with the arguments that `params` points to, which may
    /// `overlap` the one before, and records it.
    ///
    /// # Safety
    ///
    /// The launch was validated against the limits of the kernel, and [`prepare_launch`] called with the
    /// largest launch of the plan. A launch that is not dependent overlaps only an earlier chunk of its plan,
    /// and only where the kernel's chunks may and drivers can make such a launch. `params` points to as many
    /// values as the function has parameters, which meet the kernel's contract.
    #[inline]
    pub(crate) unsafe fn launch_with(
        &self,
        params: *mut *mut c_void,
        chunk: &Chunk,
        launch: &ValidLaunch,
        overlap: bool,
        launches: u64,
    ) -> Result<(), DriverError> {
        let (kernel, stream) = (self.kernel.inner(), self.stream);
        kernel.history.prefetch();
        // SAFETY: stream and context by the contract of `new`, the rest by this function's.
        let (call, status) =
            unsafe { send(kernel.driver, kernel.function, stream, launch, overlap, params) };
        let sent = kernel.driver.check(call, status);
        sent.map_err(|error| error.of_launch(&kernel.limits))?;
        // SAFETY: stream and context by the contract of `new`.
        unsafe { accepted(kernel, stream, chunk, launch, launches, self.watch) }
    }

    /// Whether a launch that may overlap the one before really may: older drivers cannot capture that.
    #[inline]
    pub(crate) fn may_overlap(&self) -> bool {
        let kernel = self.kernel.inner();
        // SAFETY: the stream is alive and its context current, by the contract of `new`.
        let captured = || unsafe { kernel.driver.is_capturing(self.stream) };
        kernel.captures_overlap || matches!(captured(), Ok(false))
    }
}

impl<'a> Submission<'a> {
    /// # Safety
    ///
    /// As [`Target::new`], and the arguments meet the kernel's contract. If the stream is being captured, they
    /// do so whenever the graph runs.
    #[inline]
    pub(crate) const unsafe fn new(
        kernel: &'a Kernel,
        stream: Handle,
        args: &'a KernelArgs<'a>,
        watch: Watch,
    ) -> Self {
        // SAFETY: this function's contract.
        Self { to: unsafe { Target::new(kernel, stream, watch) }, args, refuses_captures: false }
    }

    /// As [`Self::new`], for a stream that is not being captured, or within
    /// [`capture_launches`](crate::cuda::capture_launches).
    ///
    /// # Safety
    ///
    /// As [`Self::new`], but for graphs.
    #[inline]
    pub(crate) const unsafe fn uncaptured(
        kernel: &'a Kernel,
        stream: Handle,
        args: &'a KernelArgs<'a>,
        watch: Watch,
    ) -> Self {
        // SAFETY: this function's contract; `check_capture` refuses what would be captured.
        Self { refuses_captures: true, ..unsafe { Self::new(kernel, stream, args, watch) } }
    }

    /// The same, of another function that takes the same arguments in the same way.
    #[cfg(feature = "ptx")]
    pub(crate) const fn of<'b>(&self, kernel: &'b Kernel) -> Submission<'b>
    where
        'a: 'b,
    {
        let Self { to, args, refuses_captures } = *self;
        Submission { to: Target { kernel, ..to }, args, refuses_captures }
    }

    #[inline]
    pub(crate) fn submit_planned(&self, planned: Planned<'_>) -> Launches {
        match planned {
            Planned::Whole(launch) => self.submit_one(&Chunk::only(1), launch, None),
            Planned::Plan(plan) => self.submit(plan),
        }
    }

    /// Submits every launch of `plan`.
    #[inline]
    pub(crate) fn submit(&self, plan: &Plan) -> Launches {
        if !plan.largest_launch().is_for(self.to.kernel.limits()) {
            #[cfg(feature = "ptx")]
            if let Some(form) = self.to.kernel.form_of(plan) {
                return self.submit_form(form, plan);
            }
            return Err(other_kernel(self.to.kernel).into());
        }
        if plan.chunks().launches() == 1 {
            let chunk = Chunk::only(plan.items());
            return self.submit_one(&chunk, plan.largest_launch(), plan.batch_items());
        }
        self.submit_chunks(plan)
    }

    /// Submits a plan for this kernel of several launches; out of line, to keep single launches short.
    #[inline(never)]
    fn submit_chunks(&self, plan: &Plan) -> Launches {
        if plan.shares_blocks() {
            self.args.check_values(plan.items())?;
        }
        // SAFETY: stream and context by the contract of `new`.
        unsafe {
            prepare(
                self.to.kernel,
                self.to.stream,
                plan.largest_launch(),
                plan.batch_items(),
                self.args,
            )
        }?;
        let mut launcher = ChunkLauncher { submission: self, launches: plan.len() };
        Ok(run(plan, &mut launcher)?)
    }

    /// Submits the only launch of a plan, validated for this kernel: the common case.
    #[inline]
    fn submit_one(&self, chunk: &Chunk, launch: &ValidLaunch, items: Option<u64>) -> Launches {
        // SAFETY: stream and context by the contract of `new`.
        unsafe { prepare(self.to.kernel, self.to.stream, launch, items, self.args) }?;
        // SAFETY: `launch` was validated against the kernel's limits, and prepared just now.
        match unsafe { self.launch(chunk, launch, launch.is_dependent(), 1) } {
            Ok(()) => Ok(1),
            Err(source) => Err(stopped_at_once(chunk.items, source).into()),
        }
    }

    /// Refuses further launches of a plan if another thread has begun to capture the stream.
    ///
    /// # Safety
    ///
    /// As [`Target::new`].
    #[inline]
    pub(crate) unsafe fn check_capture(&self) -> Result<(), DriverError> {
        let (driver, stream) = (self.to.kernel.inner().driver, self.to.stream);
        // SAFETY: this function's contract.
        if self.refuses_captures && unsafe { is_captured(driver, stream) } {
            // SAFETY: as above.
            return Err(unsafe { refuse_rest(driver, stream) });
        }
        Ok(())
    }

    /// Makes one launch of a plan of `launches`, which may `overlap` the one before, and records it.
    ///
    /// # Safety
    ///
    /// The launch was validated against the limits of the kernel, and [`prepare`] called with the
    /// arguments and the largest launch of the plan. A launch that is not dependent overlaps only an
    /// earlier chunk of its plan, and only where the kernel's chunks may.
    #[inline]
    pub(crate) unsafe fn launch(
        &self,
        chunk: &Chunk,
        launch: &ValidLaunch,
        overlap: bool,
        launches: u64,
    ) -> Result<(), DriverError> {
        let overlap = overlap && self.to.may_overlap();
        let mut packed = Packed::new();
        let params = packed.fill(self.args, chunk);
        // SAFETY: this function's contract; `prepare` checked the arguments against the signature, and
        // `params` points to as many values.
        unsafe { self.to.launch_with(params, chunk, launch, overlap, launches) }
    }
}

/// Submits chunk after chunk of a prepared plan.
struct ChunkLauncher<'a> {
    submission: &'a Submission<'a>,
    /// Launches of the plan.
    launches: u64,
}

impl Launcher for ChunkLauncher<'_> {
    type Error = DriverError;

    #[inline]
    fn launch(
        &mut self,
        PlannedLaunch { chunk, launch, .. }: &PlannedLaunch,
    ) -> Result<(), DriverError> {
        // The first chunk waits for earlier work on the stream, unless it is dependent.
        let overlaps_chunks = self.submission.to.kernel.overlaps_chunks() && chunk.index > 0;
        let overlap = launch.is_dependent() || overlaps_chunks;
        if chunk.index > 0 {
            // SAFETY: stream and context by the contract of `Submission::new`.
            unsafe { self.submission.check_capture() }?;
        }
        // SAFETY: `submit_chunks` prepared the plan, which `submit` found to be for this kernel; only a
        // kernel whose chunks may overlap has them overlap.
        unsafe { self.submission.launch(chunk, launch, overlap, self.launches) }
    }
}

/// Checks the arguments for the `items` of the batch, if any, opts in to shared memory and checks
/// occupancy before the first launch on `stream`.
///
/// # Safety
///
/// The kernel's context is current, and `stream` a live stream of it or null.
#[inline]
pub(crate) unsafe fn prepare(
    kernel: &Kernel,
    stream: Handle,
    launch: &ValidLaunch,
    items: Option<u64>,
    args: &KernelArgs<'_>,
) -> Result<(), LaunchError> {
    args.check(items)?;
    kernel.inner().signature.check(kernel.name(), args)?;
    // SAFETY: this function's contract.
    unsafe { prepare_launch(kernel, stream, launch) }
}

/// As [`prepare`], but for the arguments.
///
/// # Safety
///
/// As [`prepare`].
#[inline]
unsafe fn prepare_launch(
    kernel: &Kernel,
    stream: Handle,
    launch: &ValidLaunch,
) -> Result<(), LaunchError> {
    kernel.inner().opt_in(launch.dynamic_shared_bytes())?;
    if launch.is_plain() {
        return Ok(());
    }
    // SAFETY: this function's contract.
    unsafe { prepare_extras(kernel, stream, launch) }
}

/// Checks launches that request more than grid, block and shared memory.
///
/// # Safety
///
/// As [`prepare`].
#[cold]
unsafe fn prepare_extras(
    kernel: &Kernel,
    stream: Handle,
    launch: &ValidLaunch,
) -> Result<(), LaunchError> {
    let needs_launch_kernel_ex = if launch.is_dependent() {
        Some("dependent launches")
    } else if launch.priority().is_some() {
        Some("launch priorities")
    } else {
        launch.cluster().map(|_| "clusters")
    };
    if launch.is_dependent() && !kernel.takes_dependent_launches() {
        return Err(LaunchError::NotDependent { kernel: kernel.name().to_owned() });
    }
    if let Some(what) = needs_launch_kernel_ex
        && kernel.inner().driver.launch_kernel_ex.is_none()
    {
        return Err(LaunchError::Unsupported { symbol: "cuLaunchKernelEx", what });
    }
    if !launch.is_co_resident() {
        return Ok(());
    }
    // SAFETY: this function's contract.
    unsafe { kernel.inner().check_occupancy(stream, launch) }
}

/// Records a launch that the driver accepted, one of `launches`, and synchronises it if it is to be
/// checked.
///
/// # Safety
///
/// `stream` is a live stream of the kernel's context, or null; the context is current.
#[inline]
pub(crate) unsafe fn accepted(
    kernel: &Inner,
    stream: Handle,
    chunk: &Chunk,
    launch: &ValidLaunch,
    launches: u64,
    watch: Watch,
) -> Result<(), DriverError> {
    kernel.history.record(kernel.number, stream, chunk, launch, launches, watch.call_site);
    if !watch.checked {
        return Ok(());
    }
    // SAFETY: this function's contract.
    unsafe { check_launch(kernel, stream) }
}

/// Synchronises a launch that was just recorded, unless its stream is being captured.
///
/// # Safety
///
/// As [`accepted`].
#[cold]
unsafe fn check_launch(kernel: &Inner, stream: Handle) -> Result<(), DriverError> {
    let (driver, history) = (kernel.driver, &kernel.history);
    // SAFETY: the stream is alive, by this function's contract.
    let synchronized = match unsafe { driver.is_capturing(stream) } {
        Ok(true) => {
            history.unchecked_in_capture.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        // SAFETY: as above, and the context is current.
        Ok(false) => unsafe { driver.synchronize(history, stream) },
        // A fault that is quick enough already surfaces at the query.
        Err(error) => Err(error),
    };
    synchronized.map_err(DriverError::after_checked_launch)?;
    history.checked.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

#[cold]
pub(crate) fn other_kernel(kernel: &Kernel) -> LaunchError {
    LaunchError::OtherKernel { kernel: kernel.name().to_owned() }
}

#[cold]
fn stopped_at_once(items: u64, source: DriverError) -> LaunchError {
    PartialRun { chunk: 0, launches: 1, items_done: 0, items, source }.into()
}
