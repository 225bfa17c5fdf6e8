//! What no CUDA answers any more, for those who meet it in an old program or an old text.

use crate::diagnose::failure::{Failure, UsualCause, cause};

const OLD_RUNTIME: &[UsualCause] = &[cause(
    "the program was built with a CUDA of many years ago, or the number is not one of CUDA",
    "look at the words beside it, and build the program with a CUDA of today",
)];

const fn retired(number: i32, name: &'static str, words: &'static [&'static str]) -> Failure {
    let meaning = "no release of CUDA since 10.1 answers so";
    Failure::runtime(number, name, words, meaning, OLD_RUNTIME).retired()
}

const fn of_driver(
    number: i32,
    name: &'static str,
    runtime_name: &'static str,
    words: &'static [&'static str],
) -> Failure {
    let meaning = "no release of CUDA since 5.0 answers so";
    Failure::driver(number, name, runtime_name, words, meaning, OLD_RUNTIME).retired()
}

pub(super) const FAILURES: &[Failure] = &[
    of_driver(
        6,
        "CUDA_ERROR_PROFILER_NOT_INITIALIZED",
        "cudaErrorProfilerNotInitialized",
        &["profiler not initialized: call cudaProfilerInitialize()"],
    ),
    of_driver(
        7,
        "CUDA_ERROR_PROFILER_ALREADY_STARTED",
        "cudaErrorProfilerAlreadyStarted",
        &["profiler already started"],
    ),
    of_driver(
        8,
        "CUDA_ERROR_PROFILER_ALREADY_STOPPED",
        "cudaErrorProfilerAlreadyStopped",
        &["profiler already stopped"],
    ),
    retired(16, "cudaErrorInvalidHostPointer", &["invalid host pointer"]),
    retired(22, "cudaErrorAddressOfConstant", &["invalid address of constant"]),
    retired(23, "cudaErrorTextureFetchFailed", &["fetch from texture failed"]),
    retired(24, "cudaErrorTextureNotBound", &["cannot fetch from a texture that is not bound"]),
    retired(25, "cudaErrorSynchronizationError", &["incorrect use of __syncthreads()"]),
    retired(
        28,
        "cudaErrorMixedDeviceExecution",
        &["device emulation mode and device execution mode cannot be mixed"],
    ),
    retired(31, "cudaErrorNotYetImplemented", &["feature not yet implemented"]),
    retired(
        32,
        "cudaErrorMemoryValueTooLarge",
        &["memory size or pointer value too large to fit in 32 bit"],
    ),
    retired(53, "cudaErrorPriorLaunchFailure", &["unspecified launch failure in prior launch"]),
    Failure::driver_alone(
        202,
        "CUDA_ERROR_CONTEXT_ALREADY_CURRENT",
        "no release of CUDA since 3.2 answers so",
        OLD_RUNTIME,
    )
    .retired(),
];
