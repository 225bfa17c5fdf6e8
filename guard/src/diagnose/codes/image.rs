//! Code that does not load.

use super::{LIMITS, LIST_ELF, NVIDIA_SMI, TORCH_BUILD};
use crate::diagnose::failure::{Failure, Hint, Origin, UsualCause, cause, hinted};

const OTHER_ARCHITECTURE: UsualCause = hinted(
    Hint::Architecture,
    "the program was compiled for other architectures, and has no PTX to compile for this one",
    "install a build for the device's compute capability, or compile for it",
);
const DAMAGED: UsualCause = cause(
    "the file is damaged, cut short, or no image at all",
    "build or fetch it anew, and clear the compile cache",
);

pub(super) const FAILURES: &[Failure] = &[
    Failure::driver(
        209,
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "cudaErrorNoKernelImageForDevice",
        &[
            "no kernel image is available for execution on the device",
            "is not compatible with the current PyTorch installation",
        ],
        "the program has no code for this device",
        &[
            OTHER_ARCHITECTURE,
            cause(
                "an extension was compiled for one device and is used on another",
                "set TORCH_CUDA_ARCH_LIST or --gpu-architecture to all devices, and build anew",
            ),
        ],
    )
    .formerly(48)
    .run(&[LIMITS, LIST_ELF, TORCH_BUILD]),
    Failure::driver(
        222,
        "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "cudaErrorUnsupportedPtxVersion",
        &["the provided PTX was compiled with an unsupported toolchain"],
        "the PTX is newer than the driver can compile",
        &[
            hinted(
                Hint::DriverAge,
                "the toolkit or NVRTC is newer than the driver",
                "update the driver, compile with an older toolkit, or ship code for the very device",
            ),
            cause(
                "several NVRTC libraries are installed and the newest is found first",
                "look at the library path",
            ),
        ],
    )
    .run(&[NVIDIA_SMI, "nvcc --version"]),
    Failure::driver(
        218,
        "CUDA_ERROR_INVALID_PTX",
        "cudaErrorInvalidPtx",
        &["a PTX JIT compilation failed"],
        "the driver's compiler refused the PTX; its log says where",
        &[
            cause(
                "the PTX asks for a feature that its version or target does not have",
                "raise .target and .version together, or compile with the toolkit that has it",
            ),
            DAMAGED,
        ],
    )
    .run(&["ptxas --gpu-name sm_XX FILE"]),
    Failure::driver(
        200,
        "CUDA_ERROR_INVALID_IMAGE",
        "cudaErrorInvalidKernelImage",
        &["device kernel image is invalid"],
        "what was loaded is no image that the driver knows",
        &[
            DAMAGED,
            cause(
                "the image was made by a toolkit newer than the driver knows",
                "update the driver, or compile with an older toolkit",
            ),
        ],
    )
    .formerly(47)
    .run(&[LIST_ELF]),
    Failure::driver(
        221,
        "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        "cudaErrorJitCompilerNotFound",
        &["PTX JIT compiler library not found"],
        "the driver cannot find its own PTX compiler",
        &[cause(
            "libnvidia-ptxjitcompiler.so is missing, often in a container without the compute parts",
            "install the driver's library, or set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )],
    ),
    Failure::driver(
        223,
        "CUDA_ERROR_JIT_COMPILATION_DISABLED",
        "cudaErrorJitCompilationDisabled",
        &["PTX JIT compilation was disabled"],
        "only PTX is there, and compiling it is switched off",
        &[cause(
            "CUDA_DISABLE_PTX_JIT or CUDA_DISABLE_JIT is set",
            "unset it, or ship code for the very device",
        )],
    ),
    Failure::driver(
        225,
        "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC",
        "cudaErrorUnsupportedDevSideSync",
        &["the provided PTX contains unsupported call to cudaDeviceSynchronize"],
        "a kernel waits for its children with a call that is gone since CUDA 12",
        &[cause("device code calls cudaDeviceSynchronize", "launch the next step as a tail launch")],
    ),
    Failure::driver(
        300,
        "CUDA_ERROR_INVALID_SOURCE",
        "cudaErrorInvalidSource",
        &["device kernel source is invalid"],
        "source given to the driver is not valid",
        &[DAMAGED],
    ),
    Failure::driver(
        301,
        "CUDA_ERROR_FILE_NOT_FOUND",
        "cudaErrorFileNotFound",
        &["file not found"],
        "the file of a module is not there",
        &[cause("the path is wrong, or relative to another folder", "give the whole path")],
    ),
    Failure::driver(
        302,
        "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        "cudaErrorSharedObjectSymbolNotFound",
        &["shared object symbol not found"],
        "a library of the driver lacks a function",
        &[cause("libraries of two driver versions are mixed", "install one driver cleanly")],
    ),
    Failure::driver(
        303,
        "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        "cudaErrorSharedObjectInitFailed",
        &["shared object initialization failed"],
        "a library that the driver needs did not load",
        &[cause("the library is missing or of another version", "install the driver anew")],
    ),
    Failure::driver(
        913,
        "CUDA_ERROR_FUNCTION_NOT_LOADED",
        "cudaErrorFunctionNotLoaded",
        &["the function handle is not loaded when calling a api that requires a loaded function"],
        "a kernel is asked about that lazy loading has not loaded yet",
        &[cause("modules load lazily", "load the function first, or set CUDA_MODULE_LOADING=EAGER")],
    ),
    Failure::new(
        Origin::Loader,
        "libnvrtc missing",
        &[
            "libnvrtc.so.12: cannot open shared object file",
            "libnvrtc.so.13: cannot open shared object file",
            "libnvrtc.so: cannot open shared object file",
            "no NVRTC library found",
            "failed to open libnvrtc-builtins",
        ],
        "the compiler for kernels at run time is not installed where the loader looks",
        &[cause(
            "the toolkit's libnvrtc is missing, or of another major version",
            "install it, or add its folder to LD_LIBRARY_PATH",
        )],
    )
    .run(&["ldconfig -p | grep nvrtc"]),
];
