//! cudarc's launch builder with validation in front: existing code changes by one word.

use core::cell::RefCell;
use core::hash::{BuildHasherDefault, Hasher};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::{
    CudaEvent, CudaFunction, CudaStream, LaunchArgs, LaunchConfig, PushKernelArg, sys,
};
use once_cell::sync::Lazy;
use parking_lot::RwLock;

use super::checked::Watch;
use super::driver::Driver;
use super::error::{CudaError, DriverError, LaunchError};
use super::kernel::{Inner, Keep, Kernel};
use crate::launch::request::LaunchRequest;
use crate::launch::validate::validate;
use crate::plan::chunk::Chunk;

/// Launch builders that validate, on cudarc's streams.
#[allow(private_bounds, reason = "for cudarc's streams alone, so that it may grow")]
pub trait GuardedStream: Sealed {
    /// As `launch_builder`, with every launch validated against the limits of device and function.
    ///
    /// The limits of a function are queried at its first use and kept. The function's module stays
    /// loaded for as long, see [`forget_functions`].
    ///
    /// ```no_run
    /// # use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
    /// use gridguard::cuda::GuardedStream;
    /// # fn run(stream: &CudaStream, function: &CudaFunction, n: u32) -> Result<(), Box<dyn std::error::Error>> {
    /// let config = LaunchConfig { grid_dim: (1, n, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
    /// let mut launch = stream.launch_builder_guarded(function); // was: launch_builder(function)
    /// launch.arg(&n);
    /// // SAFETY: the function takes one u32 and touches no memory.
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

/// cudarc's [`LaunchArgs`] behind validation.
#[derive(Debug)]
pub struct GuardedLaunchArgs<'a> {
    stream: &'a CudaStream,
    function: &'a CudaFunction,
    inner: LaunchArgs<'a>,
    given: usize,
}

// SAFETY: hands every argument on to cudarc's own implementation, unchanged.
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
    /// Why the limits could not be queried, at the function's first use.
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
    /// [`LaunchError::Unknown`] where the limits could not be queried; [`LaunchError::Args`] where
    /// the number of arguments is not that of the parameters;
    /// [`LaunchError::Driver`] where the driver refuses all the same.
    #[track_caller]
    pub unsafe fn launch(
        &mut self,
        config: LaunchConfig,
    ) -> Result<Option<(CudaEvent, CudaEvent)>, LaunchError> {
        let send = |inner: &mut LaunchArgs<'_>| {
            // SAFETY: the caller's promise.
            let launched = unsafe { inner.launch(config) };
            launched.map_err(|error| ("cuLaunchKernel", error))
        };
        self.check_and(config, false, send, Watch::here())
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
        let send = |inner: &mut LaunchArgs<'_>| {
            // SAFETY: the caller's promise.
            let launched = unsafe { inner.launch_cooperative(config) };
            launched.map_err(|error| ("cuLaunchCooperativeKernel", error))
        };
        self.check_and(config, true, send, Watch::here())
    }

    /// Sends what passes the check, and records it.
    #[inline]
    fn check_and<T>(
        &mut self,
        config: LaunchConfig,
        cooperative: bool,
        send: impl Fn(&mut LaunchArgs<'_>) -> Result<T, Refusal>,
        watch: Watch,
    ) -> Result<T, LaunchError> {
        let LaunchConfig { grid_dim, block_dim, shared_mem_bytes } = config;
        let mut request = LaunchRequest::new(grid_dim.into(), block_dim.into())
            .dynamic_shared_bytes(shared_mem_bytes.into());
        request.cooperative = cooperative;
        let Self { stream, function, inner, given } = self;
        // The kernel is only lent, so that its launch takes part in no counting of owners.
        let check_and_send = |kernel: &Inner| {
            let launch = validate(&request, kernel.limits())?;
            kernel.signature().check_count(&kernel.limits().kernel().name, *given)?;
            let together = launch.runs_together();
            if together || kernel.needs_opt_in(launch.dynamic_shared_bytes()) {
                kernel.driver().bind(kernel.context())?;
                kernel.opt_in(launch.dynamic_shared_bytes())?;
            }
            if together {
                kernel.check_occupancy(&launch)?;
            }
            let (handle, chunk) = (stream.cu_stream().cast(), Chunk::only(1));
            let sent = send(inner).map_err(|(call, error)| {
                let error = DriverError::from_cudarc(Some(stream.context()), call, error);
                kernel.may_be_at_fault(handle, &chunk, &launch, watch, error)
            })?;
            kernel.accepted(handle, &chunk, &launch, 1, watch)?;
            Ok(sent)
        };
        match with_kernel(stream, function, check_and_send) {
            Ok(checked) => checked,
            Err(error) => Err(LaunchError::Unknown(Box::new(error))),
        }
    }
}

