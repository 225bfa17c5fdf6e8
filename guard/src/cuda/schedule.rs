//! For crates that schedule launches themselves, such as `gridguard-pipeline`. A [`Scheduler`] makes one launch at a
//! time, with the checks and records of [`Guard::launch`].
//!
//! Use [`Guard::launch`] if a plan's launches follow each other on one stream. With a [`Scheduler`], other work may
//! come between them, on several streams, and [`MemoryUses`](crate::cuda::MemoryUses) orders all of this work among
//! other uses of its memory.

use core::panic::Location;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, sys};
use libloading::Library;

pub use crate::cuda::arguments::uses::InUse;
use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::history::Watch;
use crate::cuda::driver::libraries;
use crate::cuda::driver::library::{
    GRAPHS_NEED, check_symbols, from_cudarc, handle, not_allocated,
};
use crate::cuda::driver::symbols::Driver;
use crate::cuda::error::{CudaError, CudaLibrary, LaunchError, LaunchErrorKind};
use crate::cuda::guard::synchronize;
use crate::cuda::kernel::Kernel;
pub use crate::cuda::launch::capture::may_capture;
use crate::cuda::launch::capture::{RelaxedCapture, discard};
use crate::cuda::launch::{Contract, Submission, Values, prepare};
use crate::guard::Guard;
use crate::plan::arguments::RawArgs;
pub use crate::plan::backoff::AllocationError;
use crate::plan::launches::{Plan, PlannedLaunch};

/// Schedules launches in the context of a guard.
#[derive(Clone, Copy, Debug)]
pub struct Scheduler<'g> {
    guard: &'g Guard,
    driver: &'static Driver,
    context: &'g Arc<CudaContext>,
    watch: Watch,
}

impl<'g> Scheduler<'g> {
    /// A scheduler in the guard's context, which becomes current. Records name `call_site`.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the guard runs on the host, or the context cannot be used.
    pub fn new(guard: &'g Guard, call_site: &'static Location<'static>) -> Result<Self, CudaError> {
        let (context, driver) = (guard.device_context()?, Driver::get()?);
        driver.bind(context.cu_ctx().cast())?;
        Ok(Self { guard, driver, context, watch: guard.watch(call_site) })
    }

