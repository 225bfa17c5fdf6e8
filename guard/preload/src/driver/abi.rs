//! Types and constants of the CUDA driver's interface.

use core::ffi::{c_char, c_int, c_uint, c_void};

/// A context, module, function or stream of the driver.
pub(crate) type Handle = *mut c_void;
/// A `CUresult`, as an integer: a driver may return codes that are not known here.
pub(crate) type Status = c_int;

/// `CUDA_SUCCESS`.
pub(crate) const SUCCESS: Status = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: Status = 1;
/// `CUDA_ERROR_INVALID_CLUSTER_SIZE`.
pub(crate) const INVALID_CLUSTER_SIZE: Status = 912;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Status = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`.
pub(crate) const NOT_INITIALIZED: Status = 3;
/// `CUDA_ERROR_DEINITIALIZED`.
pub(crate) const DEINITIALIZED: Status = 4;

/// `cudaErrorInvalidConfiguration`.
pub(crate) const INVALID_CONFIGURATION: Status = 9;
/// `cudaErrorInvalidValue` and `cudaErrorInvalidConfiguration`: the errors of launches that a runtime refuses without
/// a call of the driver.
pub(crate) const INVALID_FOR_RUNTIME: [(Status, &str); 2] = [
    (1, "cudaErrorInvalidValue (1), invalid argument"),
    (INVALID_CONFIGURATION, "cudaErrorInvalidConfiguration (9), invalid configuration argument"),
];

/// `CUlogsCallback`: data, level, message and its length.
pub(crate) type LogCallback = extern "C" fn(*mut c_void, c_uint, *mut c_char, usize);

/// `cuModuleGetFunction` and `cuLibraryGetKernel`: result, module or library, name.
pub(crate) type FindKernel =
    unsafe extern "C-unwind" fn(*mut Handle, Handle, *const c_char) -> Status;

/// The start of a `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryProperties {
    pub(crate) kind: c_int,
    pub(crate) handles: c_int,
    pub(crate) location_kind: c_int,
    pub(crate) location: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(crate) const LOCATION_DEVICE: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`, `..._HOST_NUMA` and `..._HOST_NUMA_CURRENT`.
pub(crate) const LOCATIONS_HOST: [c_int; 3] = [2, 3, 4];
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
pub(crate) const POOL_RESERVED: c_int = 5;
pub(crate) const POOL_USED: c_int = 7;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
pub(crate) const PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const CAPTURE_RELAXED: c_int = 2;

/// `CU_LIBRARY_BINARY_IS_PRESERVED`: the image lives as long as the library.
pub(crate) const BINARY_IS_PRESERVED: c_int = 1;

/// `CU_LAUNCH_ATTRIBUTE_PORTABLE_CLUSTER_SIZE_MODE`, and its value that allows a cluster above the portable size.
pub(crate) const PORTABLE_CLUSTER_SIZE_MODE: c_uint = 17;
pub(crate) const ALLOW_NON_PORTABLE: c_uint = 2;

/// `CU_LAUNCH_PARAM_END`, `CU_LAUNCH_PARAM_BUFFER_POINTER` and `CU_LAUNCH_PARAM_BUFFER_SIZE`: the
/// options in the list `extra` of a launch.
pub(crate) const PARAM_END: usize = 0;
pub(crate) const PARAM_BUFFER_POINTER: usize = 1;
pub(crate) const PARAM_BUFFER_SIZE: usize = 2;
