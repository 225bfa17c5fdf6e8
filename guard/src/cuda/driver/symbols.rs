//! The functions, structs and constants of libcuda and libnvrtc that the guard uses, and how the
//! libraries are loaded.
//!
//! The guard looks the functions up itself: cudarc panics where a library or a symbol is missing,
//! and its enums cannot hold codes that its CUDA version does not know.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

use libloading::Library;

use crate::launch::abi::LaunchConfig;

/// Declares a table of a library's functions, each with its C signature, and how to fill it.
macro_rules! function_table {
    (
        $(#[$doc:meta])*
        struct $table:ident;
        required { $($name:ident = $symbol:literal: fn($($arg:ty),*) -> $ret:ty;)* }
        optional { $($maybe:ident = $maybe_symbol:literal: fn($($maybe_arg:ty),*) -> $maybe_ret:ty;)* }
    ) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            $(pub(crate) $maybe: Option<unsafe extern "C" fn($($maybe_arg),*) -> $maybe_ret>,)*
            /// Keeps the functions above loaded.
            #[allow(dead_code, reason = "only the driver is asked for more functions")]
            pub(crate) library: libloading::Library,
        }

        impl $table {
            /// Fills the table, or returns the first required symbol that the library lacks.
            pub(crate) fn resolve(library: libloading::Library) -> Result<Self, &'static str> {
                // SAFETY: the vendor's header declares each signature above for its symbol, and the
                // table owns the library, so no pointer outlives it.
                unsafe {
                    $(let $name = find(&library, $symbol).ok_or($symbol)?;)*
                    $(let $maybe = find(&library, $maybe_symbol);)*
                    Ok(Self { $($name,)* $($maybe,)* library })
                }
            }
        }

        impl core::fmt::Debug for $table {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($table)).finish_non_exhaustive()
            }
        }
    };
}

/// A context, module, function or stream of the driver, or a program of NVRTC.
pub(crate) type Handle = *mut c_void;
/// A `CUresult` or `nvrtcResult`, as an integer: libraries return codes that a binding may not know.
pub(crate) type Status = c_int;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Status = 2;
/// `CUDA_ERROR_NO_DEVICE`.
pub(crate) const NO_DEVICE: Status = 100;
/// `CUDA_ERROR_NO_BINARY_FOR_GPU`.
pub(crate) const NO_BINARY_FOR_GPU: Status = 209;
/// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
pub(crate) const UNSUPPORTED_PTX_VERSION: Status = 222;
/// `CUDA_ERROR_NOT_FOUND`.
pub(crate) const NOT_FOUND: Status = 500;
/// `CUDA_ERROR_INVALID_CLUSTER_SIZE`.
pub(crate) const INVALID_CLUSTER_SIZE: Status = 912;

function_table! {
    /// Functions of libcuda.
    struct Driver;
    required {
        // Those of every launch are in one cache line.
        ctx_get_current = "cuCtxGetCurrent": fn(*mut Handle) -> Status;
        stream_is_capturing = "cuStreamIsCapturing": fn(Handle, *mut c_int) -> Status;
        launch_kernel = "cuLaunchKernel": fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void) -> Status;
        init = "cuInit": fn(c_uint) -> Status;
        driver_get_version = "cuDriverGetVersion": fn(*mut c_int) -> Status;
        get_error_name = "cuGetErrorName": fn(Status, *mut *const c_char) -> Status;
        get_error_string = "cuGetErrorString": fn(Status, *mut *const c_char) -> Status;
        device_get_count = "cuDeviceGetCount": fn(*mut c_int) -> Status;
        device_get = "cuDeviceGet": fn(*mut c_int, c_int) -> Status;
        device_get_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int) -> Status;
        device_get_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int) -> Status;
        device_total_mem = "cuDeviceTotalMem_v2": fn(*mut usize, c_int) -> Status;
        ctx_set_current = "cuCtxSetCurrent": fn(Handle) -> Status;
        ctx_push_current = "cuCtxPushCurrent_v2": fn(Handle) -> Status;
        ctx_pop_current = "cuCtxPopCurrent_v2": fn(*mut Handle) -> Status;
        ctx_synchronize = "cuCtxSynchronize": fn() -> Status;
        ctx_get_device = "cuCtxGetDevice": fn(*mut c_int) -> Status;
        primary_ctx_retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int) -> Status;
        primary_ctx_release = "cuDevicePrimaryCtxRelease_v2": fn(c_int) -> Status;
        mem_get_info = "cuMemGetInfo_v2": fn(*mut usize, *mut usize) -> Status;
        module_load_data_ex = "cuModuleLoadDataEx": fn(*mut Handle, *const c_void, c_uint, *mut c_int, *mut *mut c_void) -> Status;
        module_unload = "cuModuleUnload": fn(Handle) -> Status;
        module_get_function = "cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char) -> Status;
        func_get_attribute = "cuFuncGetAttribute": fn(*mut c_int, c_int, Handle) -> Status;
        func_set_attribute = "cuFuncSetAttribute": fn(Handle, c_int, c_int) -> Status;
        max_active_blocks = "cuOccupancyMaxActiveBlocksPerMultiprocessor": fn(*mut c_int, Handle, c_int, usize) -> Status;
        launch_cooperative_kernel = "cuLaunchCooperativeKernel": fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void) -> Status;
        stream_synchronize = "cuStreamSynchronize": fn(Handle) -> Status;
        stream_end_capture = "cuStreamEndCapture": fn(Handle, *mut Handle) -> Status;
        graph_destroy = "cuGraphDestroy": fn(Handle) -> Status;
        exchange_capture_mode = "cuThreadExchangeStreamCaptureMode": fn(*mut c_int) -> Status;
    }
    optional {
        launch_kernel_ex = "cuLaunchKernelEx": fn(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void) -> Status;
        max_cluster_size = "cuOccupancyMaxPotentialClusterSize": fn(*mut c_int, Handle, *const LaunchConfig) -> Status;
        max_active_clusters = "cuOccupancyMaxActiveClusters": fn(*mut c_int, Handle, *const LaunchConfig) -> Status;
        ctx_get_exec_affinity = "cuCtxGetExecAffinity": fn(*mut ExecAffinity, c_int) -> Status;
        ctx_get_dev_resource = "cuCtxGetDevResource": fn(Handle, *mut DeviceResource, c_int) -> Status;
        stream_get_green_ctx = "cuStreamGetGreenCtx": fn(Handle, *mut Handle) -> Status;
        green_ctx_get_dev_resource = "cuGreenCtxGetDevResource": fn(Handle, *mut DeviceResource, c_int) -> Status;
        stream_priority_range = "cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int) -> Status;
        func_get_name = "cuFuncGetName": fn(*mut *const c_char, Handle) -> Status;
        kernel_get_function = "cuKernelGetFunction": fn(*mut Handle, Handle) -> Status;
        kernel_get_name = "cuKernelGetName": fn(*mut *const c_char, Handle) -> Status;
        logs_current = "cuLogsCurrent": fn(*mut c_uint, c_uint) -> Status;
        logs_dump_to_memory = "cuLogsDumpToMemory": fn(*mut c_uint, *mut c_char, *mut usize, c_uint) -> Status;
        func_get_param_info = "cuFuncGetParamInfo": fn(Handle, usize, *mut usize, *mut usize) -> Status;
    }
}

