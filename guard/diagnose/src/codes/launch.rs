//! Rejected arguments: launches, handles, copies, states.

use super::commands::{BLOCKING, CHECK, EXECUTION, LAUNCH, LIMITS, LIST_ELF};
use crate::failure::{Hint, KnownCause, KnownFailure, cause, driver, renumbered, runtime};

const NOT_MEMORY: &str =
    "out of memory: the launch configuration was rejected before anything was allocated";

const SIZES: KnownCause = cause(
    "a launch dimension exceeds a limit: more than 65535 blocks on grid.y or grid.z, more than \
     1024 threads per block, a dimension of zero, or more shared memory than the kernel opted in \
     to",
)
.fix("find the kernel and the size that is too large, and reduce this size alone")
.hint(Hint::LaunchSize);
const UNCHECKED: KnownCause = cause(
    "an earlier launch was rejected and its result was not checked: the runtime returns the error \
     at the next check",
)
.fix("check the result of every launch")
.hint(Hint::EarlierKernel);

pub(super) const FAILURES: &[KnownFailure] = &[
    renumbered(11, 1, "CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue")
        .says("invalid argument")
        // CUDA.jl checks a refused launch.
        .says("dimension exceeds device limit")
        .says("amount of dynamic shared memory exceeds device limit")
        .means("an argument of the call is invalid or out of range; the call had no effect")
        .not("out of memory: that is CUDA_ERROR_OUT_OF_MEMORY (2)")
        .causes(&[SIZES])
        .cause("a pointer is null, points to host memory, or points to freed memory")
        .fix("check every pointer and offset passed to the call")
        .cause("the kernel is launched with fewer arguments than it has parameters")
        .fix("compare the arguments with the kernel's signature")
        .cause(
            "a copy reaches past the end of an allocation, its size overflowed 32 bits, or its \
             host memory is freed or no longer pinned",
        )
        .fix(
            "compute sizes in 64 bits and compare them with the allocation; copy without \
             non_blocking, or keep the pinned memory alive until the copy has ended",
        )
        .hint(Hint::Copy)
        .causes(&[UNCHECKED])
        .run(LAUNCH),
    runtime(9, "cudaErrorInvalidConfiguration")
        .says("invalid configuration argument")
        .means(
            "the launch configuration exceeds a limit of the device or the kernel; no block ran; \
             the driver calls it CUDA_ERROR_INVALID_VALUE",
        )
        .not(NOT_MEMORY)
        .causes(&[SIZES])
        .cause("the grid is empty because the batch, an image or a list is empty")
        .fix(
            "check that the input is found and read, and skip the launch if it is empty; if each \
             device takes a part of the batch, drop the last, smaller batch",
        )
        .hint(Hint::EmptyBatch)
        .causes(&[UNCHECKED])
        .run(LAUNCH),
    renumbered(7, 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "cudaErrorLaunchOutOfResources")
        .says("too many resources requested for launch")
        .says("launch out of resources")
        .says("number of threads per block exceeds kernel limit")
        .means("a block needs more registers or shared memory than an SM has; no block ran")
        .not("out of memory: it is about registers and shared memory, not device memory")
        .cause("registers per thread times threads per block exceed the registers per block")
        .fix("use smaller blocks, or compile with __launch_bounds__ or --maxrregcount")
        .hint(Hint::LaunchRule)
        .cause("the kernel was compiled without optimization and needs more registers")
        .fix("compile without -G")
        .cause("the kernel's arguments are larger than the parameter space")
        .fix("pass large arguments in a buffer")
        .run(LAUNCH),
    driver(720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "cudaErrorCooperativeLaunchTooLarge")
        .formerly(82)
        .says("too many blocks in cooperative launch")
        .means("a cooperative launch has more blocks than can be co-resident; no block ran")
        .not(NOT_MEMORY)
        .cause("the grid is larger than blocks per multiprocessor times multiprocessors")
        .fix(
            "size the grid with Kernel::occupancy or cuOccupancyMaxActiveBlocksPerMultiprocessor, \
             and loop in the kernel",
        )
        .hint(Hint::LaunchRule)
        .run(&[CHECK, LIMITS]),
    driver(912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cudaErrorInvalidClusterSize")
        .says("a kernel launch error has occurred due to cluster misconfiguration")
        .means("the cluster size does not fit the grid, the kernel or the device; no block ran")
        .cause(
            "the grid is not a multiple of the cluster size, or the cluster has more than 8 blocks",
        )
        .fix("pad the grid, or use a cluster of at most 8 blocks")
        .hint(Hint::LaunchRule)
        .cause(
            "with this block size and shared memory, the blocks of a cluster cannot be co-resident",
        )
        .fix(
            "use a smaller cluster or smaller blocks; Kernel::occupancy returns how many clusters \
             fit",
        )
        .hint(Hint::LaunchRule)
        .cause("the kernel was compiled with __cluster_dims__ and is launched with another size")
        .fix("launch it with the cluster size it was compiled for")
        .run(&[CHECK, LIMITS]),
    runtime(98, "cudaErrorInvalidDeviceFunction")
        .formerly(8)
        .says("invalid device function")
        .means("the program contains no code of this kernel for the device")
        .cause("the kernel was not compiled for the device's architecture")
        .fix("compile for the device's compute capability, or ship PTX")
        .hint(Hint::Architecture)
        .cause("the kernel's symbol belongs to another library or another copy of the runtime")
        .fix("link one CUDA runtime only, and launch the kernel from its own library")
        .run(&[LIST_ELF, LIMITS]),
    runtime(12, "cudaErrorInvalidPitchValue")
        .says("invalid pitch argument")
        .means("the pitch (bytes from row to row) passed to a copy is out of range")
        .cause("the pitch is smaller than a row, or larger than the device supports")
        .fix("pass the pitch that cudaMallocPitch returned, in bytes")
        .run(&[LIMITS]),
    runtime(13, "cudaErrorInvalidSymbol")
        .says("invalid device symbol")
        .means("a __device__ or __constant__ variable is not known on this device")
        .cause("the variable is passed by name, or no code for the device was loaded")
        .fix("pass the symbol itself, and compile for the device's compute capability")
        .run(&[LIST_ELF]),
    runtime(17, "cudaErrorInvalidDevicePointer")
        .retired()
        .says("invalid device pointer")
        .means("a pointer does not point to memory of this device")
        .cause("the memory was already freed, or belongs to the host or another device")
        .fix("free memory once, and make its device current first")
        .run(EXECUTION),
    runtime(21, "cudaErrorInvalidMemcpyDirection")
        .says("invalid copy direction for memcpy")
        .means("the direction passed to a copy is not a cudaMemcpyKind")
        .cause("the constant is wrong")
        .fix("pass cudaMemcpyDefault, which derives the direction from the pointers"),
    runtime(52, "cudaErrorMissingConfiguration")
        .says("__global__ function call is not configured")
        .means("a kernel was called without a launch configuration")
        .cause(
            "host code and runtime come from different CUDA versions, or the kernel's host stub is \
             called directly",
        )
        .fix("build the whole program with one CUDA version, and launch with <<<grid, block>>>"),
    renumbered(33, 400, "CUDA_ERROR_INVALID_HANDLE", "cudaErrorInvalidResourceHandle")
        .says("invalid resource handle")
        .means("a stream, event, module or function does not belong to the current context")
        .cause("the handle was created on another device than the current one")
        .fix("set the device before the call, and create handles per device")
        .cause("the handle was destroyed, or the process was forked after CUDA was initialized")
        .fix("keep handles alive while they are used, and start processes with spawn")
        .run(&[BLOCKING]),
    renumbered(84, 401, "CUDA_ERROR_ILLEGAL_STATE", "cudaErrorIllegalState")
        .says("the operation cannot be performed in the present state")
        .means("the object is not in a state that allows the call")
        .cause("the calls are made in the wrong order")
        .fix("look up the required order"),
    driver(402, "CUDA_ERROR_LOSSY_QUERY", "cudaErrorLossyQuery")
        .says("attempted introspection would be semantically lossy")
        .means("the queried object holds more than the call can return")
        .cause("the object uses a newer feature than the call knows, such as a new node attribute")
        .fix("use the newest version of the call"),
    driver(500, "CUDA_ERROR_NOT_FOUND", "cudaErrorSymbolNotFound")
        .says("named symbol not found")
        .means("a module has no kernel or variable of this name")
        .cause(
            "the program compiles this kernel for newer devices only: bf16, for example, often \
             needs compute capability 8.0",
        )
        .fix("use another type, such as f16 or f32, or build the program for the device")
        .hint(Hint::MissingKernel)
        .cause("the name is mangled by C++")
        .fix("declare the kernel extern \"C\", or look up the mangled name")
        .cause("the image is not the build that the caller expects")
        .fix("list the image's symbols, and rebuild both")
        .run(&["cuobjdump --dump-elf-symbols FILE"]),
    renumbered(34, 600, "CUDA_ERROR_NOT_READY", "cudaErrorNotReady")
        .says("device not ready")
        .means("the queried work has not finished yet; this is a status, not an error")
        .cause("a stream or event was queried before its work finished")
        .fix("synchronize, or query again later"),
];
