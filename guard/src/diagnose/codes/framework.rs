//! Programs above CUDA: XLA, Triton, NVRTC.

use super::library::BENEATH;
use super::memory::{OTHER_PROCESS, TOO_LITTLE_FREE};
use super::{LIMITS, NVIDIA_SMI, TORCH_BUILD};
use crate::diagnose::failure::{Failure, Origin, cause};

pub(super) const FAILURES: &[Failure] = &[
    Failure::new(
        Origin::Xla,
        "RESOURCE_EXHAUSTED",
        &[
            "RESOURCE_EXHAUSTED: Out of memory",
            "RESOURCE_EXHAUSTED: Failed to allocate",
            "OOM when allocating tensor",
            "ran out of memory trying to allocate",
        ],
        "the allocator of XLA or TensorFlow has no piece of that size left",
        &[
            TOO_LITTLE_FREE,
            cause(
                "another process, or PyTorch in the same one, shares the device: JAX takes 75 % of \
                 it at the start, TensorFlow nearly all",
                "set XLA_PYTHON_CLIENT_PREALLOCATE=false or TF_FORCE_GPU_ALLOW_GROWTH=true in each",
            ),
            cause(
                "JAX may use 75 % of the device only",
                "where it has the device for itself, set XLA_PYTHON_CLIENT_MEM_FRACTION=0.95",
            ),
            OTHER_PROCESS,
        ],
    )
    .run(&[NVIDIA_SMI]),
    Failure::new(
        Origin::Triton,
        "triton.OutOfResources",
        &["out of resource: shared memory", "out of resource: threads", "out of resource: tensor"],
        "a Triton kernel needs more shared memory or threads than a block may have",
        &[cause(
            "tiles or stages are too large for this device",
            "use smaller blocks or a lower num_stages",
        )],
    )
    .not("out of memory: shared memory of a block is meant, not the device's memory")
    .run(&[LIMITS]),
    Failure::new(
        Origin::Triton,
        "Triton Error [CUDA]",
        &["triton error [cuda]"],
        "a CUDA call of Triton failed",
        &[BENEATH],
    )
    .wraps(),
    Failure::new(
        Origin::Nvrtc,
        "NVRTC_ERROR_INVALID_OPTION",
        &["invalid value for --gpu-architecture"],
        "the compiler for kernels at run time was given an option that it does not know",
        &[
            cause(
                "it is older than the device, whose architecture it has never heard of",
                "install a newer NVRTC, or a build of the program with a newer CUDA",
            ),
            cause("it is so new that it dropped the device", "install an older one"),
        ],
    )
    .numbered(5)
    .run(&["gridguard doctor", TORCH_BUILD]),
    Failure::new(
        Origin::Nvrtc,
        "NVRTC_ERROR_COMPILATION",
        &[],
        "the compiler for kernels at run time refused a kernel's source",
        &[
            cause("the source has an error", "read the compiler's log, which names the line"),
            cause(
                "a header is missing, as cuda_fp16.h",
                "install the toolkit's headers, and set CUDA_PATH to the toolkit",
            ),
        ],
    )
    .numbered(6),
    Failure::new(
        Origin::Nvrtc,
        "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        &[],
        "the compiler for kernels at run time does not find its own second part",
        &[cause(
            "libnvrtc-builtins is missing beside libnvrtc, or of another version",
            "install both from one package, and add their folder to LD_LIBRARY_PATH",
        )],
    )
    .numbered(7)
    .run(&["ldconfig -p | grep nvrtc"]),
];
