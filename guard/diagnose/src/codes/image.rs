//! Code that does not load.

use super::commands::{DOCTOR, LIBCUDA, LIMITS, LIST_ELF, NVIDIA_SMI, TORCH_BUILD};
use crate::failure::{Hint, KnownCause, KnownFailure, cause, driver, renumbered, runtime};

const DUPLICATE_NAME: KnownCause =
    cause("the variable is passed by name, and two source files define that name")
        .fix("pass the symbol itself");
const DAMAGED: KnownCause = cause("the file is damaged, truncated, or not a device image")
    .fix("rebuild or download it again, and clear the compile cache");

pub(super) const FAILURES: &[KnownFailure] = &[
    renumbered(48, 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "cudaErrorNoKernelImageForDevice")
        .says("no kernel image is available for execution on the device")
        .says("is not compatible with the current PyTorch installation")
        .says("no longer supports this GPU because it is too old")
        .means("the program contains no code for this device")
        .cause(
            "the program was compiled for other architectures, and contains no PTX that the driver \
             could compile for this one",
        )
        .fix("install a build for the device's compute capability, or compile for it")
        .hint(Hint::Architecture)
        .cause("an extension was compiled for one device and is used on another")
        .fix("set TORCH_CUDA_ARCH_LIST or --gpu-architecture to all devices, and rebuild")
        .run(&[LIMITS, LIST_ELF, TORCH_BUILD]),
    driver(222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "cudaErrorUnsupportedPtxVersion")
        .says("the provided PTX was compiled with an unsupported toolchain")
        .says("unsupported .version")
        .means("the PTX is newer than the driver can compile")
        .cause("the toolkit or NVRTC is newer than the driver")
        .fix(
            "update the driver, compile with an older toolkit, or ship machine code for the device",
        )
        .hint(Hint::DriverAge)
        .cause("several NVRTC libraries are installed and the newest is found first")
        .fix("check the library path")
        .run(&[NVIDIA_SMI, "nvcc --version"]),
    renumbered(78, 218, "CUDA_ERROR_INVALID_PTX", "cudaErrorInvalidPtx")
        .says("a PTX JIT compilation failed")
        .means("the driver's compiler rejected the PTX; its log gives the line")
        .cause("the PTX uses a feature that its version or target does not have")
        .fix("raise .target and .version together, or compile with a toolkit that supports it")
        .causes(&[DAMAGED])
        .run(&["ptxas --gpu-name sm_XX FILE"]),
    renumbered(47, 200, "CUDA_ERROR_INVALID_IMAGE", "cudaErrorInvalidKernelImage")
        .says("device kernel image is invalid")
        .means("the loaded data is not an image that the driver understands")
        .cause("the image was built with a toolkit newer than the driver")
        .fix("update the driver, or compile with an older toolkit")
        .hint(Hint::DriverAge)
        .causes(&[DAMAGED])
        .run(&[LIST_ELF]),
    renumbered(81, 221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "cudaErrorJitCompilerNotFound")
        .says("PTX JIT compiler library not found")
        .means("the driver cannot find its own PTX compiler")
        .cause(
            "libnvidia-ptxjitcompiler.so is missing, often in a container without the compute \
             capability of the driver",
        )
        .fix("install the driver's library, or set NVIDIA_DRIVER_CAPABILITIES=compute,utility"),
    driver(223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "cudaErrorJitCompilationDisabled")
        .says("PTX JIT compilation was disabled")
        .means("the program contains only PTX, and compiling PTX is disabled")
        .cause("CUDA_DISABLE_PTX_JIT or CUDA_DISABLE_JIT is set")
        .fix("unset it, or ship machine code for the device"),
    driver(225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "cudaErrorUnsupportedDevSideSync")
        .says("the provided PTX contains unsupported call to cudaDeviceSynchronize")
        .means("a kernel waits for child kernels with a call that CUDA 12 removed")
        .cause("device code calls cudaDeviceSynchronize")
        .fix("use a tail launch instead"),
    driver(227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION", "cudaErrorInsufficientLoaderVersion")
        .says("loader version is insufficient for fatbin")
        .means("the program's fatbin format is newer than the driver or the runtime")
        .cause("the program was built with a newer CUDA")
        .fix("update the driver, or build with an older toolkit")
        .hint(Hint::DriverAge)
        .run(&[NVIDIA_SMI]),
    driver(300, "CUDA_ERROR_INVALID_SOURCE", "cudaErrorInvalidSource")
        .means("the kernel source given to the driver is invalid")
        .causes(&[DAMAGED]),
    driver(301, "CUDA_ERROR_FILE_NOT_FOUND", "cudaErrorFileNotFound")
        .says("file not found")
        .means("the module's file does not exist")
        .cause("the path is wrong or relative")
        .fix("pass the absolute path"),
    driver(302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "cudaErrorSharedObjectSymbolNotFound")
        .formerly(40)
        .says("shared object symbol not found")
        .means("a driver library lacks a function")
        .cause("libraries of two driver versions are mixed")
        .fix("reinstall the driver"),
    renumbered(41, 303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "cudaErrorSharedObjectInitFailed")
        .says("shared object initialization failed")
        .means(
            "a driver library did not load; if TensorFlow reports it, libcuda itself did not load",
        )
        .cause("TensorFlow found no libcuda: there is no driver, or the container has no GPU")
        .fix(
            "start the container with --gpus all, or install the driver; ignore the message if the \
             program is meant to run on the CPU",
        )
        .hint(Hint::MissingDriver)
        .cause("a driver library is missing or of another version")
        .fix("reinstall the driver")
        .cause(
            "the kernel's module did not load: modules load lazily, at the first use of a kernel",
        )
        .fix(
            "load all modules at the start with CUDA_MODULE_LOADING=EAGER, and update the driver \
             to the program's CUDA version",
        )
        .hint(Hint::LazyLoading)
        .run(&[DOCTOR, LIBCUDA]),
    runtime(43, "cudaErrorDuplicateVariableName")
        .says("duplicate global variable looked up by string name")
        .means("several source files define a device variable of the requested name")
        .causes(&[DUPLICATE_NAME]),
    runtime(44, "cudaErrorDuplicateTextureName")
        .says("duplicate texture looked up by string name")
        .means("several source files define a texture of the requested name")
        .causes(&[DUPLICATE_NAME]),
    runtime(45, "cudaErrorDuplicateSurfaceName")
        .says("duplicate surface looked up by string name")
        .means("several source files define a surface of the requested name")
        .causes(&[DUPLICATE_NAME]),
    driver(913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "cudaErrorFunctionNotLoaded")
        .says(
            "the function handle is not loaded when calling an API that requires a loaded function",
        )
        .means("the call needs a kernel that lazy loading has not loaded yet")
        .cause("modules are loaded lazily")
        .fix("load the function first, or set CUDA_MODULE_LOADING=EAGER"),
];
