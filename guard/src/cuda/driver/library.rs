//! Finds and initialises libcuda once for the process, makes its contexts current, and synchronises
//! streams.

use core::marker::PhantomData;
use core::ops::RangeInclusive;

use cudarc::driver::{CudaContext, CudaStream, sys};
use libloading::Library;
use once_cell::sync::OnceCell;

use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::history::History;
use crate::cuda::driver::log;
use crate::cuda::driver::symbols::{self, Driver, Handle, NO_DEVICE, OUT_OF_MEMORY, Status};
use crate::cuda::error::{CudaError, CudaErrorKind, CudaLibrary};
use crate::plan::backoff::AllocationError;

/// Functions that cudarc calls for contexts, streams, events and memory. cudarc panics if one is missing.
const CUDARC_NEEDS: [&str; 17] = [
    "cuGetErrorName",
    "cuCtxSynchronize",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
];

/// As [`CUDARC_NEEDS`], for graphs.
pub(crate) const GRAPHS_NEED: [&str; 6] = [
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
];

/// File names of the driver.
const NAMES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The name that cudarc tries first, if it is not the first of [`NAMES`].
const CUDARC_NAMES: &[&str] = if cfg!(windows) { &[] } else { &["libcuda.so"] };

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` to `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`.
pub(crate) const CAPTURE_ERRORS: RangeInclusive<Status> = 900..=908;

/// The oldest supported driver: CUDA 12.0, as `cuDriverGetVersion` counts.
const OLDEST_DRIVER: i32 = 12_000;

/// Rejects an old driver by its version, which is clearer than a missing function. The version needs no `cuInit`.
fn check_version(library: &Library) -> Result<(), CudaError> {
    let (symbol, mut version) = ("cuDriverGetVersion", OLDEST_DRIVER);
    // SAFETY: the signature is the one in `function_table` for this symbol, and the library stays open.
    let get = unsafe { symbols::find::<unsafe extern "C" fn(*mut i32) -> Status>(library, symbol) };
    // SAFETY: the pointer is to a live integer.
    let status = get.map(|get| unsafe { get(&raw mut version) });
    if status == Some(0) && version < OLDEST_DRIVER {
        return Err(CudaErrorKind::TooOld { version, oldest: OLDEST_DRIVER }.into());
    }
    Ok(())
}

/// Checks that `library`, called `name`, has all functions of `needs`.
pub(crate) fn check_symbols(
    library: &Library,
    name: &str,
    needs: &[&'static str],
) -> Result<(), CudaError> {
    // SAFETY: the pointer is only tested for presence, never called, so its type does not matter.
    let is_missing = |symbol| unsafe { symbols::find::<*const ()>(library, symbol) }.is_none();
    let missing = needs.iter().find(|symbol| is_missing(symbol));
    missing.map_or(Ok(()), |symbol| Err(lacks(name, symbol)))
}

fn lacks(library: &str, symbol: &'static str) -> CudaError {
    let (of, library) = (CudaLibrary::Driver, library.to_owned());
    CudaErrorKind::SymbolMissing { of, library, symbol }.into()
}

impl Driver {
    /// The initialised driver, found once for the process; after a failure the next call tries again.
    pub(crate) fn get() -> Result<&'static Self, CudaError> {
        static DRIVER: OnceCell<Driver> = OnceCell::new();
        DRIVER.get_or_try_init(Self::load)
    }

    fn load() -> Result<Self, CudaError> {
        let of = CudaLibrary::Driver;
        let (library, name) =
            symbols::open(NAMES).map_err(|tried| CudaErrorKind::LibraryMissing { of, tried })?;
        check_version(&library)?;
        let driver = Self::resolve(library).map_err(|symbol| lacks(&name, symbol))?;
        check_symbols(&driver.library, &name, &CUDARC_NEEDS)?;
        driver.check_cudarc_library(&name)?;
        // SAFETY: cuInit takes no pointer, and zero is its only legal flag.
        let status = unsafe { (driver.init)(0) };
        if status == NO_DEVICE {
            return Err(driver.no_device());
        }
        driver.check("cuInit", status).map_err(CudaErrorKind::InitFailed)?;
        log::begin(&driver);
        Ok(driver)
    }

    /// Checks that cudarc calls the same library, named `ours` here, because handles of contexts and streams pass
    /// between both. cudarc searches by itself, and tries another name first.
    fn check_cudarc_library(&self, ours: &str) -> Result<(), CudaError> {
        if let Ok((library, name)) = symbols::open(CUDARC_NAMES) {
            check_symbols(&library, &name, &CUDARC_NEEDS)?;
        }
        let (mut ours_at, mut cudarc_at) = (core::ptr::null(), core::ptr::null());
        // SAFETY: needs no initialisation; the driver writes a pointer to a static string.
        let status = unsafe { (self.get_error_name)(0, &raw mut ours_at) };
        let success = sys::CUresult::CUDA_SUCCESS;
        // SAFETY: needs no initialisation; the driver writes a pointer to a static string. The symbol exists: it was
        // found just now in the library that cudarc loads, or cudarc is linked against it.
        let cudarc_status = unsafe { sys::cuGetErrorName(success, &raw mut cudarc_at) };
        // Each library has its own name for success at its own address. Libraries that know no
        // names cannot be told apart.
        let same = ours_at == cudarc_at && (status == 0) == (cudarc_status == success);
        if same {
            Ok(())
        } else {
            Err(CudaErrorKind::OtherLibrary { ours: ours.to_owned() }.into())
        }
    }

    /// The CUDA version that the driver supports: 1000 * major + 10 * minor.
    pub(crate) fn version(&self) -> Result<i32, DriverError> {
        // SAFETY: the pointer is to a live integer.
        self.read("cuDriverGetVersion", 0, |version| unsafe { (self.driver_get_version)(version) })
    }

    pub(crate) fn no_device(&self) -> CudaError {
        let value = std::env::var_os("CUDA_VISIBLE_DEVICES");
        let cuda_visible_devices = value.map(|value| value.to_string_lossy().into_owned());
        let driver_version = self.version().ok();
        CudaErrorKind::NoDevice { cuda_visible_devices, driver_version }.into()
    }

    /// Makes `context` current on this thread, unless it is already.
    #[inline]
    pub(crate) fn bind(&self, context: Handle) -> Result<(), DriverError> {
        if self.checked_current_context()? == context {
            return Ok(());
        }
        // SAFETY: the context is alive: every caller holds it, or something that keeps it alive.
        let status = unsafe { (self.ctx_set_current)(context) };
        self.check("cuCtxSetCurrent", status)
    }

    /// [`Self::bind`], then reports earlier failures in `context` that cudarc recorded.
    pub(crate) fn bind_cudarc(&self, context: &CudaContext) -> Result<(), DriverError> {
        self.bind(context.cu_ctx().cast())?;
        recorded_failure(context)
    }

    /// Waits for all launches on `stream`, which are then no suspects any more. The stream's context is current.
    ///
    /// # Safety
    ///
    /// `stream` is a live stream of the current context, or null for its default one.
    pub(crate) unsafe fn synchronize(
        &self,
        history: &History,
        stream: Handle,
    ) -> Result<(), DriverError> {
        let mark = history.mark(stream);
        // SAFETY: the stream is alive, by this function's contract.
        let status = unsafe { (self.stream_synchronize)(stream) };
        self.check("cuStreamSynchronize", status)?;
        mark.into_iter().for_each(|mark| history.prove(mark));
        Ok(())
    }

    /// Whether `stream` is being captured, so that launches become nodes of a graph, and synchronising
    /// would invalidate the capture.
    ///
    /// # Safety
    ///
    /// As [`Self::synchronize`].
    #[inline]
    pub(crate) unsafe fn is_capturing(&self, stream: Handle) -> Result<bool, DriverError> {
        // SAFETY: this function's contract.
        let captures = unsafe { self.captures(stream) };
        captures.map_err(|status| self.error(None, "cuStreamIsCapturing", status))
    }

    /// As [`Self::is_capturing`], with the status of a failed query alone, which costs a launch less.
    ///
    /// # Safety
    ///
    /// As [`Self::synchronize`].
    #[inline]
    pub(crate) unsafe fn captures(&self, stream: Handle) -> Result<bool, Status> {
        let mut capturing = 0;
        // SAFETY: the stream is alive, by this function's contract; the pointer is to a live integer.
        match unsafe { (self.stream_is_capturing)(stream, &raw mut capturing) } {
            0 => Ok(capturing != 0),
            status if CAPTURE_ERRORS.contains(&status) => Ok(true),
            status => Err(status),
        }
    }

    /// The context that is current on this thread; null if none.
    #[inline]
    pub(crate) fn checked_current_context(&self) -> Result<Handle, DriverError> {
        // SAFETY: the pointer is to a live handle.
        let ask = |current| unsafe { (self.ctx_get_current)(current) };
        self.read("cuCtxGetCurrent", core::ptr::null_mut(), ask)
    }
}

/// The driver's handle of a stream.
pub(crate) fn handle(stream: &CudaStream) -> Handle {
    stream.cu_stream().cast()
}

/// A failure in `context` that cudarc could not return and recorded instead, such as one in the `Drop` of memory.
pub(crate) fn recorded_failure(context: &CudaContext) -> Result<(), DriverError> {
    context.check_err().map_err(|error| failed_earlier(context, error))
}

/// The error that cudarc recorded in `context`. cudarc does not record which call failed.
#[cold]
pub(crate) fn failed_earlier(
    context: &CudaContext,
    error: cudarc::driver::DriverError,
) -> DriverError {
    from_cudarc(Some(context), "an earlier call", error)
}

/// The error that cudarc returned from `call`. The `context` is given if cudarc may have returned a recorded
/// error before it made the context current.
pub(crate) fn from_cudarc(
    context: Option<&CudaContext>,
    call: &'static str,
    error: cudarc::driver::DriverError,
) -> DriverError {
    let (code, context) = (code_of(error), context.map(|context| context.cu_ctx().cast()));
    match Driver::get() {
        Ok(driver) => driver.error_in(context, None, call, code),
        Err(_) => DriverError {
            call,
            code,
            name: "unknown error".into(),
            description: Box::default(),
            background: None,
        },
    }
}

/// Why cudarc could not allocate memory in `context`.
pub(crate) fn not_allocated(
    context: &CudaContext,
    error: cudarc::driver::DriverError,
) -> AllocationError<DriverError> {
    let error = from_cudarc(Some(context), "cuMemAllocAsync", error);
    match error.code {
        OUT_OF_MEMORY => AllocationError::OutOfMemory(error),
        _ => AllocationError::Failed(error),
    }
}

#[allow(clippy::as_conversions, reason = "the discriminant of a C enum of int size")]
pub(crate) const fn code_of(error: cudarc::driver::DriverError) -> i32 {
    error.0 as i32
}

/// Makes a context current on this thread; dropping it restores the one before.
pub(crate) struct CurrentContext {
    driver: &'static Driver,
    pushed: bool,
    /// Makes this type neither `Send` nor `Sync`: the stack of contexts is the thread's.
    this_thread: PhantomData<*mut ()>,
}

impl CurrentContext {
    /// Makes `context` current, unless it is already.
    #[inline]
    pub(crate) fn new(driver: &'static Driver, context: Handle) -> Result<Self, DriverError> {
        if driver.checked_current_context()? == context {
            return Ok(Self { driver, pushed: false, this_thread: PhantomData });
        }
        // SAFETY: the context is alive: every caller holds it, or is promised that it lives.
        let status = unsafe { (driver.ctx_push_current)(context) };
        driver.check("cuCtxPushCurrent", status)?;
        Ok(Self { driver, pushed: true, this_thread: PhantomData })
    }
}

impl Drop for CurrentContext {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = core::ptr::null_mut();
            // SAFETY: the pointer is to a live handle, and this thread called `new`,
            // since `CurrentContext` is not `Send`. An error means that other code popped the context
            // already, which leaves nothing to restore.
            let _ = unsafe { (self.driver.ctx_pop_current)(&raw mut popped) };
        }
    }
}
