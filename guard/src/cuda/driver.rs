//! The driver's functions that the guard calls itself.
//!
//! They are looked up here and not through cudarc, because cudarc panics where a library or a
//! symbol is missing, and because its enums cannot hold numbers that its version does not know.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;
use libloading::Library;
use once_cell::sync::OnceCell;

use super::driver_log::{self, Mark};
use super::error::{Background, DriverError, DriverUnavailable};
use super::library::{self, function_table};

/// A context, module, function or stream of the driver.
pub(super) type Handle = *mut c_void;
/// The driver's `CUresult`; an integer, since drivers know codes that no binding does.
pub(super) type Status = c_int;

function_table! {
    /// Functions of libcuda.
    struct Driver;
    required {
        init = "cuInit": fn(c_uint) -> Status;
        driver_get_version = "cuDriverGetVersion": fn(*mut c_int) -> Status;
        get_error_name = "cuGetErrorName": fn(Status, *mut *const c_char) -> Status;
        get_error_string = "cuGetErrorString": fn(Status, *mut *const c_char) -> Status;
        device_get_count = "cuDeviceGetCount": fn(*mut c_int) -> Status;
        device_get = "cuDeviceGet": fn(*mut c_int, c_int) -> Status;
        device_get_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int) -> Status;
        device_get_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int) -> Status;
        device_total_mem = "cuDeviceTotalMem_v2": fn(*mut usize, c_int) -> Status;
        ctx_get_current = "cuCtxGetCurrent": fn(*mut Handle) -> Status;
        ctx_set_current = "cuCtxSetCurrent": fn(Handle) -> Status;
        ctx_push_current = "cuCtxPushCurrent_v2": fn(Handle) -> Status;
        ctx_pop_current = "cuCtxPopCurrent_v2": fn(*mut Handle) -> Status;
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
        launch_kernel = "cuLaunchKernel": fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void) -> Status;
        launch_cooperative_kernel = "cuLaunchCooperativeKernel": fn(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void) -> Status;
        stream_synchronize = "cuStreamSynchronize": fn(Handle) -> Status;
    }
    optional {
        launch_kernel_ex = "cuLaunchKernelEx": fn(*const LaunchConfigEx, Handle, *mut *mut c_void, *mut *mut c_void) -> Status;
        max_cluster_size = "cuOccupancyMaxPotentialClusterSize": fn(*mut c_int, Handle, *const LaunchConfigEx) -> Status;
        max_active_clusters = "cuOccupancyMaxActiveClusters": fn(*mut c_int, Handle, *const LaunchConfigEx) -> Status;
        stream_priority_range = "cuCtxGetStreamPriorityRange": fn(*mut c_int, *mut c_int) -> Status;
        func_get_name = "cuFuncGetName": fn(*mut *const c_char, Handle) -> Status;
        stream_is_capturing = "cuStreamIsCapturing": fn(Handle, *mut c_int) -> Status;
        logs_current = "cuLogsCurrent": fn(*mut c_uint, c_uint) -> Status;
        logs_dump_to_memory = "cuLogsDumpToMemory": fn(*mut c_uint, *mut c_char, *mut usize, c_uint) -> Status;
        func_get_param_info = "cuFuncGetParamInfo": fn(Handle, usize, *mut usize, *mut usize) -> Status;
    }
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct LaunchConfigEx {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: Handle,
    pub(super) attributes: *mut LaunchAttribute,
    pub(super) attribute_count: c_uint,
}

/// `CUlaunchAttribute`: an id and a union of 64 bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchAttribute {
    pub(super) id: c_uint,
    pub(super) padding: [u8; 4],
    pub(super) value: [c_uint; 16],
}

impl LaunchAttribute {
    /// What says nothing.
    pub(super) const NONE: Self = Self { id: 0, padding: [0; 4], value: [0; 16] };

    /// The attribute `id` with the first words of its value.
    pub(super) fn new(id: c_uint, [x, y, z]: [c_uint; 3]) -> Self {
        let mut value = [0; 16];
        value[..3].copy_from_slice(&[x, y, z]);
        Self { id, value, ..Self::NONE }
    }
}

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
pub(super) const ATTRIBUTE_COOPERATIVE: c_uint = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
pub(super) const ATTRIBUTE_CLUSTER_DIMENSION: c_uint = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
pub(super) const ATTRIBUTE_OVERLAP: c_uint = 6;

/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
pub(super) const ATTRIBUTE_PRIORITY: c_uint = 8;

/// What cudarc calls for contexts, streams, events and memory: it panics where one is missing.
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

/// Names under which the loader finds the driver.
const NAMES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// The name under which cudarc looks for the driver first, where that is not the guard's own first.
const CUDARCS_NAMES: &[&str] = if cfg!(windows) { &[] } else { &["libcuda.so"] };

/// The oldest driver that the guard serves: CUDA 12.0, as `cuDriverGetVersion` counts.
const OLDEST_DRIVER: i32 = 12_000;

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: Status = 100;

/// A function that cudarc would call and `library` lacks, if any.
fn missing_for_cudarc(library: &Library) -> Option<&'static str> {
    // SAFETY: only the presence is asked for; the pointer is never called.
    let lacks = |symbol| unsafe { library::symbol::<*const c_void>(library, symbol) }.is_none();
    CUDARC_NEEDS.into_iter().find(|symbol| lacks(symbol))
}

