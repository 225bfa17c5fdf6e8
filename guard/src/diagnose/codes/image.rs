//! Code that does not load.

use super::{LIMITS, LIST_ELF, NVIDIA_SMI, TORCH_BUILD};
use crate::diagnose::failure::{Failure, Hint, UsualCause, cause, hinted};

const OTHER_ARCHITECTURE: UsualCause = hinted(
    Hint::Architecture,
    "the program was compiled for other architectures, and has no PTX to compile for this one",
    "install a build for the device's compute capability, or compile for it",
);
const TWICE: UsualCause =
    cause("the name is given as text, and stands in two files", "pass the symbol itself");
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
            "no longer supports this GPU because it is too old",
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
        &["the provided PTX was compiled with an unsupported toolchain", "unsupported .version"],
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
    .formerly(78)
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
    )
    .formerly(81),
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
        227,
        "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION",
        "cudaErrorInsufficientLoaderVersion",
        &["loader version is insufficient for fatbin"],
        "the program's code is packed in a way that is newer than the driver or the runtime",
        &[hinted(
            Hint::DriverAge,
            "the program was built with a newer CUDA",
            "update the driver, or build with an older toolkit",
        )],
    )
    .run(&[NVIDIA_SMI]),
    Failure::driver(
        300,
        "CUDA_ERROR_INVALID_SOURCE",
        "cudaErrorInvalidSource",
        &[],
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
    )
    .formerly(40),
    Failure::driver(
        303,
        "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        "cudaErrorSharedObjectInitFailed",
        &["shared object initialization failed"],
        "a library did not load: one of the driver's, or where TensorFlow says so libcuda itself",
        &[
            cause(
                "TensorFlow found no libcuda: there is no driver, or the container has no GPU",
                "start the container with --gpus all, or install the driver; ignore it where the \
                 program is to run on the CPU",
            ),
            cause("a library of the driver is missing or of another version", "install it anew"),
        ],
    )
    .formerly(41)
    .run(&["gridguard doctor", "ldconfig -p | grep libcuda"]),
    Failure::runtime(
        43,
        "cudaErrorDuplicateVariableName",
        &["duplicate global variable looked up by string name"],
        "several source files have a device variable of the name that is asked for",
        &[TWICE],
    ),
    Failure::runtime(
        44,
        "cudaErrorDuplicateTextureName",
        &["duplicate texture looked up by string name"],
        "several source files have a texture of the name that is asked for",
        &[TWICE],
    ),
    Failure::runtime(
        45,
        "cudaErrorDuplicateSurfaceName",
        &["duplicate surface looked up by string name"],
        "several source files have a surface of the name that is asked for",
        &[TWICE],
    ),
    Failure::driver(
        913,
        "CUDA_ERROR_FUNCTION_NOT_LOADED",
        "cudaErrorFunctionNotLoaded",
        &["the function handle is not loaded when calling an API that requires a loaded function"],
        "a kernel is asked about that lazy loading has not loaded yet",
        &[cause("modules load lazily", "load the function first, or set CUDA_MODULE_LOADING=EAGER")],
    ),
];