function_table! {
    /// Functions of libnvrtc.
    struct Nvrtc;
    required {
        version = "nvrtcVersion": fn(*mut c_int, *mut c_int) -> Status;
        get_error_string = "nvrtcGetErrorString": fn(Status) -> *const c_char;
        create_program = "nvrtcCreateProgram": fn(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> Status;
        destroy_program = "nvrtcDestroyProgram": fn(*mut Handle) -> Status;
        compile_program = "nvrtcCompileProgram": fn(Handle, c_int, *const *const c_char) -> Status;
        get_cubin_size = "nvrtcGetCUBINSize": fn(Handle, *mut usize) -> Status;
        get_cubin = "nvrtcGetCUBIN": fn(Handle, *mut c_char) -> Status;
        get_ptx_size = "nvrtcGetPTXSize": fn(Handle, *mut usize) -> Status;
        get_ptx = "nvrtcGetPTX": fn(Handle, *mut c_char) -> Status;
        get_log_size = "nvrtcGetProgramLogSize": fn(Handle, *mut usize) -> Status;
        get_log = "nvrtcGetProgramLog": fn(Handle, *mut c_char) -> Status;
    }
    optional {}
}

/// `CUexecAffinityParam` of the type `CU_EXEC_AFFINITY_TYPE_SM_COUNT`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct ExecAffinity {
    pub(crate) kind: c_int,
    pub(crate) multiprocessors: c_uint,
}

/// `CUdevResource` of the type `CU_DEV_RESOURCE_TYPE_SM`: 144 bytes up to CUDA 13.4, with the number of
/// multiprocessors at byte 96.
#[repr(C, align(8))]
#[derive(Debug)]
pub(crate) struct DeviceResource {
    pub(crate) kind: c_int,
    pub(crate) padding: [u8; 92],
    pub(crate) multiprocessors: c_uint,
    pub(crate) rest: [u8; 156],
}

impl DeviceResource {
    /// To be written by the driver.
    pub(crate) const NONE: Self =
        Self { kind: 0, padding: [0; 92], multiprocessors: 0, rest: [0; 156] };
}

/// `CU_EXEC_AFFINITY_TYPE_SM_COUNT`.
pub(crate) const AFFINITY_MULTIPROCESSORS: c_int = 0;
/// `CU_DEV_RESOURCE_TYPE_SM`.
pub(crate) const RESOURCE_MULTIPROCESSORS: c_int = 1;
/// `CU_STREAM_PER_THREAD`, the last of the handles that stand for a default stream.
pub(crate) const LAST_DEFAULT_STREAM: usize = 2;