impl Driver {
    /// The initialised driver, found once for the process.
    pub(super) fn get() -> Result<&'static Self, DriverUnavailable> {
        static DRIVER: OnceCell<Result<Driver, DriverUnavailable>> = OnceCell::new();
        DRIVER.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, DriverUnavailable> {
        let (library, name) = library::open(NAMES)
            .map_err(|missing| DriverUnavailable::LibraryMissing { tried: missing.tried })?;
        let too_old = |symbol: &'static str| DriverUnavailable::SymbolMissing {
            library: name.clone(),
            symbol,
        };
        let driver = Self::resolve(library).map_err(too_old)?;
        if let Some(symbol) = missing_for_cudarc(&driver.library) {
            return Err(too_old(symbol));
        }
        driver.check_cudarcs(&name)?;
        // SAFETY: cuInit takes no pointer, and zero is its only legal flag.
        let status = unsafe { (driver.init)(0) };
        if status == NO_DEVICE {
            return Err(DriverUnavailable::no_device(&driver));
        }
        driver.check("cuInit", status).map_err(DriverUnavailable::InitFailed)?;
        driver_log::begin(&driver);
        let version = driver.version().map_err(DriverUnavailable::InitFailed)?;
        if version < OLDEST_DRIVER {
            return Err(DriverUnavailable::TooOld { version, oldest: OLDEST_DRIVER });
        }
        Ok(driver)
    }

    /// Checks that cudarc calls the library called `ours` too: contexts and streams go from one to
    /// the other. cudarc looks for a library by itself, and under another name first.
    fn check_cudarcs(&self, ours: &str) -> Result<(), DriverUnavailable> {
        if let Ok((library, name)) = library::open(CUDARCS_NAMES)
            && let Some(symbol) = missing_for_cudarc(&library)
        {
            return Err(DriverUnavailable::SymbolMissing { library: name, symbol });
        }
        let (mut own, mut cudarcs) = (core::ptr::null(), core::ptr::null());
        // SAFETY: the driver writes a pointer to a static string; this needs no initialisation.
        let status = unsafe { (self.get_error_name)(0, &raw mut own) };
        // SAFETY: as above; the library that cudarc finds has the function, or is the linked one.
        let answer = unsafe { sys::cuGetErrorName(sys::CUresult::CUDA_SUCCESS, &raw mut cudarcs) };
        // Each library has a name of its own for success, at an address of its own. One that has no
        // words cannot be told from another.
        let same = own == cudarcs && (status == 0) == (answer == sys::CUresult::CUDA_SUCCESS);
        if same { Ok(()) } else { Err(DriverUnavailable::OtherLibrary { ours: ours.to_owned() }) }
    }

    /// The CUDA version that the driver supports: 1000 * major + 10 * minor.
    pub(super) fn version(&self) -> Result<i32, DriverError> {
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        let status = unsafe { (self.driver_get_version)(&raw mut version) };
        self.check("cuDriverGetVersion", status)?;
        Ok(version)
    }

    /// Turns a status into a result with the driver's own name and words for it.
    #[inline]
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), DriverError> {
        self.check_since(None, call, status)
    }

    /// As [`Self::check`], with no older words of the driver's than from `mark` on.
    #[inline]
    pub(super) fn check_since(
        &self,
        mark: Option<Mark>,
        call: &'static str,
        status: Status,
    ) -> Result<(), DriverError> {
        if status == 0 { Ok(()) } else { Err(self.error(mark, call, status)) }
    }

    #[cold]
    fn error(&self, mark: Option<Mark>, call: &'static str, status: Status) -> DriverError {
        DriverError {
            call,
            code: status,
            name: self.words(self.get_error_name, status).unwrap_or_else(|| "unknown error".into()),
            description: self.words(self.get_error_string, status).unwrap_or_default().into(),
            background: Background::of(self, call, status, mark, None),
        }
    }

    fn words(
        &self,
        look_up: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
        status: Status,
    ) -> Option<String> {
        let mut text = core::ptr::null();
        // SAFETY: the driver writes a pointer to a static string, or null for an unknown code.
        let answer = unsafe { look_up(status, &raw mut text) };
        if answer != 0 || text.is_null() {
            return None;
        }
        // SAFETY: not null, so a zero-terminated string that lives as long as the library.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// The context that is current on this thread, where one is.
    pub(super) fn current_context(&self) -> Option<Handle> {
        let mut current = core::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let status = unsafe { (self.ctx_get_current)(&raw mut current) };
        (status == 0 && !current.is_null()).then_some(current)
    }

    /// Makes `context` current on this thread, as cudarc does: only where it is not already.
    #[inline]
    pub(super) fn bind(&self, context: Handle) -> Result<(), DriverError> {
        let mut current = core::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        let status = unsafe { (self.ctx_get_current)(&raw mut current) };
        self.check("cuCtxGetCurrent", status)?;
        if current == context {
            return Ok(());
        }
        // SAFETY: the context is alive; whoever passes it here keeps it so.
        let status = unsafe { (self.ctx_set_current)(context) };
        self.check("cuCtxSetCurrent", status)
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn structs_are_laid_out_as_in_cuda_h() {
        // As a C compiler has it, with the headers of CUDA 12.0 to 13.5.
        assert_eq!((size_of::<LaunchAttribute>(), align_of::<LaunchAttribute>()), (72, 8));
        assert_eq!((offset_of!(LaunchAttribute, id), offset_of!(LaunchAttribute, value)), (0, 8));
        assert_eq!((size_of::<LaunchConfigEx>(), align_of::<LaunchConfigEx>()), (56, 8));
        let offsets = [
            offset_of!(LaunchConfigEx, grid),
            offset_of!(LaunchConfigEx, block),
            offset_of!(LaunchConfigEx, shared_bytes),
            offset_of!(LaunchConfigEx, stream),
            offset_of!(LaunchConfigEx, attributes),
            offset_of!(LaunchConfigEx, attribute_count),
        ];
        assert_eq!(offsets, [0, 12, 24, 32, 40, 48]);
    }
}
