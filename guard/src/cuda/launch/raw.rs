//! Launches by handles of another CUDA binding or of C++: a `CUfunction`, a `CUstream` and addresses enter.

use core::ffi::c_void;
use core::panic::Location;

use crate::cuda::driver::history::Watch;
use crate::cuda::driver::library::CurrentContext;
use crate::cuda::driver::log;
use crate::cuda::driver::symbols::{Driver, Handle};
use crate::cuda::error::{CudaError, LaunchError, LaunchErrorKind};
use crate::cuda::kernel::Kernel;
use crate::cuda::launch::planned::{Call, PlanInput, ValidLaunches};
use crate::cuda::launch::{Contract, Submission, Values};
use crate::guard::Guard;
use crate::launch::request::LaunchRequest;
use crate::plan::arguments::RawArgs;
use crate::plan::batch::BatchAxis;
use crate::plan::launches::Plan;

/// A plan or request with its arguments, for [`Guard::launch_raw`].
#[derive(Clone, Copy, Debug)]
pub enum RawLaunch<'a> {
    /// Every launch of a plan.
    Plan(&'a Plan, &'a RawArgs<'a>),
    /// A request, planned as [`Guard::launch`] does.
    Request(&'a LaunchRequest, Option<&'a BatchAxis>, &'a RawArgs<'a>),
    /// A request without a batch, with pointers to the values of its parameters as `cuLaunchKernel` takes them.
    Pointers(&'a LaunchRequest, *mut *mut c_void),
}

/// A kernel with a stream and values by raw handles. The code that makes it keeps the contract of
/// [`Guard::launch_raw`].
struct RawCall<'c> {
    kernel: &'c Kernel,
    stream: Handle,
    values: Values<'c>,
    watch: Watch,
}

impl Call for RawCall<'_> {
    #[inline]
    fn kernel(&self) -> &Kernel {
        self.kernel
    }

    #[inline]
    fn submit(&self, guard: &Guard, launches: ValidLaunches<'_>) -> Result<u64, LaunchError> {
        let Self { kernel, stream, values, watch } = *self;
        let _current = guard.push(kernel)?;
        // SAFETY: the caller of `launch_raw` vouches for stream and values, and the context is current.
        unsafe { Submission::new(kernel, stream, values, watch, Contract::Launched) }
            .submit(launches)
    }
}

impl Guard {
    /// The kernel of `function` (a `CUfunction`, or a `CUkernel` cast to one) in the guard's context, whose
    /// parameters are not declared: for [`Self::launch_raw`]. Messages use `name`, or the driver's name for it.
    /// Drivers before CUDA 12.3 have no names.
    ///
    /// The calling thread's current context is the same afterwards.
    ///
    /// ```no_run
    /// # fn handles() -> (*mut std::ffi::c_void, *mut std::ffi::c_void, *mut std::ffi::c_void) { unreachable!() }
    /// use gridguard::cuda::RawLaunch;
    /// use gridguard::{Axis, BatchAxis, Dim3, Guard, RawArgs, LaunchRequest};
    ///
    /// let (context, function, stream) = handles(); // CUcontext, CUfunction, CUstream
    /// // SAFETY: the context is alive.
    /// let guard = unsafe { Guard::with_raw_context(context)? };
    /// // SAFETY: the function is loaded in this context.
    /// let kernel = unsafe { guard.raw_kernel(function, Some("attention"))? };
    /// let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
    /// let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);
    /// let mut args = RawArgs::new();
    /// args.items_at(0x7f00_0000_0000, 10_240).length();
    /// // SAFETY: the stream is of the same context, and the arguments match the parameters.
    /// unsafe { guard.launch_raw(&kernel, stream, RawLaunch::Request(&request, Some(&batch), &args))? };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// `function` is loaded in the guard's context for as long as the kernel and its clones live.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the guard runs on the host, or a query fails.
    pub unsafe fn raw_kernel(
        &self,
        function: *mut c_void,
        name: Option<&str>,
    ) -> Result<Kernel, CudaError> {
        let (driver, context) = (Driver::get()?, self.context_handle()?);
        let _current = CurrentContext::new(driver, context)?;
        // SAFETY: this function's contract, and the context is current. The caller keeps the handles alive.
        let kernel = unsafe {
            let function = driver.function_of(function);
            let name = name.map_or_else(|| driver.name_of(function), ToOwned::to_owned);
            // A query for the wrong kind of handle fails, and the driver logs an error.
            log::discard(driver);
            Kernel::undeclared(driver, function, context, name, ())?
        };
        // SAFETY: `launch_raw` requires the same of each dependent launch.
        Ok(unsafe { kernel.with_dependent_launches() })
    }

