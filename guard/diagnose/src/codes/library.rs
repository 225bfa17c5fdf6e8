//! CUDA libraries and the frameworks above them: cuBLAS, cuDNN, cuFFT, cuSOLVER, NCCL, NVRTC,
//! XLA, Triton.

use super::causes::{ANOTHER_RANK, OTHER_PROCESS, TOO_LITTLE_FREE, WRAPPED_ERROR};
use super::commands::{BLOCKING, DOCTOR, EXECUTION, LIBRARY_PATH, LIMITS, NVIDIA_SMI, TORCH_BUILD};
use crate::failure::{Hint, KnownCause, KnownFailure, Origin, cause};

const EARLIER: KnownCause =
    cause("an earlier kernel failed, and the library's call is the first to return its error")
        .fix("run with blocking launches")
        .hint(Hint::EarlierKernel);
const NO_WORKSPACE: KnownCause = cause(
    "no memory is left for the library's handle and workspace, because an allocator has reserved \
     all of it",
)
.fix("leave a few hundred MiB free, or create the handle before memory fills up")
.hint(Hint::LittleFree);
const OLD_GPU: KnownCause = cause(
    "the GPU is older than the function or the library supports: cublasGemmEx, for example, needs \
     compute capability 5.0, and the libraries of CUDA 13 need 7.5",
)
.fix(
    "use a newer GPU, a build with an older CUDA, or another call, for example cublasSgemm in place \
     of cublasGemmEx",
)
.hint(Hint::GpuAge);
const MIXED_CUDNN: KnownCause =
    cause("libraries of several cuDNN versions are mixed").fix("keep only one");
const NCCL_DEBUG: &[&str] = &["NCCL_DEBUG=INFO PROGRAM"];

const fn cublas(status: i32, name: &'static str) -> KnownFailure {
    KnownFailure::new(Origin::Cublas, name).numbered(status)
}

const fn nccl(result: i32, name: &'static str) -> KnownFailure {
    KnownFailure::new(Origin::Nccl, name).numbered(result).run(NCCL_DEBUG)
}