/// Opens the first of `names` that the loader finds, and returns it with its name; or else each name
/// with the loader's message.
pub(crate) fn open(names: &[&str]) -> Result<(Library, String), Vec<(String, String)>> {
    let mut tried = Vec::new();
    for &name in names {
        // SAFETY: `Library::new` runs the library's initialisers. NVIDIA's libcuda, libnvrtc and libcublasLt may
        // be initialised on any thread at any time. Whoever sets the library path and `CUDA_HOME` vouches that
        // the file is NVIDIA's.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok((library, name.to_owned())),
            Err(error) => tried.push((name.to_owned(), loader_message(&error))),
        }
    }
    Err(tried)
}

/// What `dlopen` said: the source of libloading's error.
fn loader_message(error: &libloading::Error) -> String {
    let source = core::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

/// The function pointer of type `F` at `symbol` in `library`.
///
/// # Safety
///
/// `F` is a function pointer type with the signature that the library gives `symbol`, or a pointer that
/// is not used; and it is not used after the library is closed.
pub(crate) unsafe fn find<F: Copy>(library: &Library, symbol: &'static str) -> Option<F> {
    // SAFETY: `F` has the symbol's type, by this function's contract.
    unsafe { library.get::<F>(symbol.as_bytes()) }.ok().map(|found| *found)
}

/// The path of the file that `library` was loaded from, if the system knows it. The library has `symbol`.
#[cfg(unix)]
pub(crate) fn file_of(library: &Library, symbol: &'static str) -> Option<PathBuf> {
    use core::mem::MaybeUninit;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    // SAFETY: the address is not dereferenced, so its type does not matter.
    let address = *unsafe { library.get::<*const c_void>(symbol.as_bytes()) }.ok()?;
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` accepts any address and writes at most one `Dl_info` through the pointer.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: `Dl_info` holds only pointers, which may be null.
    let path = unsafe { info.assume_init() }.dli_fname;
    if found == 0 || path.is_null() {
        return None;
    }
    // SAFETY: not null, so a zero-terminated path that lives as long as the library, which the
    // caller holds open.
    let path = unsafe { CStr::from_ptr(path) };
    Some(OsStr::from_bytes(path.to_bytes()).into())
}

/// Only Unix toolkits ship stub folders.
#[cfg(not(unix))]
pub(crate) const fn file_of(_library: &Library, _symbol: &'static str) -> Option<PathBuf> {
    None
}

impl Driver {
    /// What `look_up` says about `status`.
    pub(crate) fn text(
        &self,
        look_up: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        status: Status,
    ) -> Option<String> {
        let mut text = core::ptr::null();
        // SAFETY: the driver writes a pointer to a static string, or null for an unknown code.
        let looked_up = unsafe { look_up(status, &raw mut text) };
        // SAFETY: where it succeeded and is not null, the pointer is to a static string.
        (looked_up == 0).then(|| unsafe { owned(text) }).flatten()
    }

    /// The `CUfunction` behind `handle` in the current context. CUDA runtimes since version 12 launch a `CUkernel` cast
    /// to a `CUfunction`; it can be launched, but not queried. Any other handle is returned unchanged.
    ///
    /// # Safety
    ///
    /// `handle` is a loaded function or kernel.
    pub(crate) unsafe fn function_of(&self, handle: Handle) -> Handle {
        let mut function = core::ptr::null_mut();
        let found = self.kernel_get_function.is_some_and(|look_up| {
            // SAFETY: the handle is alive, by this function's contract; for a `CUfunction` the call
            // returns an error. The pointer is to a live handle.
            unsafe { look_up(&raw mut function, handle) == 0 }
        });
        if found { function } else { handle }
    }

    /// The name of a `CUfunction`, or of a `CUkernel` cast to one, which CUDA runtimes launch since
    /// version 12; a placeholder if the driver has no names (before CUDA 12.3).
    ///
    /// # Safety
    ///
    /// `function` is a loaded function or kernel.
    pub(crate) unsafe fn name_of(&self, function: Handle) -> String {
        let look_ups = [self.func_get_name, self.kernel_get_name];
        let name = look_ups.into_iter().flatten().find_map(|look_up| {
            let mut name = core::ptr::null();
            // SAFETY: the handle is alive, by this function's contract; a call for the other kind
            // of handle returns an error. The driver writes a pointer that lives with the handle.
            let status = unsafe { look_up(&raw mut name, function) };
            // SAFETY: where it succeeded and is not null, the pointer is to a string that lives as
            // long as the function.
            (status == 0).then(|| unsafe { owned(name) }).flatten()
        });
        name.unwrap_or_else(|| "<unnamed>".to_owned())
    }

    /// The context that is current on this thread, if any.
    pub(crate) fn current_context(&self) -> Option<Handle> {
        let mut current = core::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let status = unsafe { (self.ctx_get_current)(&raw mut current) };
        (status == 0 && !current.is_null()).then_some(current)
    }
}

/// A copy of the C string at `text`, unless that is null.
///
/// # Safety
///
/// `text` is null or points to a zero-terminated string.
pub(crate) unsafe fn owned(text: *const c_char) -> Option<String> {
    // SAFETY: not null, so a zero-terminated string by this function's contract.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
