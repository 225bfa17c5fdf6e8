//! Guarded launches of functions by their raw handles, for code on another CUDA binding or in C++.

use core::ffi::c_void;
use core::panic::Location;

use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::history::Watch;
use crate::cuda::driver::library::Pushed;
use crate::cuda::driver::log;
use crate::cuda::driver::symbols::Driver;
use crate::cuda::error::{CudaError, Failed, LaunchError};
use crate::cuda::kernel::Kernel;
use crate::cuda::launch::planned::{count, launched_plan};
use crate::cuda::launch::{Submission, Target};
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::limits::{LaunchLimits, OccupancyLimits};
use crate::plan::arguments::KernelArgs;
use crate::plan::batch::BatchAxis;
use crate::plan::launches::Plan;
use crate::plan::signature::Signature;
#[cfg(feature = "profile")]
use crate::profile::model::Key;
use crate::record::counters::Counts;

/// A function that other code loaded, given by its handles.
///
/// ```no_run
/// # fn handles() -> (*mut std::ffi::c_void, *mut std::ffi::c_void, *mut std::ffi::c_void) { unreachable!() }
/// use gridguard::cuda::RawKernel;
/// use gridguard::{Axis, BatchAxis, Dim3, KernelArgs, LaunchRequest};
///
/// let (context, function, stream) = handles(); // CUcontext, CUfunction, CUstream
/// // SAFETY: both handles are alive, and the function was loaded in this context.
/// let kernel = unsafe { RawKernel::from_handles(context, function, "attention")? };
/// let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
/// let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);
/// let mut args = KernelArgs::new();
/// args.items_at(0x7f00_0000_0000, 10_240).length();
/// // SAFETY: the stream is of the same context, and the arguments are what the kernel takes.
/// unsafe { kernel.plan_and_launch(stream, &request, Some(&batch), &args)? };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RawKernel(Kernel);