    /// The guard.
    pub const fn guard(&self) -> &'g Guard {
        self.guard
    }

    /// The guard's context.
    pub const fn context(&self) -> &'g Arc<CudaContext> {
        self.context
    }

    /// Makes the guard's context current on this thread: call it after code of the program.
    ///
    /// # Errors
    ///
    /// [`DriverError`] of the driver.
    pub fn bind(&self) -> Result<(), DriverError> {
        self.driver.bind(self.context.cu_ctx().cast())
    }

    /// Checks that the kernel belongs to the guard's context, and has declared parameters.
    ///
    /// # Errors
    ///
    /// [`LaunchErrorKind::OtherContext`] or [`LaunchErrorKind::Undeclared`].
    pub fn check_kernel(&self, kernel: &Kernel) -> Result<(), LaunchError> {
        let name = || kernel.name().to_owned();
        match &kernel.inner.owned {
            Some(context) if context == self.context => Ok(()),
            Some(_) => {
                Err(LaunchErrorKind::OtherContext { what: "the guard", kernel: name() }.into())
            }
            None => Err(LaunchErrorKind::Undeclared { kernel: name() }.into()),
        }
    }

    /// Checks that cudarc can capture graphs.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the driver lacks a function.
    pub fn check_graphs(&self) -> Result<(), CudaError> {
        check_symbols(&self.driver.library, "the driver", &GRAPHS_NEED)
    }

    /// Allocates memory on `stream`, not initialised, which is freed there.
    ///
    /// # Errors
    ///
    /// [`AllocationError`] of the driver. Failures that cudarc recorded earlier are
    /// [`AllocationError::Failed`].
    pub fn allocate(
        &self,
        stream: &Arc<CudaStream>,
        bytes: u64,
    ) -> Result<CudaSlice<u8>, AllocationError<DriverError>> {
        // Report failures that cudarc recorded earlier: the allocation would return them, and they might look like its
        // own out-of-memory error.
        let context = stream.context();
        self.driver.bind_cudarc(context).map_err(AllocationError::Failed)?;
        // The driver refuses allocations of no bytes.
        let len = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: any value is a valid `u8`, and the memory is only passed to kernels, whose contract covers
        // uninitialised memory, or as an address.
        let allocated = unsafe { stream.alloc::<u8>(len) };
        allocated.map_err(|error| not_allocated(context, error))
    }

    /// Whether work on `stream` would be captured although no caller promised, with
    /// [`capture_launches`](crate::cuda::capture_launches), to keep its memory alive.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the context has an error. Work on the stream fails too.
    pub fn is_captured(&self, stream: &CudaStream) -> Result<bool, DriverError> {
        if may_capture() {
            return Ok(false);
        }
        self.driver.bind(stream.context().cu_ctx().cast())?;
        // SAFETY: the stream is borrowed, and its context is current.
        unsafe { self.driver.is_capturing(handle(stream)) }
    }

    /// Waits for all launches on `stream`, as [`Guard::synchronize`].
    ///
    /// # Errors
    ///
    /// [`DriverError`] with its suspects, if an earlier launch failed.
    pub fn synchronize(&self, stream: &CudaStream) -> Result<(), DriverError> {
        synchronize(self.driver, stream)
    }

    /// Invalidates and ends the capture of `stream`, and waits for the stream's earlier work. Returns `false` if the
    /// stream joined a capture of another stream, where alone it can be ended. Then all work of the context is done.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the stream's context cannot be used.
    pub fn discard_capture(&self, stream: &CudaStream) -> Result<bool, DriverError> {
        self.driver.bind(stream.context().cu_ctx().cast())?;
        // SAFETY: the stream is borrowed, and its context is current.
        Ok(unsafe { discard(self.driver, handle(stream)) })
    }

    /// Prepares all launches of `plan` with `args` on `stream`: checks the arguments for the batch and the kernel's
    /// signature, opts in to shared memory, and checks occupancy.
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if the plan cannot be launched with these arguments.
    pub fn prepare(
        &self,
        kernel: &Kernel,
        stream: &CudaStream,
        plan: &Plan,
        args: &RawArgs<'_>,
    ) -> Result<(), LaunchError> {
        if !plan.largest_launch().is_for(kernel.limits()) {
            return Err(LaunchErrorKind::OtherKernel { kernel: kernel.name().to_owned() }.into());
        }
        if plan.shares_blocks() {
            args.list.check_values(plan.items())?;
        }
        self.driver.bind(stream.context().cu_ctx().cast())?;
        let (launch, items) = (plan.largest_launch(), plan.batch_items());
        // SAFETY: the stream is borrowed, and its context is current.
        unsafe { prepare(kernel, handle(stream), launch, items, Values::Args(&args.list)) }
    }

    /// Makes one launch of a plan of `launches`, and records it. It begins after earlier work on the stream.
    ///
    /// # Safety
    ///
    /// - [`Self::check_kernel`] accepted the kernel, and [`Self::prepare`] its plan with these arguments and stream.
    ///   The launch is of that plan, for a chunk of its batch.
    /// - The guard's context is current.
    /// - The memory of the arguments keeps the kernel's contract: it has all items of the launch, lives until the
    ///   launch has run, and nothing else uses it meanwhile unless both only read. This also holds for a graph that
    ///   captures the launch.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the driver refuses the launch.
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        stream: &CudaStream,
        PlannedLaunch { chunk, launch, .. }: &PlannedLaunch,
        args: &RawArgs<'_>,
        launches: u64,
    ) -> Result<(), DriverError> {
        let values = Values::Args(&args.list);
        // SAFETY: the stream is borrowed, and its context is the kernel's and current. The caller vouches for the
        // values, also in a graph. The launch does not overlap the one before.
        let submission = unsafe {
            Submission::new(kernel, handle(stream), values, self.watch, Contract::Launched)
        };
        // SAFETY: `prepare` checked the arguments and the largest launch of the plan against the kernel's limits.
        unsafe { submission.send_and_record(chunk, &[], (chunk, launch), false, launches) }
    }

    /// Adds a request to the guard's [counts](Guard::counts): it ran to its end in `launches` launches, or an error
    /// stopped it after them.
    pub fn count(&self, launches: u64, to_its_end: bool) {
        match to_its_end {
            true => self.guard.counters.ran(launches),
            false => self.guard.counters.stopped(launches),
        }
    }
}

/// Calls `work`, which may wait for streams while this thread captures others.
pub fn while_capturing<R>(work: impl FnOnce() -> R) -> R {
    let _relaxed = Driver::get().ok().map(RelaxedCapture::begin);
    work()
}

/// Makes `context` current on this thread, unless it is already. Failures that cudarc recorded in it are not
/// returned.
///
/// # Errors
///
/// [`DriverError`] of the driver.
pub fn bind(context: &CudaContext) -> Result<(), DriverError> {
    match Driver::get() {
        Ok(driver) => driver.bind(context.cu_ctx().cast()),
        Err(_) => {
            let error = cudarc::driver::DriverError(sys::CUresult::CUDA_ERROR_NOT_INITIALIZED);
            Err(driver_error(context, "cuCtxSetCurrent", error))
        }
    }
}

/// Tells observers that `error`, which a run of launches ended with, came from an earlier launch, if it did. Call it
/// after the last call of the driver and without locks: observers run code of the program.
pub fn report(error: &(dyn core::error::Error + 'static)) {
    let launch = || error.downcast_ref::<LaunchError>()?.driver();
    error.downcast_ref::<DriverError>().or_else(launch).inspect(|error| error.report());
}

/// The error that cudarc returned from the driver's `call` in `context`.
pub fn driver_error(
    context: &CudaContext,
    call: &'static str,
    error: cudarc::driver::DriverError,
) -> DriverError {
    from_cudarc(Some(context), call, error)
}

/// Opens the first library that is not a toolkit's stub, and returns what `resolve` makes of it, with the library's
/// name. It tries `names` on the library path, then the toolkits at `CUDA_HOME`, `CUDA_PATH` (absolute paths only) and
/// `/usr/local/cuda`. The library is known by a function `symbol`.
///
/// # Errors
///
/// [`CudaError`] if there is none, or it lacks the function that `resolve` returns.
pub fn find_library<T>(
    library: CudaLibrary,
    names: &[&str],
    symbol: &'static str,
    resolve: impl Fn(Library) -> Result<T, &'static str>,
) -> Result<(T, String), CudaError> {
    libraries::find(library, names, symbol, resolve, |_| false)
}
