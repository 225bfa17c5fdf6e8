//! Types and constants of the CUDA driver's interface.

use core::ffi::{c_char, c_int, c_uint, c_void};

/// A context, module, function or stream of the driver.
pub(crate) type Handle = *mut c_void;
/// A `CUresult`, as an integer: a driver may return codes that are not known here.
pub(crate) type Status = c_int;

/// `CUDA_SUCCESS`.
pub(crate) const SUCCESS: Status = 0;
/// `CUDA_ERROR_NOT_INITIALIZED`.
pub(crate) const NOT_INITIALIZED: Status = 3;
/// `CUDA_ERROR_DEINITIALIZED`.
pub(crate) const DEINITIALIZED: Status = 4;

/// `cuLaunchKernel`: function, grid, block, dynamic shared memory, stream, parameters, extra.
pub(crate) type LaunchKernel = unsafe extern "C-unwind" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;
/// `cuLaunchCooperativeKernel`: as `cuLaunchKernel`, without extra.
pub(crate) type LaunchCooperative = unsafe extern "C-unwind" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
) -> Status;
/// `cuLaunchKernelEx`: configuration, function, parameters, extra.
pub(crate) type LaunchEx = unsafe extern "C-unwind" fn(
    *const LaunchConfig,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;
/// `cuGetProcAddress` up to CUDA 11: name, address, version, flags.
pub(crate) type ProcAddress =
    unsafe extern "C-unwind" fn(*const c_char, *mut *mut c_void, c_int, u64) -> Status;
/// `cuGetProcAddress` since CUDA 12, with a further result.
pub(crate) type ProcAddressV2 =
    unsafe extern "C-unwind" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> Status;
/// `cuModuleGetFunction` and `cuLibraryGetKernel`: result, module or library, name.
pub(crate) type FindKernel =
    unsafe extern "C-unwind" fn(*mut Handle, Handle, *const c_char) -> Status;
/// A call with a stream or an event.
pub(crate) type OnHandle = unsafe extern "C-unwind" fn(Handle) -> Status;
/// A call without arguments.
pub(crate) type Plain = unsafe extern "C-unwind" fn() -> Status;
/// `cuMemcpyDtoH`: to, from, bytes.
pub(crate) type CopyToHost = unsafe extern "C-unwind" fn(*mut c_void, u64, usize) -> Status;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
pub(crate) const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: Handle,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) attribute_count: c_uint,
}

/// `CUlaunchAttribute`: an id and a union of 64 bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_uint,
    pub(crate) padding: [u8; 4],
    pub(crate) value: [c_uint; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
pub(crate) const COOPERATIVE: c_uint = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
pub(crate) const CLUSTER_DIMENSION: c_uint = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
pub(crate) const DEPENDENT: c_uint = 6;
/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
pub(crate) const PRIORITY: c_uint = 8;

const _: () = assert!(size_of::<LaunchConfig>() == 56 && size_of::<LaunchAttribute>() == 72);