impl RawKernel {
    /// Queries the limits of `function` (a `CUfunction`, or a `CUkernel` cast to one) in `context`
    /// (a `CUcontext`). Messages call it `name`.
    ///
    /// The calling thread's current context is the same afterwards.
    ///
    /// # Safety
    ///
    /// Both handles are alive for as long as this value and its clones are, and `function` was
    /// loaded in `context`.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if there is no driver, or a query fails.
    pub unsafe fn from_handles(
        context: *mut c_void,
        function: *mut c_void,
        name: &str,
    ) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let _current = Pushed::new(driver, context)?;
        // SAFETY: this function's contract, and the context is current. The caller keeps the handles
        // alive.
        let kernel = unsafe {
            let function = driver.function_of(function);
            // For one of both kinds of handle, the driver has logged an error.
            log::discard(driver);
            Kernel::from_parts(driver, function, context, name.to_owned(), None, None, ())?
        };
        // SAFETY: `launch` and `plan_and_launch` require the same of each dependent launch.
        Ok(Self(unsafe { kernel.with_dependent_launches() }))
    }

    /// As [`Self::from_handles`], with the name that the driver knows: that of a `CUfunction` from
    /// `cuFuncGetName`, that of a `CUkernel` from `cuKernelGetName`. Drivers before CUDA 12.3 have
    /// neither; the name is then `<unnamed>`.
    ///
    /// # Safety
    ///
    /// As [`Self::from_handles`].
    ///
    /// # Errors
    ///
    /// As [`Self::from_handles`].
    pub unsafe fn named_by_driver(
        context: *mut c_void,
        function: *mut c_void,
    ) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let _current = Pushed::new(driver, context)?;
        // SAFETY: this function's contract.
        unsafe { Self::from_handles(context, function, &driver.name_of(function)) }
    }

    /// As [`Kernel::with_tuning`], for [`Self::plan_and_launch_with`].
    #[cfg(feature = "profile")]
    #[must_use]
    pub fn with_tuning(self, key: Key, items: &'static str, sizes: &[(&'static str, u64)]) -> Self {
        Self(self.0.with_tuning(key, items, sizes))
    }

    /// The function's name in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// What the function allows on its device.
    #[must_use]
    pub fn limits(&self) -> &LaunchLimits {
        self.0.limits()
    }

    /// The sizes of the function's parameters in bytes, in order; `None` if the driver does not know them
    /// (before CUDA 12.4).
    #[must_use]
    pub fn parameter_sizes(&self) -> Option<&[usize]> {
        match &self.0.inner().signature {
            Signature::Sizes(sizes) => Some(sizes),
            Signature::Declared(_) | Signature::Unknown => None,
        }
    }

    /// As [`Kernel::occupancy`]. The calling thread's current context is the same afterwards.
    ///
    /// # Errors
    ///
    /// [`DriverError`] if the query fails.
    pub fn occupancy(&self, request: &LaunchRequest) -> Result<OccupancyLimits, DriverError> {
        let _current = self.push()?;
        self.0.inner().occupancy(request)
    }

    /// What was counted in the context of launches without a [`Guard`](crate::Guard): see
    /// [`counts_without_guard`](crate::cuda::counts_without_guard).
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.inner().history.counts_without_guard()
    }

    /// Plans `request` under the function's limits and launches it: a legal request in one launch, one
    /// that is too large along the axis of `batch` in chunks. Otherwise as [`Self::launch`].
    ///
    /// # Safety
    ///
    /// As [`Self::launch`].
    ///
    /// # Errors
    ///
    /// [`LaunchError::Invalid`] if no plan is legal, and as [`Self::launch`].
    #[track_caller]
    pub unsafe fn plan_and_launch(
        &self,
        stream: *mut c_void,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        args: &KernelArgs<'_>,
    ) -> Result<u64, LaunchError> {
        let watch = Watch::here();
        let launched = self.0.plan_and_submit(request, batch, |planned| {
            let _current = self.push()?;
            // SAFETY: this function's contract, and the context is current.
            unsafe { Submission::new(&self.0, stream, args, watch) }.submit_planned(planned)
        });
        let counters = &self.0.inner().history.without_guard;
        count(counters, launched).map_err(Failed::into_error)
    }

    /// Validates `request` under the function's limits, and launches it with the values that `params` points
    /// to, as `cuLaunchKernel` takes them. The calling thread's current context is the same afterwards.
    ///
    /// # Safety
    ///
    /// As [`Self::launch`]: `params` points to the addresses of as many values as the function has
    /// parameters, of their sizes.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Invalid`] if the request is not legal, and as [`Self::launch`].
    #[track_caller]
    pub unsafe fn validate_and_launch(
        &self,
        stream: *mut c_void,
        request: &LaunchRequest,
        params: *mut *mut c_void,
    ) -> Result<(), LaunchError> {
        let current = self.push()?;
        // SAFETY: this function's contract, and the context is current.
        let launched = unsafe {
            Target::new(&self.0, stream, Watch::here()).validate_and_launch(request, params)
        };
        drop(current);
        let counters = &self.0.inner().history.without_guard;
        count(counters, launched).map_err(Failed::into_error)?;
        Ok(())
    }

    /// As [`Self::plan_and_launch`], counted and checked by `guard`, and planned by its profile if the
    /// kernel is [`Self::with_tuning`].
    ///
    /// # Safety
    ///
    /// As [`Self::launch`].
    ///
    /// # Errors
    ///
    /// [`LaunchError::OtherContext`] if the guard is of another context, and as
    /// [`Self::plan_and_launch`].
    #[track_caller]
    pub unsafe fn plan_and_launch_with(
        &self,
        guard: &Guard,
        stream: *mut c_void,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        args: &KernelArgs<'_>,
    ) -> Result<u64, LaunchError> {
        #[cfg(feature = "profile")]
        if let (Some(tuning), Some(batch)) = (self.0.tuning(), batch)
            && let Some(plan) = guard.tuned_plan(tuning, request, Some(batch), self.limits())
        {
            // SAFETY: this function's contract.
            return unsafe { guard.launch_raw(&self.0, stream, &plan, args) };
        }
        let watch = guard.watch(Location::caller());
        let launched = self.0.plan_and_submit(request, batch, |planned| {
            let _current = guard.push(&self.0)?;
            // SAFETY: this function's contract, and the context is current.
            unsafe { Submission::new(&self.0, stream, args, watch) }.submit_planned(planned)
        });
        count(&guard.counters, launched).map_err(Failed::into_error)
    }

    /// Submits every launch of `plan` to `stream` (a `CUstream`, null for the default one) and returns
    /// their number. The calling thread's current context is the same afterwards.
    ///
    /// # Safety
    ///
    /// `stream` is a live stream of the kernel's context, `args` are what the function takes, and the
    /// memory behind them lives until the launches have run; where the stream is being captured, until the
    /// graph can run no more, as the function does. A function with dependent launches meets the contract
    /// of [`Kernel::with_dependent_launches`].
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if plan or arguments do not fit the kernel, or the driver refuses a launch.
    #[track_caller]
    pub unsafe fn launch(
        &self,
        stream: *mut c_void,
        plan: &Plan,
        args: &KernelArgs<'_>,
    ) -> Result<u64, LaunchError> {
        let current = self.push()?;
        // SAFETY: this function's contract, and the context is current.
        let submission = unsafe { Submission::new(&self.0, stream, args, Watch::here()) };
        let launched = submission.submit(plan);
        drop(current);
        launched_plan(&self.0, plan, &self.0.inner().history.without_guard, launched)
    }

    /// Waits for all launches on `stream` (a `CUstream`, null for the default one). They are no longer
    /// suspects of an error that surfaces later. The calling thread's current context is the same
    /// afterwards.
    ///
    /// # Safety
    ///
    /// `stream` is a live stream of the kernel's context.
    ///
    /// # Errors
    ///
    /// [`DriverError`] with its suspects, if an earlier launch failed.
    pub unsafe fn synchronize(&self, stream: *mut c_void) -> Result<(), DriverError> {
        let _current = self.push()?;
        let inner = self.0.inner();
        // SAFETY: this function's contract, and the context is current.
        unsafe { inner.driver.synchronize(&inner.history, stream) }
    }

    /// Makes the kernel's context current until the result is dropped.
    fn push(&self) -> Result<Pushed, DriverError> {
        let inner = self.0.inner();
        Pushed::new(inner.driver, inner.context)
    }
}

