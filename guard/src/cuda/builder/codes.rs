//! Converts launch errors to cudarc's errors.

use cudarc::driver::DriverError as CudarcError;
use cudarc::driver::sys::CUresult;

use crate::cuda::driver::library::code_of;
use crate::cuda::driver::symbols::{INVALID_CLUSTER_SIZE, Status};
use crate::cuda::error::{CudaError, LaunchError, LaunchErrorKind};

impl From<&LaunchError> for CudarcError {
    /// cudarc's error with the code that the driver returned, or for violations the code that it would have returned
    /// ([`Violations::driver_code`](crate::Violations::driver_code)). It is `CUDA_ERROR_INVALID_VALUE` if no code is
    /// known, and for `CUDA_ERROR_INVALID_CLUSTER_SIZE`, which the oldest bindings lack. The conversion keeps only the
    /// code: report the [`LaunchError`] first.
    fn from(error: &LaunchError) -> Self {
        match error.kind() {
            LaunchErrorKind::OtherContext { .. } => Self(CUresult::CUDA_ERROR_INVALID_CONTEXT),
            LaunchErrorKind::Captured { .. } => {
                Self(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
            LaunchErrorKind::Unsupported { .. } => Self(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => Self(error.driver_code().map_or(CUresult::CUDA_ERROR_INVALID_VALUE, result_of)),
        }
    }
}

impl From<LaunchError> for CudarcError {
    fn from(error: LaunchError) -> Self {
        Self::from(&error)
    }
}

impl LaunchError {
    /// The `CUresult` that the driver returned, or would have returned for violations, see
    /// [`Violations::driver_code`](crate::Violations::driver_code). `None` if the driver has no code for the error.
    pub fn driver_code(&self) -> Option<i32> {
        match self.kind() {
            LaunchErrorKind::Invalid(violations) => violations.driver_code(),
            _ => self.driver().map(|error| error.code),
        }
    }
}

impl CudaError {
    /// The `CUresult` that the driver returned. `None` if the error is not the driver's.
    pub fn driver_code(&self) -> Option<i32> {
        self.driver().map(|error| error.code)
    }
}

/// The `CUresult` of `code`. The oldest bindings lack `INVALID_CLUSTER_SIZE`, which becomes `INVALID_VALUE`.
/// Codes that no call around a launch returns become `UNKNOWN`.
fn result_of(code: Status) -> CUresult {
    if code == INVALID_CLUSTER_SIZE {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    let found = RESULTS.into_iter().find(|result| code_of(CudarcError(*result)) == code);
    found.unwrap_or(CUresult::CUDA_ERROR_UNKNOWN)
}

#[rustfmt::skip]
const RESULTS: [CUresult; 51] = {
    use CUresult::*;
    [
        CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_INITIALIZED,
        CUDA_ERROR_DEINITIALIZED, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_INVALID_DEVICE,
        CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_MAP_FAILED,
        CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_INVALID_PTX,
        CUDA_ERROR_NVLINK_UNCORRECTABLE, CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION, CUDA_ERROR_OPERATING_SYSTEM,
        CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_NOT_FOUND,
        CUDA_ERROR_NOT_READY, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        CUDA_ERROR_LAUNCH_TIMEOUT, CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING,
        CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_ASSERT, CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_ILLEGAL_INSTRUCTION, CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE, CUDA_ERROR_INVALID_PC, CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, CUDA_ERROR_NOT_PERMITTED,
        CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        CUDA_ERROR_STREAM_CAPTURE_MERGE, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUDA_ERROR_MPS_CONNECTION_FAILED,
        CUDA_ERROR_MPS_RPC_FAILURE, CUDA_ERROR_MPS_SERVER_NOT_READY,
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED, CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_TIMEOUT,
        CUDA_ERROR_EXTERNAL_DEVICE,
    ]
};
