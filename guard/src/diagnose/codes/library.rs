//! What libraries say of failures, their own and those beneath them.

use super::{BLOCKING, EXECUTION, NVIDIA_SMI, TORCH_BUILD};
use crate::diagnose::failure::{Failure, Hint, Origin, UsualCause, cause, hinted};

pub(super) const BENEATH: UsualCause = cause(
    "a CUDA call beneath failed; its own error stands in an earlier line",
    "look for the first CUDA error of the log",
);
const EARLIER: UsualCause = hinted(
    Hint::EarlierLaunch,
    "an earlier kernel failed and the library's call is the first to hear of it",
    "run with blocking launches",
);
const NO_ROOM: UsualCause = hinted(
    Hint::LittleFree,
    "no memory is left for the library's handle and workspace, because an allocator holds it all",
    "leave some hundred MiB free, or create the handle before memory fills up",
);

pub(super) const FAILURES: &[Failure] = &[
    Failure::new(
        Origin::Cublas,
        "CUBLAS_STATUS_NOT_INITIALIZED",
        &["the library was not initialized"],
        "cuBLAS could not set itself up on the device",
        &[NO_ROOM, EARLIER],
    )
    .follows()
    .numbered(1)
    .not("a fault of the installation, mostly: memory is short, or the context is already lost")
    .run(&[NVIDIA_SMI, BLOCKING]),
    Failure::new(
        Origin::Cublas,
        "CUBLAS_STATUS_ALLOC_FAILED",
        &["the resource allocation failed"],
        "cuBLAS got no memory for its handle or workspace",
        &[NO_ROOM],
    )
    .follows()
    .numbered(3)
    .run(&[NVIDIA_SMI]),
    Failure::new(
        Origin::Cublas,
        "CUBLAS_STATUS_INVALID_VALUE",
        &["an unsupported value or parameter was passed to the function"],
        "cuBLAS was given sizes, strides or types that it does not take",
        &[
            cause(
                "a leading dimension is too small, or a size is 0 or over 2^31 - 1",
                "print them",
            ),
            cause(
                "two versions of cuBLAS are mixed, as of the system and of a Python package",
                "take the system's out of LD_LIBRARY_PATH",
            ),
        ],
    )
    .numbered(7)
    .run(&[TORCH_BUILD]),
    Failure::new(
        Origin::Cublas,
        "CUBLAS_STATUS_ARCH_MISMATCH",
        &["the function requires an architectural feature absent from the"],
        "the device lacks what the call needs, such as tensor cores for its type",
        &[cause("the type is too new for the device", "use f16 or f32 instead")],
    )
    .numbered(8),
    Failure::new(
        Origin::Cublas,
        "CUBLAS_STATUS_MAPPING_ERROR",
        &["an access to GPU memory space failed"],
        "cuBLAS could not reach memory of the device",
        &[EARLIER],
    )
    .follows()
    .numbered(11)
    .late()
    .run(EXECUTION),
    Failure::new(
        Origin::Cublas,
        "CUBLAS_STATUS_EXECUTION_FAILED",
        &["the GPU program failed to execute"],
        "a kernel of cuBLAS did not run to its end",
        &[
            EARLIER,
            cause(
                "a batch is over 65535, or offsets wrap in 32 bits",
                "split the batch, and update cuBLAS",
            ),
        ],
    )
    .follows()
    .numbered(13)
    .late()
    .run(EXECUTION),
    Failure::new(
        Origin::Cublas,
        "CUBLAS_STATUS_INTERNAL_ERROR",
        &["an internal operation failed"],
        "a call of cuBLAS beneath failed",
        &[EARLIER, BENEATH],
    )
    .follows()
    .numbered(14)
    .run(EXECUTION),
    Failure::new(
        Origin::Cublas,
        "CUBLAS_STATUS_NOT_SUPPORTED",
        &["the requested functionality is not supported"],
        "cuBLAS has no kernel for this combination of types, layout and alignment",
        &[cause("sizes or pointers are not aligned to 16 bytes, as fp8 needs", "pad them")],
    )
    .numbered(15),
    Failure::new(
        Origin::Cudnn,
        "CUDNN_STATUS_NOT_INITIALIZED",
        &["DNN library initialization failed"],
        "cuDNN could not set itself up on the device",
        &[NO_ROOM, cause("libraries of several cuDNN versions are mixed", "keep one"), EARLIER],
    )
    .follows()
    .run(&[NVIDIA_SMI, "python -c 'import torch; print(torch.backends.cudnn.version())'"]),
    Failure::new(
        Origin::Cudnn,
        "CUDNN_STATUS_ALLOC_FAILED",
        &["unable to find a valid cuDNN algorithm"],
        "cuDNN got no memory for its workspace",
        &[NO_ROOM],
    )
    .follows()
    .run(&[NVIDIA_SMI]),
    Failure::new(
        Origin::Cudnn,
        "CUDNN_STATUS_BAD_PARAM",
        &[],
        "cuDNN was given shapes, strides or types that do not belong together",
        &[cause("a tensor is empty or not contiguous", "print shapes and strides")],
    ),
    Failure::new(
        Origin::Cudnn,
        "CUDNN_STATUS_INTERNAL_ERROR",
        &[],
        "a call of cuDNN beneath failed, for want of memory more often than not",
        &[NO_ROOM, cause("libraries of several cuDNN versions are mixed", "keep one"), EARLIER],
    )
    .follows()
    .run(&[NVIDIA_SMI, BLOCKING]),
    Failure::new(
        Origin::Cudnn,
        "CUDNN_STATUS_ARCH_MISMATCH",
        &[],
        "this cuDNN has no kernels for the device",
        &[hinted(Hint::Architecture, "the device is too old or too new", "use another cuDNN")],
    ),
    Failure::new(
        Origin::Cudnn,
        "CUDNN_STATUS_MAPPING_ERROR",
        &[],
        "cuDNN could not reach memory of the device",
        &[EARLIER, NO_ROOM],
    )
    .follows()
    .late()
    .run(EXECUTION),
    Failure::new(
        Origin::Cudnn,
        "CUDNN_STATUS_EXECUTION_FAILED",
        &[],
        "a kernel of cuDNN did not run to its end",
        &[
            EARLIER,
            cause(
                "a batch is over 65535: cuDNN puts it on an axis of the grid",
                "split the batch, or use another kernel for it",
            ),
        ],
    )
    .follows()
    .late()
    .run(EXECUTION),
    Failure::new(
        Origin::Cudnn,
        "CUDNN_STATUS_NOT_SUPPORTED",
        &[],
        "cuDNN has no kernel for these shapes and types",
        &[cause(
            "a tensor is not contiguous, is too large, or of an unusual type",
            "call .contiguous(), split it, or switch cuDNN off for the operation",
        )],
    ),
    Failure::new(
        Origin::Cudnn,
        "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
        &["cuDNN version incompatibility", "loaded runtime CuDNN library"],
        "the cuDNN that was found is not the one that the program was built with",
        &[cause(
            "a system's cuDNN is found before the package's own",
            "take the system's out of LD_LIBRARY_PATH, so that one is left",
        )],
    )
    .run(&["echo \"$LD_LIBRARY_PATH\"", "ldconfig -p | grep cudnn"]),
    Failure::new(
        Origin::Cufft,
        "CUFFT_ALLOC_FAILED",
        &[],
        "cuFFT got no memory for its plan",
        &[NO_ROOM],
    )
    .run(&[NVIDIA_SMI]),
    Failure::new(
        Origin::Cufft,
        "CUFFT_INTERNAL_ERROR",
        &[],
        "cuFFT could not set a plan up or run it",
        &[
            cause(
                "this cuFFT is older than the device: those of CUDA 11.7 and before fail on sm_89",
                "install a build for a newer CUDA",
            ),
            NO_ROOM,
            EARLIER,
        ],
    )
    .follows()
    .run(&[TORCH_BUILD, NVIDIA_SMI]),
    Failure::new(
        Origin::Cusolver,
        "CUSOLVER_STATUS_INTERNAL_ERROR",
        &[],
        "a call of cuSOLVER beneath failed, for want of memory more often than not",
        &[
            NO_ROOM,
            EARLIER,
            cause(
                "the matrix has values that are not finite",
                "look for NaN and infinity before the call",
            ),
        ],
    )
    .follows()
    .run(&[NVIDIA_SMI, BLOCKING]),
];