/// The call that failed, as cudarc reports it.
type Refusal = (&'static str, cudarc::driver::DriverError);

/// Kernels by handles. Each holds its function and its context, so that no handle is ever used anew
/// while it stands here.
static KNOWN: Lazy<RwLock<ByHandles<Kernel>>> = Lazy::new(RwLock::default);

/// How often [`KNOWN`] was emptied; changed under its lock.
static FORGOTTEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What this thread found in [`KNOWN`], so that threads that launch at once share no lock.
    ///
    /// Holds no function: whoever launches one holds it, and a handle is used anew only after its
    /// function was forgotten.
    static SEEN: RefCell<Seen> = RefCell::default();
}

#[derive(Default)]
struct Seen {
    /// [`FORGOTTEN`] at the time.
    forgotten: u64,
    kernels: ByHandles<Arc<Inner>>,
}

type ByHandles<T> = HashMap<Handles, T, BuildHasherDefault<AddressHasher>>;

/// A function and the context that it was launched in, which need not be its own.
type Handles = (usize, usize);

/// Spreads addresses, which nobody chooses to collide, in one multiplication.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        /// 2^64 over the golden ratio, odd.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        // The table takes its index from the low bits and its tags from the high ones.
        self.0 = (self.0 ^ number).wrapping_mul(SPREAD).swap_bytes();
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(u64::try_from(number).unwrap_or(u64::MAX));
    }
}

/// Lets go of every function that [`GuardedStream::launch_builder_guarded`] has seen, so that
/// their modules can be unloaded. They are queried anew at their next use.
pub fn forget_functions() {
    let mut known = KNOWN.write();
    let functions = core::mem::take(&mut *known);
    // Before any of them is unloaded, and its handle used anew.
    FORGOTTEN.fetch_add(1, Ordering::Release);
    drop(known);
    drop(functions);
}

/// Looks at the kernel of `function` where it stands, queried at its first use.
#[inline]
fn with_kernel<R>(
    stream: &CudaStream,
    function: &CudaFunction,
    mut look: impl FnMut(&Inner) -> R,
) -> Result<R, CudaError> {
    let handles = handles_of(stream, function);
    let seen = SEEN.try_with(|seen| {
        let seen = seen.try_borrow().ok()?;
        let is_current = seen.forgotten == FORGOTTEN.load(Ordering::Acquire);
        seen.kernels.get(&handles).filter(|_| is_current).map(|kernel| look(kernel))
    });
    match seen {
        Ok(Some(answer)) => Ok(answer),
        _ => Ok(look(find_kernel(stream, function)?.inner())),
    }
}

fn handles_of(stream: &CudaStream, function: &CudaFunction) -> Handles {
    (function.cu_function().addr(), stream.context().cu_ctx().addr())
}

/// The kernel of `function`, which this thread has seen from now on.
#[cold]
fn find_kernel(stream: &CudaStream, function: &CudaFunction) -> Result<Kernel, CudaError> {
    let handles = handles_of(stream, function);
    let find = |known: &ByHandles<Kernel>| {
        Some((known.get(&handles)?.clone(), FORGOTTEN.load(Ordering::Relaxed)))
    };
    let found = find(&KNOWN.read());
    let (kernel, forgotten) = match found {
        Some(found) => found,
        None => {
            let kernel = query_kernel(stream, function)?;
            let mut known = KNOWN.write();
            // Two threads may get here at once; the first one's limits stay.
            let kernel = known.entry(handles).or_insert(kernel).clone();
            (kernel, FORGOTTEN.load(Ordering::Relaxed))
        }
    };
    let inner = Arc::clone(kernel.inner());
    // A thread that ends, or is in the midst of a launch, sees it again the next time.
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
    let driver = Driver::get()?;
    let context = stream.context();
    let device = super::query::limits_of_context(driver, context)?;
    let keep = Keep::Cudarc(function.clone(), Arc::clone(context));
    let handle = function.cu_function().cast();
    let name = function_name(driver, handle);
    let context = context.cu_ctx().cast();
    let signature = super::query::signature(driver, handle)?;
    Ok(Kernel::from_parts(driver, handle, context, device, name, signature, keep)?)
}

/// The function's name, where the driver can tell (CUDA 12.3 and later).
fn function_name(driver: &Driver, function: super::driver::Handle) -> String {
    let mut name = core::ptr::null();
    let found = driver.func_get_name.is_some_and(|ask| {
        // SAFETY: the function is loaded; the driver writes a pointer that lives with it.
        unsafe { ask(&raw mut name, function) == 0 }
    });
    if !found || name.is_null() {
        return "of the launch".into();
    }
    // SAFETY: not null, so a zero-terminated string that lives as long as the function.
    unsafe { core::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()
}
