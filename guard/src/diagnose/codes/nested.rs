//! Kernels that launch kernels.

use super::LIST_ELF;
use crate::diagnose::failure::{Failure, UsualCause, cause};

const DEEP: UsualCause = cause(
    "kernels launch kernels deeper or more often than room was set aside for",
    "launch less from the device, or raise the limit with cudaDeviceSetLimit before the first launch",
);
const OBJECTS: UsualCause =
    cause("a kernel that other kernels launch uses textures of its file", "pass texture objects");

pub(super) const FAILURES: &[Failure] = &[
    Failure::runtime(
        65,
        "cudaErrorLaunchMaxDepthExceeded",
        &["launch would exceed maximum depth of nested launches"],
        "a kernel launches a kernel deeper than 24 levels",
        &[DEEP],
    ),
    Failure::runtime(
        66,
        "cudaErrorLaunchFileScopedTex",
        &["launch failed because kernel uses unsupported, file-scoped textures"],
        "a kernel launched from the device reads a texture of its file",
        &[OBJECTS],
    ),
    Failure::runtime(
        67,
        "cudaErrorLaunchFileScopedSurf",
        &["launch failed because kernel uses unsupported, file-scoped surfaces"],
        "a kernel launched from the device uses a surface of its file",
        &[OBJECTS],
    ),
    Failure::runtime(
        68,
        "cudaErrorSyncDepthExceeded",
        &["cudaDeviceSynchronize failed because caller's grid depth exceeds"],
        "a kernel waits for its children deeper than was set aside for",
        &[DEEP],
    ),
    Failure::runtime(
        69,
        "cudaErrorLaunchPendingCountExceeded",
        &["launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount"],
        "more launches from the device wait than was set aside for",
        &[DEEP],
    ),
    Failure::driver(
        811,
        "CUDA_ERROR_CDP_NOT_SUPPORTED",
        "cudaErrorCdpNotSupported",
        &["is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not \
           support it"],
        "a kernel launches kernels where that is not possible",
        &[cause("the process shares the device through MPS", "run it without MPS")],
    ),
    Failure::driver(
        812,
        "CUDA_ERROR_CDP_VERSION_MISMATCH",
        "cudaErrorCdpVersionMismatch",
        &["unsupported interaction between different versions of CUDA Dynamic Parallelism"],
        "kernels that launch kernels were compiled for two ways of doing so",
        &[cause(
            "parts of the program were compiled before CUDA 12, or with CUDA_FORCE_CDP1_IF_SUPPORTED",
            "compile all of it alike",
        )],
    )
    .run(&[LIST_ELF]),
];
