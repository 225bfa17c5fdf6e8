//! cudarc's launch builder with validation: `launch_builder_guarded` in place of `launch_builder`.

use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaStream, LaunchArgs, LaunchConfig, PushKernelArg, sys,
};
use hashbrown::HashMap;
use parking_lot::RwLock;

use super::driver::from_cudarc;
use super::error::{CudaError, DriverError, LaunchError};
use super::history::{ContextHistory, FaultSuspects, Watch};
use super::kernel::{Inner, Kernel};
use super::launch::accepted;
use super::symbols::{Driver, Handle};
use crate::launch::request::LaunchRequest;
use crate::launch::valid::ValidLaunch;
use crate::launch::validate::validate;
use crate::plan::chunks::Chunk;
use crate::record::counters::Counts;

/// Launch builders that validate, on cudarc's streams.
#[allow(private_bounds, reason = "only cudarc's streams implement it, so that it may grow")]
pub trait GuardedStream: Sealed {
    /// As `launch_builder`, with every launch validated against the limits of device and function.
    ///
    /// The limits of a function are queried at its first use and kept. The function's module stays
    /// loaded for as long, see [`forget_functions`]. What is launched and rejected is counted for
    /// each context, see [`counts_without_guard`].
    ///
    /// ```no_run
    /// # use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
    /// use gridguard::cuda::GuardedStream;
    /// # fn run(stream: &CudaStream, function: &CudaFunction, n: u32) -> Result<(), Box<dyn std::error::Error>> {
    /// let config = LaunchConfig { grid_dim: (1, n, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
    /// let mut launch = stream.launch_builder_guarded(function); // was: launch_builder(function)
    /// launch.arg(&n);
    /// // SAFETY: the function takes one u32 and accesses no memory.
    /// unsafe { launch.launch(config)? };
    /// # Ok(())
    /// # }
    /// ```
    fn launch_builder_guarded<'a>(&'a self, function: &'a CudaFunction) -> GuardedLaunchArgs<'a>;
}

trait Sealed {}

impl Sealed for CudaStream {}

impl GuardedStream for CudaStream {
    fn launch_builder_guarded<'a>(&'a self, function: &'a CudaFunction) -> GuardedLaunchArgs<'a> {
        let inner = self.launch_builder(function);
        GuardedLaunchArgs { stream: self, function, inner, given: 0 }
    }
}

/// cudarc's [`LaunchArgs`] with validation.
#[derive(Debug)]
pub struct GuardedLaunchArgs<'a> {
    stream: &'a CudaStream,
    function: &'a CudaFunction,
    inner: LaunchArgs<'a>,
    /// Arguments so far.
    given: usize,
}

// SAFETY: passes every argument on to cudarc's own implementation, unchanged.
unsafe impl<'a, T> PushKernelArg<T> for GuardedLaunchArgs<'a>
where
    LaunchArgs<'a>: PushKernelArg<T>,
{
    #[inline(always)]
    fn arg(&mut self, arg: T) -> &mut Self {
        self.inner.arg(arg);
        self.given += 1;
        self
    }
}

