//! The guard over raw handles, for code on another binding of CUDA or in C++.

use core::ffi::c_void;

use super::checked::Watch;
use super::current::Pushed;
use super::driver::Driver;
use super::error::{CudaError, DriverError, LaunchError};
use super::kernel::{Keep, Kernel};
use super::launch::{plan_and_submit, submit};
use super::query;
use crate::launch::co_resident::OccupancyLimits;
use crate::launch::request::LaunchRequest;
use crate::limits::LaunchLimits;
use crate::plan::arguments::KernelArgs;
use crate::plan::batch::BatchAxis;
use crate::plan::launches::Plan;

/// A function that someone else loaded, given by its handles.
///
/// ```no_run
/// # fn handles() -> (*mut std::ffi::c_void, *mut std::ffi::c_void, *mut std::ffi::c_void) { unreachable!("the caller has them") }
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
    /// Queries the limits of `function` (a `CUfunction`) in `context` (a `CUcontext`).
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
    /// [`CudaError`] where there is no driver, or a query fails.
    pub unsafe fn from_handles(
        context: *mut c_void,
        function: *mut c_void,
        name: &str,
    ) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let _current = Pushed::new(driver, context)?;
        let device = query::limits_of_current_device(driver)?;
        let name = name.to_owned();
        let signature = query::signature(driver, function)?;
        let keep = Keep::Caller;
        let kernel = Kernel::from_parts(driver, function, context, device, name, signature, keep)?;
        // SAFETY: who launches it promises the same of each launch that is dependent.
        Ok(Self(unsafe { kernel.with_dependent_launches() }))
    }

    /// What the function allows on its device.
    #[must_use]
    pub fn limits(&self) -> &LaunchLimits {
        self.0.limits()
    }

    /// As [`Kernel::occupancy`]. The calling thread's current context is the same afterwards.
    ///
    /// # Errors
    ///
    /// [`DriverError`] where the driver does not answer.
    pub fn occupancy(&self, request: &LaunchRequest) -> Result<OccupancyLimits, DriverError> {
        let inner = self.0.inner();
        let _current = Pushed::new(inner.driver(), inner.context())?;
        inner.occupancy(request)
    }

    /// Plans `request` under the function's limits and launches it: a legal one as it is, one that is
    /// too large along the axis of `batch` in chunks. Otherwise as [`Self::launch`].
    ///
    /// # Safety
    ///
    /// As [`Self::launch`].
    ///
    /// # Errors
    ///
    /// [`LaunchError::Invalid`] where no plan is legal, and as [`Self::launch`].
    #[track_caller]
    pub unsafe fn plan_and_launch(
        &self,
        stream: *mut c_void,
        request: &LaunchRequest,
        batch: Option<&BatchAxis>,
        args: &KernelArgs<'_>,
    ) -> Result<u64, LaunchError> {
        let inner = self.0.inner();
        let _current = Pushed::new(inner.driver(), inner.context())?;
        // SAFETY: the caller's promise, and the context is current.
        unsafe { plan_and_submit(&self.0, stream, request, batch, args, Watch::here()) }
    }

    /// Submits every launch of `plan` to `stream` (a `CUstream`, null for the default one) and
    /// answers how many there were. The calling thread's current context is the same afterwards.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of the kernel's context, `args` are what the function takes, and the
    /// memory behind them lives until the launches have run. A function whose launches are
    /// dependent keeps the promise of [`Kernel::with_dependent_launches`].
    ///
    /// # Errors
    ///
    /// [`LaunchError`] where plan or arguments do not fit the kernel, or the driver refuses.
    #[track_caller]
    pub unsafe fn launch(
        &self,
        stream: *mut c_void,
        plan: &Plan,
        args: &KernelArgs<'_>,
    ) -> Result<u64, LaunchError> {
        let inner = self.0.inner();
        let _current = Pushed::new(inner.driver(), inner.context())?;
        // SAFETY: the caller's promise, and the context is current.
        unsafe { submit(&self.0, stream, plan, args, Watch::here()) }
    }
}
