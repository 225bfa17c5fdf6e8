//! Lines of many programs, each with the name of the failure that it tells of.

pub(super) const MESSAGES: [(&str, &str); 36] = [
    ("RuntimeError: CUDA error: invalid configuration argument", "cudaErrorInvalidConfiguration"),
    ("RuntimeError: CUDA error: invalid argument", "CUDA_ERROR_INVALID_VALUE"),
    ("torch.AcceleratorError: CUDA error: misaligned address", "CUDA_ERROR_MISALIGNED_ADDRESS"),
    ("DriverError(CUDA_ERROR_INVALID_VALUE, \"invalid argument\")", "CUDA_ERROR_INVALID_VALUE"),
    ("cuLaunchKernel answered CUDA_ERROR_NO_DEVICE (100)", "CUDA_ERROR_NO_DEVICE"),
    ("CUDA failure 2: out of memory ; GPU=0 ; hostname=node", "CUDA_ERROR_OUT_OF_MEMORY"),
    ("code=700(cudaErrorIllegalAddress) \"cudaDeviceSynchronize()\"", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ("cuda runtime error (59) : device-side assert triggered at THC.cu:10", "CUDA_ERROR_ASSERT"),
    (
        "THCudaCheck FAIL file=a.cu line=87 error=77 : an illegal memory access was encountered",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
    ),
    ("CUDA driver error: 209", "CUDA_ERROR_NO_BINARY_FOR_GPU"),
    ("Cuda failure 1 'invalid argument'", "CUDA_ERROR_INVALID_VALUE"),
    (
        "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 'out of memory'",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ),
    (
        "NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled cuda error (run with NCCL_DEBUG=INFO for \
      details)",
        "ncclUnhandledCudaError",
    ),
    ("RuntimeError: Triton Error [CUDA]: invalid argument", "CUDA_ERROR_INVALID_VALUE"),
    (
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        "CUDA_ERROR_INVALID_IMAGE",
    ),
    (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, \
      Hardware limit: 101376.",
        "triton.OutOfResources",
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
        "torch.OutOfMemoryError",
    ),
    (
        "RuntimeError: CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity)",
        "torch.OutOfMemoryError",
    ),
    (
        "AssertionError: Torch not compiled with CUDA enabled",
        "Torch not compiled with CUDA enabled",
    ),
    ("RuntimeError: No CUDA GPUs are available", "No CUDA GPUs are available"),
    (
        "The NVIDIA driver on your system is too old (found version 11040).",
        "cudaErrorInsufficientDriver",
    ),
    (
        "Found no NVIDIA driver on your system. Please check",
        "Found no NVIDIA driver on your system",
    ),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUBLAS_STATUS_ALLOC_FAILED",
    ),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED"),
    (
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDART",
        "CUDNN_STATUS_EXECUTION_FAILED",
    ),
    (
        "Error 804: forward compatibility was attempted on non supported HW",
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    ),
    (
        "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "CUDA_ERROR_SYSTEM_NOT_READY",
    ),
    ("CUDA error: uncorrectable ECC error encountered", "CUDA_ERROR_ECC_UNCORRECTABLE"),
    ("kernel: NVRM: Xid (PCI:0000:06:00): 31, pid=1234, name=python, MMU Fault", "Xid"),
    (
        "ggml_cuda_compute_forward: RMS_NORM failed\tCUDA error: invalid configuration argument",
        "cudaErrorInvalidConfiguration",
    ),
    (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0: cudaMalloc \
      failed: out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ),
    ("CUDA error: the resource allocation failed", "CUBLAS_STATUS_ALLOC_FAILED"),
    (
        "ValueError: Free memory on device (20.1/23.6 GiB) on startup is less than desired GPU memory \
      utilization (0.9, 21.3 GiB).",
        "vLLM memory check",
    ),
    (
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "libcuda missing",
    ),
    (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with",
        "CUDA_ERROR_NOT_INITIALIZED",
    ),
    (
        "Failed to initialize NVML: Driver/library version mismatch",
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    ),
];