    /// Launches `kernel` on `stream` (a `CUstream`, null for the default one), and returns the number of launches, as
    /// [`Self::launch`] does for memory and streams of cudarc. The calling thread's current context is the same
    /// afterwards.
    ///
    /// # Safety
    ///
    /// - `stream` is a live stream of the kernel's context.
    /// - The values match the parameters of the function, and the memory behind them lives until the launches have run.
    ///   Pointers lead to as many values as the function has parameters, of their sizes.
    /// - A stream that is being captured is not refused: function and memory live until the graph can run no
    ///   more.
    /// - A function with dependent launches keeps the contract of [`Kernel::with_dependent_launches`].
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if plan, values, guard and kernel do not belong together, no plan is legal, or the driver
    /// refuses a launch.
    #[inline]
    #[track_caller]
    pub unsafe fn launch_raw(
        &self,
        kernel: &Kernel,
        stream: *mut c_void,
        launch: RawLaunch<'_>,
    ) -> Result<u64, LaunchError> {
        let watch = self.watch(Location::caller());
        let call = |values| RawCall { kernel, stream, values, watch };
        let (tuning, limits) = (kernel.tuning(), kernel.limits());
        match launch {
            RawLaunch::Plan(plan, args) => self.launch_plan(&call(Values::Args(&args.list)), plan),
            RawLaunch::Request(request, batch, args) => {
                let input = PlanInput { request, batch, tuning, limits };
                self.launch_request(&call(Values::Args(&args.list)), input)
            }
            RawLaunch::Pointers(request, params) => {
                // The caller's pointers have no place for a form's extra parameter.
                let limits = &*limits.without_forms();
                let input = PlanInput { request, batch: None, tuning, limits };
                self.launch_request(&call(Values::Pointers(params)), input)
            }
        }
    }

    /// As [`Self::synchronize`], for a `CUstream`, null for the default one. The calling thread's current context
    /// is the same afterwards.
    ///
    /// # Safety
    ///
    /// `stream` is a live stream of the guard's context.
    ///
    /// # Errors
    ///
    /// As [`Self::synchronize`].
    pub unsafe fn synchronize_raw(&self, stream: *mut c_void) -> Result<(), CudaError> {
        let (driver, context) = (Driver::get()?, self.context_handle()?);
        let _current = CurrentContext::new(driver, context)?;
        let Some(cuda) = &self.cuda else { return Ok(()) };
        // SAFETY: this function's contract, and the context is current.
        Ok(unsafe { driver.synchronize(&cuda.history.0, stream) }?)
    }

    /// Makes the context of `kernel` current until the result is dropped, if it is the guard's.
    #[inline]
    fn push(&self, kernel: &Kernel) -> Result<CurrentContext, LaunchError> {
        let inner = &kernel.inner;
        if self.cuda.as_ref().is_none_or(|cuda| cuda.handle != inner.context.addr()) {
            let kernel = kernel.name().to_owned();
            return Err(LaunchErrorKind::OtherContext { what: "the guard", kernel }.into());
        }
        Ok(CurrentContext::new(inner.driver, inner.context)?)
    }
}