impl Guard {
    /// As [`Self::launch`], with arguments by address and the handle of a stream (a `CUstream`, null for
    /// the default one): for memory and streams of another CUDA binding. The calling thread's current
    /// context is the same afterwards.
    ///
    /// A stream that is being captured is not refused.
    ///
    /// # Safety
    ///
    /// As [`RawKernel::launch`].
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if plan, arguments, guard and kernel do not belong together, or the driver refuses
    /// a launch.
    #[track_caller]
    pub unsafe fn launch_raw(
        &self,
        kernel: &Kernel,
        stream: *mut c_void,
        plan: &Plan,
        args: &KernelArgs<'_>,
    ) -> Result<u64, LaunchError> {
        let current = self.push(kernel)?;
        // SAFETY: this function's contract, and the context is current.
        let submission =
            unsafe { Submission::new(kernel, stream, args, self.watch(Location::caller())) };
        let launched = submission.submit(plan);
        drop(current);
        launched_plan(kernel, plan, &self.counters, launched)
    }

    /// Makes the context of `kernel` current until the result is dropped, if it is the guard's.
    fn push(&self, kernel: &Kernel) -> Result<Pushed, LaunchError> {
        let inner = kernel.inner();
        if self.context().is_none_or(|context| context.cu_ctx().cast() != inner.context) {
            let kernel = kernel.name().to_owned();
            return Err(LaunchError::OtherContext { what: "the guard", kernel });
        }
        Ok(Pushed::new(inner.driver, inner.context)?)
    }
}