pub(super) const FAILURES: &[KnownFailure] = &[
    KnownFailure::new(Origin::Xla, "RESOURCE_EXHAUSTED")
        .says("RESOURCE_EXHAUSTED: Out of memory")
        .says("RESOURCE_EXHAUSTED: Failed to allocate")
        .says("OOM when allocating tensor")
        .says("ran out of memory trying to allocate")
        .means("the allocator of XLA or TensorFlow has no free block of the requested size")
        .causes(&[TOO_LITTLE_FREE])
        .cause(
            "another process, or PyTorch in this one, shares the device: JAX allocates 75 % of it \
             at start, TensorFlow nearly all",
        )
        .fix("set XLA_PYTHON_CLIENT_PREALLOCATE=false or TF_FORCE_GPU_ALLOW_GROWTH=true in each")
        .hint(Hint::SharedDevice)
        .cause("JAX uses at most 75 % of the device")
        .fix("if it has the device to itself, set XLA_PYTHON_CLIENT_MEM_FRACTION=0.95")
        .causes(&[OTHER_PROCESS])
        .run(&[NVIDIA_SMI]),
    KnownFailure::new(Origin::Triton, "triton.OutOfResources")
        .says("out of resource: shared memory")
        .says("out of resource: threads")
        .says("out of resource: tensor")
        .means("a Triton kernel needs more shared memory or threads than a block may have")
        .not("out of memory: it is about the shared memory of a block, not device memory")
        .cause("tile sizes or the number of stages are too large for this device")
        .fix(
            "use smaller blocks or a lower num_stages, so that a block needs at most the limit; or use \
             a newer GPU, or a version of the program that supports this one",
        )
        .hint(Hint::Need)
        .run(&[LIMITS]),
    KnownFailure::new(Origin::Triton, "Triton Error [CUDA]")
        .wraps()
        .says("triton error [cuda]")
        .means("a CUDA call made by Triton failed")
        .causes(&[WRAPPED_ERROR]),
    KnownFailure::new(Origin::Nvrtc, "NVRTC_ERROR_INVALID_OPTION")
        .numbered(5)
        .says("invalid value for --gpu-architecture")
        .means("NVRTC was given an option that it does not know")
        .cause("NVRTC is older than the device and does not know its architecture")
        .fix("install a newer NVRTC, or a build of the program with a newer CUDA")
        .cause("NVRTC no longer supports the device")
        .fix("install an older one")
        .run(&[DOCTOR, TORCH_BUILD]),
    KnownFailure::new(Origin::Nvrtc, "NVRTC_ERROR_COMPILATION")
        .numbered(6)
        .means("NVRTC rejected a kernel's source")
        .cause("the source has an error")
        .fix("read the compiler's log, which gives the line")
        .cause("a header such as cuda_fp16.h is missing")
        .fix("install the toolkit's headers, and set CUDA_PATH to the toolkit"),
    KnownFailure::new(Origin::Nvrtc, "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE")
        .numbered(7)
        .means("NVRTC does not find its library libnvrtc-builtins")
        .cause("libnvrtc-builtins is not installed next to libnvrtc, or has another version")
        .fix("install both from one package, and add their folder to LD_LIBRARY_PATH")
        .run(&["ldconfig -p | grep nvrtc"]),
    cublas(1, "CUBLAS_STATUS_NOT_INITIALIZED")
        .follows()
        .says("the library was not initialized")
        .means("cuBLAS could not initialize on the device")
        .not("usually a broken installation: memory is short, or the context is already lost")
        .causes(&[NO_WORKSPACE, EARLIER])
        .run(&[NVIDIA_SMI, BLOCKING]),
    cublas(3, "CUBLAS_STATUS_ALLOC_FAILED")
        .follows()
        .says("the resource allocation failed")
        .means("cuBLAS could not allocate memory for its handle or workspace")
        .causes(&[NO_WORKSPACE])
        .run(&[NVIDIA_SMI]),
    cublas(7, "CUBLAS_STATUS_INVALID_VALUE")
        .says("an unsupported value or parameter was passed to the function")
        .means("cuBLAS was given sizes, strides or types that it does not accept")
        .cause("a leading dimension is too small, or a size is 0 or above 2^31 - 1")
        .fix("print the arguments of the call")
        .cause("two versions of cuBLAS are mixed, such as the system's and a Python package's")
        .fix("remove the system's from LD_LIBRARY_PATH")
        .run(&[TORCH_BUILD]),
    cublas(8, "CUBLAS_STATUS_ARCH_MISMATCH")
        .says("the function requires an architectural feature absent from the device")
        .says("the function requires an architectural feature absent from the")
        .means("the device lacks a feature the call needs, such as tensor cores for its type")
        .causes(&[OLD_GPU])
        .cause("the type is too new for the device")
        .fix("use f16 or f32 instead"),
    cublas(11, "CUBLAS_STATUS_MAPPING_ERROR")
        .follows()
        .late()
        .says("an access to GPU memory space failed")
        .means("cuBLAS could not access device memory")
        .causes(&[EARLIER])
        .run(EXECUTION),
    cublas(13, "CUBLAS_STATUS_EXECUTION_FAILED")
        .follows()
        .late()
        .says("the GPU program failed to execute")
        .means("a kernel of cuBLAS did not complete")
        .causes(&[EARLIER])
        .cause("a batch exceeds 65535, or offsets exceed 32 bits")
        .fix("split it, and update cuBLAS")
        .run(EXECUTION),
    cublas(14, "CUBLAS_STATUS_INTERNAL_ERROR")
        .follows()
        .says("an internal operation failed")
        .means("a CUDA call made by cuBLAS failed")
        .causes(&[EARLIER, WRAPPED_ERROR])
        .run(EXECUTION),
    cublas(15, "CUBLAS_STATUS_NOT_SUPPORTED")
        .says("the requested functionality is not supported")
        .means("cuBLAS has no kernel for this combination of types, layout and alignment")
        .cause("sizes or pointers are not 16-byte aligned, as fp8 requires")
        .fix("pad them")
        .causes(&[OLD_GPU]),
    KnownFailure::new(Origin::Cudnn, "CUDNN_STATUS_NOT_INITIALIZED")
        .follows()
        .says("DNN library initialization failed")
        .means("cuDNN could not initialize on the device")
        .causes(&[NO_WORKSPACE, MIXED_CUDNN, EARLIER])
        .run(&[NVIDIA_SMI, "python -c 'import torch; print(torch.backends.cudnn.version())'"]),
    KnownFailure::new(Origin::Cudnn, "CUDNN_STATUS_ALLOC_FAILED")
        .follows()
        .says("unable to find a valid cuDNN algorithm")
        .means("cuDNN could not allocate memory for its workspace")
        .causes(&[NO_WORKSPACE])
        .run(&[NVIDIA_SMI]),
    KnownFailure::new(Origin::Cudnn, "CUDNN_STATUS_BAD_PARAM")
        .means("cuDNN was given shapes, strides or types that do not match")
        .cause("a tensor is empty or not contiguous")
        .fix("print shapes and strides"),
    KnownFailure::new(Origin::Cudnn, "CUDNN_STATUS_INTERNAL_ERROR")
        .follows()
        .means("a CUDA call made by cuDNN failed, usually because memory is short")
        .causes(&[NO_WORKSPACE, MIXED_CUDNN, EARLIER])
        .run(&[NVIDIA_SMI, BLOCKING]),
    KnownFailure::new(Origin::Cudnn, "CUDNN_STATUS_ARCH_MISMATCH")
        .means("this cuDNN has no kernels for the device")
        .causes(&[OLD_GPU])
        .cause("the device is too new for this cuDNN")
        .fix("install a newer cuDNN")
        .hint(Hint::Architecture),
    KnownFailure::new(Origin::Cudnn, "CUDNN_STATUS_MAPPING_ERROR")
        .follows()
        .late()
        .means("cuDNN could not access device memory")
        .causes(&[EARLIER, NO_WORKSPACE])
        .run(EXECUTION),
    KnownFailure::new(Origin::Cudnn, "CUDNN_STATUS_EXECUTION_FAILED")
        .follows()
        .late()
        .means("a kernel of cuDNN did not complete")
        .causes(&[EARLIER])
        .cause("a batch is above 65535: cuDNN maps it to an axis of the grid")
        .fix("split the batch, or use another kernel for it")
        .run(EXECUTION),
    KnownFailure::new(Origin::Cudnn, "CUDNN_STATUS_NOT_SUPPORTED")
        .means("cuDNN has no kernel for these shapes and types")
        .cause("a tensor is not contiguous, is too large, or has an unusual type")
        .fix("call .contiguous(), split it, or disable cuDNN for the operation")
        .causes(&[OLD_GPU]),
    KnownFailure::new(Origin::Cudnn, "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH")
        .says("cuDNN version incompatibility")
        .says("loaded runtime CuDNN library")
        .says("found cuDNN version")
        .means("the loaded cuDNN is not the version that the program was built with")
        .cause("the system's cuDNN is found before the package's own")
        .fix("remove the system's from LD_LIBRARY_PATH")
        .run(&[LIBRARY_PATH, "ldconfig -p | grep cudnn"]),
    KnownFailure::new(Origin::Cufft, "CUFFT_ALLOC_FAILED")
        .means("cuFFT could not allocate memory for its plan")
        .causes(&[NO_WORKSPACE])
        .run(&[NVIDIA_SMI]),
    KnownFailure::new(Origin::Cufft, "CUFFT_INTERNAL_ERROR")
        .follows()
        .means("cuFFT could not create or execute a plan")
        .cause("cuFFT is older than the device: versions up to CUDA 11.7 fail on sm_89")
        .fix("install a build for a newer CUDA")
        .causes(&[NO_WORKSPACE, EARLIER])
        .run(&[TORCH_BUILD, NVIDIA_SMI]),
    KnownFailure::new(Origin::Cusolver, "CUSOLVER_STATUS_INTERNAL_ERROR")
        .follows()
        .means("a CUDA call made by cuSOLVER failed, usually because memory is short")
        .causes(&[NO_WORKSPACE, EARLIER])
        .cause("the matrix contains values that are not finite")
        .fix("check for NaN and infinity before the call")
        .run(&[NVIDIA_SMI, BLOCKING]),
    KnownFailure::new(Origin::Cusparse, "CUSPARSE_STATUS_ARCH_MISMATCH")
        .means("the device lacks a feature that the call of cuSPARSE needs")
        .causes(&[OLD_GPU]),
    KnownFailure::new(Origin::Cusparse, "CUSPARSE_STATUS_NOT_SUPPORTED")
        .means("cuSPARSE has no kernel for this combination of formats, types and algorithm")
        .cause("the format, type or algorithm is not supported for this call")
        .fix("use another format or the default algorithm")
        .causes(&[OLD_GPU]),
    nccl(1, "ncclUnhandledCudaError")
        .wraps()
        .says("unhandled cuda error")
        .says("call to cuda function failed")
        .means("a CUDA call made by NCCL failed")
        .causes(&[WRAPPED_ERROR])
        .cause("the container's shared memory is too small, or two ranks use one device")
        .fix("start it with --shm-size=1g or --ipc=host, and give each rank its own device"),
    nccl(2, "ncclSystemError")
        .says("unhandled system error")
        .means("a system or network call made by NCCL failed")
        .cause(
            "there is no route between ranks, the wrong interface is used, or shared memory is too \
             small",
        )
        .fix("set NCCL_SOCKET_IFNAME, start containers with --shm-size=1g, and read NCCL's output"),
    nccl(3, "ncclInternalError")
        .says("NCCL internal error")
        .says("internal error - please report this issue to the NCCL developers")
        .means("an internal check of NCCL failed: a bug in NCCL, or memory corrupted by others")
        .causes(&[ANOTHER_RANK])
        .cause("ranks run different NCCL versions")
        .fix("print torch.cuda.nccl.version() on each"),
    nccl(4, "ncclInvalidArgument")
        .means("NCCL was given an argument that it does not accept")
        .cause(
            "ranks disagree on a tensor's size or type, or a tensor is empty or not on the device",
        )
        .fix("print shapes, types and devices before the call, on every rank"),
    nccl(5, "ncclInvalidUsage")
        .says("this usually reflects invalid usage of NCCL library")
        .says("duplicate GPU detected")
        .says("invalid usage, NCCL version")
        .means("NCCL was called in a way that it does not support")
        .cause("two ranks use one device")
        .fix("give each rank its own: torch.cuda.set_device(local_rank) before anything else"),
    nccl(6, "ncclRemoteError")
        .follows()
        .says("remote process exited or there was a network error")
        .means("another rank exited or could not be reached")
        .causes(&[ANOTHER_RANK])
        .run(&[]),
    KnownFailure::new(Origin::Nccl, "NCCL timeout")
        .follows()
        .says("watchdog caught collective operation timeout")
        .says("some NCCL operations have failed or timed out")
        .says("timeout at NCCL work")
        .means("not all ranks reached a collective operation within the time limit")
        .causes(&[ANOTHER_RANK])
        .cause("ranks call collectives in different orders, or not all of them call one")
        .fix(
            "run with TORCH_DISTRIBUTED_DEBUG=DETAIL, and look for branches that depend on the \
             rank",
        )
        .cause("one rank takes longer: a checkpoint, an evaluation, a download")
        .fix("raise the timeout of init_process_group, or let all ranks do the same work")
        .run(NCCL_DEBUG),
];