impl GuardedLaunchArgs<'_> {
    /// The kernel with its limits.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if the limits cannot be queried, at the function's first use.
    pub fn kernel(&self) -> Result<Kernel, CudaError> {
        find_kernel(self.stream, self.function)
    }

    /// As [`LaunchArgs::record_kernel_launch`].
    pub fn record_kernel_launch(&mut self, flags: sys::CUevent_flags) -> &mut Self {
        self.inner.record_kernel_launch(flags);
        self
    }

    /// As [`LaunchArgs::launch`], after validation. Opts in to large dynamic shared memory where
    /// that is legal.
    ///
    /// # Safety
    ///
    /// As [`LaunchArgs::launch`].
    ///
    /// # Errors
    ///
    /// [`LaunchError::Invalid`] with every violation, before anything is launched;
    /// [`LaunchError::Unknown`] if the limits cannot be queried; [`LaunchError::Args`] if there are
    /// more or fewer arguments than parameters; [`LaunchError::Driver`] if the driver refuses a
    /// valid launch.
    #[track_caller]
    pub unsafe fn launch(
        &mut self,
        config: LaunchConfig,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, LaunchError> {
        // SAFETY: this function's contract.
        let submit = |inner: &mut LaunchArgs<'_>| unsafe { inner.launch(config) };
        self.validate_and(config, false, submit, Watch::here())
    }

    /// As [`LaunchArgs::launch_cooperative`], after validation.
    ///
    /// # Safety
    ///
    /// As [`LaunchArgs::launch_cooperative`].
    ///
    /// # Errors
    ///
    /// As [`Self::launch`].
    #[track_caller]
    pub unsafe fn launch_cooperative(
        &mut self,
        config: LaunchConfig,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, LaunchError> {
        // SAFETY: this function's contract.
        let submit = |inner: &mut LaunchArgs<'_>| unsafe { inner.launch_cooperative(config) };
        self.validate_and(config, true, submit, Watch::here())
    }

    /// Calls `submit` if the launch is valid, then records and counts it.
    #[inline]
    fn validate_and<T>(
        &mut self,
        config: LaunchConfig,
        cooperative: bool,
        submit: impl Fn(&mut LaunchArgs<'_>) -> Result<T, cudarc::driver::DriverError>,
        watch: Watch,
    ) -> Result<T, LaunchError> {
        let LaunchConfig { grid_dim, block_dim, shared_mem_bytes } = config;
        let mut request = LaunchRequest::new(grid_dim.into(), block_dim.into())
            .dynamic_shared_bytes(shared_mem_bytes.into());
        request.cooperative = cooperative;
        let Self { stream, function, inner, given } = self;
        let mut launch = |kernel: &Inner| {
            let launch = validate(&request, &kernel.limits)?;
            kernel.signature.check_count(&kernel.limits.kernel().name, *given)?;
            prepare(kernel, &launch)?;
            let (handle, chunk) = (stream.cu_stream().cast(), Chunk::only(1));
            let submitted = submit(inner).map_err(|error| {
                let call = if cooperative { "cuLaunchCooperativeKernel" } else { "cuLaunchKernel" };
                let error = from_cudarc(Some(stream.context()), call, error);
                let error = error.of_launch(&kernel.limits);
                with_launch_as_suspect(error, kernel, handle, &chunk, &launch, watch)
            });
            let launched = submitted.and_then(|events| {
                // SAFETY: the stream is alive in `self`, and cudarc has made its context current.
                unsafe { accepted(kernel, handle, &chunk, &launch, 1, watch) }.map(|()| events)
            });
            launched.map_err(|error| {
                kernel.history.without_guard.stopped(0);
                LaunchError::from(error)
            })
        };
        let counted = |kernel: &Inner| {
            let launched = launch(kernel);
            match &launched {
                Ok(_) => kernel.history.without_guard.ran(1),
                Err(LaunchError::Invalid(violations)) => {
                    kernel.history.without_guard.rejected(violations);
                }
                Err(_) => {}
            }
            launched
        };
        let launched = with_kernel(stream, function, counted);
        launched.unwrap_or_else(|error| Err(LaunchError::Unknown(Box::new(error))))
    }
}

/// Opts in to shared memory and checks occupancy.
#[inline]
fn prepare(kernel: &Inner, launch: &ValidLaunch) -> Result<(), LaunchError> {
    let co_resident = launch.is_co_resident();
    if co_resident || kernel.needs_opt_in(launch.dynamic_shared_bytes()) {
        kernel.driver.bind(kernel.context)?;
        kernel.opt_in(launch.dynamic_shared_bytes())?;
    }
    if co_resident { kernel.check_occupancy(launch) } else { Ok(()) }
}

/// Adds `launch` to the suspects of `error`, which a call returned that does more than launch, such as
/// record events afterwards: a quick fault of the launch itself surfaces there.
#[cold]
fn with_launch_as_suspect(
    error: DriverError,
    kernel: &Inner,
    stream: Handle,
    chunk: &Chunk,
    launch: &ValidLaunch,
    watch: Watch,
) -> DriverError {
    let name = &kernel.limits.kernel().name;
    // Repeated launches in a broken context must not crowd out the other suspects.
    let is_listed = |suspects: &FaultSuspects| {
        let mut launches = suspects.launches().iter();
        launches.any(|one| *one.kernel == **name && one.call_site == watch.call_site)
    };
    match error.suspects() {
        Some(suspects) if !is_listed(suspects) => {
            kernel.history.record(kernel.number, stream, chunk, launch, 1, watch.call_site);
            error.with_current_suspects(kernel.driver, kernel.context)
        }
        _ => error,
    }
}

/// What was counted in `context` of launches without a [`Guard`](crate::Guard): those through
/// [`GuardedStream::launch_builder_guarded`] and [`RawKernel`](super::RawKernel).
///
/// A guard counts its own launches, in [`Guard::counts`](crate::Guard::counts). Counting starts anew
/// when no guard or kernel of the context is left, after [`forget_functions`] also of launch builders.
#[must_use]
pub fn counts_without_guard(context: &CudaContext) -> Counts {
    ContextHistory::of(context.cu_ctx().cast()).counts_without_guard()
}

/// Kernels by handles. Each holds its function and its context, so that neither handle is reused
/// while it is in the map.
static KNOWN: LazyLock<RwLock<HashMap<Handles, Kernel>>> = LazyLock::new(RwLock::default);

/// How often [`KNOWN`] was emptied; changed under its lock.
static FORGOTTEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What this thread found in [`KNOWN`], so that threads that launch at once share no lock.
    ///
    /// Holds no function: the launching code holds it, and its handle is reused only after it was
    /// forgotten.
    static SEEN: RefCell<Seen> = RefCell::default();
}

#[derive(Default)]
struct Seen {
    /// [`FORGOTTEN`] at the time.
    forgotten: u64,
    kernels: HashMap<Handles, Arc<Inner>>,
}

/// A function, and the context that it was launched in, which need not be its own.
type Handles = (usize, usize);

/// Drops every function that [`GuardedStream::launch_builder_guarded`] has seen, so that their
/// modules can be unloaded. They are queried again at their next use.
pub fn forget_functions() {
    let mut known = KNOWN.write();
    let functions = core::mem::take(&mut *known);
    // Before any of them is unloaded and its handle reused.
    FORGOTTEN.fetch_add(1, Ordering::Release);
    drop(known);
    drop(functions);
}

/// Calls `f` with the kernel of `function`, without touching its reference count if this thread has
/// seen it before.
#[inline]
fn with_kernel<R>(
    stream: &CudaStream,
    function: &CudaFunction,
    mut f: impl FnMut(&Inner) -> R,
) -> Result<R, CudaError> {
    let handles = handles_of(stream, function);
    let seen = SEEN.try_with(|seen| {
        let seen = seen.try_borrow().ok()?;
        let is_current = seen.forgotten == FORGOTTEN.load(Ordering::Acquire);
        seen.kernels.get(&handles).filter(|_| is_current).map(|kernel| f(kernel))
    });
    match seen {
        Ok(Some(result)) => Ok(result),
        _ => Ok(f(find_kernel(stream, function)?.inner())),
    }
}

fn handles_of(stream: &CudaStream, function: &CudaFunction) -> Handles {
    (function.cu_function().addr(), stream.context().cu_ctx().addr())
}

/// The kernel of `function`, which this thread has seen from now on.
#[cold]
fn find_kernel(stream: &CudaStream, function: &CudaFunction) -> Result<Kernel, CudaError> {
    let handles = handles_of(stream, function);
    let find = |known: &HashMap<Handles, Kernel>| {
        Some((known.get(&handles)?.clone(), FORGOTTEN.load(Ordering::Relaxed)))
    };
    let found = find(&KNOWN.read());
    let (kernel, forgotten) = match found {
        Some(found) => found,
        None => {
            let kernel = query_kernel(stream, function)?;
            let mut known = KNOWN.write();
            // Two threads may get here at once; the first one's kernel stays.
            let kernel = known.entry(handles).or_insert(kernel).clone();
            (kernel, FORGOTTEN.load(Ordering::Relaxed))
        }
    };
    let inner = Arc::clone(kernel.inner());
    // A thread that is ending, or in the middle of a launch, looks it up again the next time.
    let _ = SEEN.try_with(|seen| {
        let mut seen = seen.try_borrow_mut().ok()?;
        if seen.forgotten != forgotten {
            *seen = Seen { forgotten, ..Seen::default() };
        }
        seen.kernels.insert(handles, inner)
    });
    Ok(kernel)
}

#[cold]
fn query_kernel(stream: &CudaStream, function: &CudaFunction) -> Result<Kernel, CudaError> {
    let (driver, context) = (Driver::get()?, stream.context());
    driver.bind_cudarc(context)?;
    let keep = (function.clone(), Arc::clone(context));
    let (function, context) = (function.cu_function().cast(), context.cu_ctx().cast());
    // SAFETY: `keep` holds the function, loaded, and the context that it is launched in, which need not
    // be the module's and is current.
    let kernel = unsafe {
        let name = driver.name_of(function);
        Kernel::from_parts(driver, function, context, name, None, None, keep)?
    };
    Ok(kernel)
}
