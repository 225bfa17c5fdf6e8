//! Refused arguments: launches, handles, copies, states.

use super::{BLOCKING, CHECK, EXECUTION, LAUNCH, LIMITS};
use crate::diagnose::failure::{Failure, Hint, UsualCause, cause, hinted};

const NOT_MEMORY: &str = "out of memory: the launch was refused for its sizes, before anything was \
                          allocated";

const SIZES: UsualCause = hinted(
    Hint::Sizes,
    "a size of the launch is over a limit: more than 65535 blocks on y or z of the grid, more than \
     1024 threads in a block, a zero, or more shared memory than the kernel opted in to",
    "check grid, block and shared memory against the device, and split the batch into chunks",
);

const UNREAD: UsualCause = hinted(
    Hint::EarlierLaunch,
    "an earlier launch was refused and nobody read its result: the runtime keeps the error for the \
     next check",
    "check after every launch, so that the refusal is told where it happens",
);

pub(super) const FAILURES: &[Failure] = &[
    Failure::driver(
        1,
        "CUDA_ERROR_INVALID_VALUE",
        "cudaErrorInvalidValue",
        &["invalid argument"],
        "a call was given a value that it does not take; the call did nothing",
        &[
            SIZES,
            cause(
                "a pointer is null, of the host, or of memory that was freed",
                "check every pointer, and its offset, that the call is given",
            ),
            cause(
                "a kernel is launched with fewer arguments than it has parameters",
                "compare the arguments with the kernel's signature",
            ),
            cause(
                "a copy reaches past the end of an allocation, or its size wrapped in 32 bits",
                "compute sizes in 64 bits, and compare them with the allocation",
            ),
        ],
    )
    .formerly(11)
    .not("out of memory: that is CUDA_ERROR_OUT_OF_MEMORY (2)")
    .run(LAUNCH),
    Failure::runtime(
        9,
        "cudaErrorInvalidConfiguration",
        &["invalid configuration argument"],
        "the sizes of a launch are beyond what device or kernel take; no block of it ran; the \
         driver calls it CUDA_ERROR_INVALID_VALUE",
        &[
            SIZES,
            cause(
                "the grid is empty because the batch is",
                "do not launch where there is nothing to do",
            ),
            UNREAD,
        ],
    )
    .not(NOT_MEMORY)
    .run(LAUNCH),
    Failure::driver(
        701,
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "cudaErrorLaunchOutOfResources",
        &["too many resources requested for launch", "launch out of resources"],
        "a block needs more registers or shared memory than a multiprocessor has; no block ran",
        &[
            hinted(
                Hint::Rules,
                "registers of a thread times threads of a block are over the limit of a block",
                "use smaller blocks, or compile with __launch_bounds__ or --maxrregcount",
            ),
            cause(
                "the kernel was compiled without optimisation and takes more registers",
                "compile without -G",
            ),
            cause(
                "the kernel's arguments are more than the driver has room for",
                "pass the large part through a buffer",
            ),
        ],
    )
    .formerly(7)
    .not("out of memory: registers and shared memory are meant, not the device's memory")
    .run(LAUNCH),
    Failure::driver(
        720,
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        "cudaErrorCooperativeLaunchTooLarge",
        &["too many blocks in cooperative launch"],
        "a cooperative launch has more blocks than are resident at once; no block ran",
        &[hinted(
            Hint::Rules,
            "the grid is larger than blocks a multiprocessor times multiprocessors",
            "size the grid by Kernel::occupancy or cuOccupancyMaxActiveBlocksPerMultiprocessor, and \
             loop in the kernel",
        )],
    )
    .formerly(82)
    .not(NOT_MEMORY)
    .run(&[CHECK, LIMITS]),
    Failure::driver(
        912,
        "CUDA_ERROR_INVALID_CLUSTER_SIZE",
        "cudaErrorInvalidClusterSize",
        &["a kernel launch error has occurred due to cluster misconfiguration"],
        "the cluster of a launch does not fit the grid, the kernel or the device; no block ran",
        &[
            hinted(
                Hint::Rules,
                "the grid is no multiple of the cluster, or the cluster has more than 8 blocks",
                "pad the grid, or use a cluster of at most 8 blocks",
            ),
            hinted(
                Hint::Rules,
                "blocks of so many threads and so much shared memory leave no room for the cluster",
                "use a smaller cluster or smaller blocks; Kernel::occupancy tells what there is room \
                 for",
            ),
            cause(
                "the kernel was compiled with __cluster_dims__ and is launched with another size",
                "launch it with the cluster it was compiled for",
            ),
        ],
    )
    .run(&[CHECK, LIMITS]),
    Failure::runtime(
        98,
        "cudaErrorInvalidDeviceFunction",
        &["invalid device function"],
        "the program has no code of this kernel for the device",
        &[
            hinted(
                Hint::Architecture,
                "the kernel was not compiled for the device's architecture",
                "compile for the device's compute capability, or ship PTX",
            ),
            cause(
                "the kernel's symbol belongs to another library or another runtime",
                "link one CUDA runtime only, and launch a kernel where it was compiled",
            ),
        ],
    )
    .formerly(8)
    .run(&[super::LIST_ELF, LIMITS]),
    Failure::runtime(
        12,
        "cudaErrorInvalidPitchValue",
        &["invalid pitch argument"],
        "the bytes from row to row that a copy was given are too few or too many",
        &[cause(
            "the pitch is less than a row, or more than the device takes",
            "use the pitch that cudaMallocPitch gave, in bytes",
        )],
    )
    .run(&[LIMITS]),
    Failure::runtime(
        13,
        "cudaErrorInvalidSymbol",
        &["invalid device symbol"],
        "a __device__ or __constant__ variable is not known on this device",
        &[cause(
            "the variable's name is given as text, or no code for the device was loaded",
            "pass the symbol itself, and compile for the device's compute capability",
        )],
    )
    .run(&[super::LIST_ELF]),
    Failure::runtime(
        17,
        "cudaErrorInvalidDevicePointer",
        &["invalid device pointer"],
        "a pointer is not one of this device's memory",
        &[cause(
            "the memory was freed already, or is the host's or another device's",
            "free once, and set the device that owns the memory first",
        )],
    )
    .retired()
    .run(EXECUTION),
    Failure::runtime(
        21,
        "cudaErrorInvalidMemcpyDirection",
        &["invalid copy direction for memcpy"],
        "the direction given to a copy is none",
        &[cause("the constant is wrong", "use cudaMemcpyDefault, which looks at the pointers")],
    ),
    Failure::runtime(
        52,
        "cudaErrorMissingConfiguration",
        &["__global__ function call is not configured"],
        "a kernel was called without the sizes of a launch",
        &[cause(
            "host code and runtime are of different CUDA versions, or the kernel is called by hand",
            "build all of the program with one CUDA, and launch with <<<grid, block>>>",
        )],
    ),
    Failure::driver(
        400,
        "CUDA_ERROR_INVALID_HANDLE",
        "cudaErrorInvalidResourceHandle",
        &["invalid resource handle"],
        "a stream, event, module or function is not one of the current context",
        &[
            cause(
                "the handle was created on another device than the current one",
                "set the device before the call, and create handles for each device",
            ),
            cause(
                "the handle was destroyed, or the process was forked after CUDA was initialised",
                "keep handles alive while they are used, and start processes by spawn",
            ),
        ],
    )
    .formerly(33)
    .run(&[BLOCKING]),
    Failure::driver(
        401,
        "CUDA_ERROR_ILLEGAL_STATE",
        "cudaErrorIllegalState",
        &["the operation cannot be performed in the present state"],
        "the object is not in a state that allows the call",
        &[cause("calls come in the wrong order", "look at what the call expects before it")],
    )
    .formerly(84),
    Failure::driver(
        402,
        "CUDA_ERROR_LOSSY_QUERY",
        "cudaErrorLossyQuery",
        &["attempted introspection would be semantically lossy"],
        "what is asked about holds more than the answer could tell",
        &[cause(
            "the call is older than what the object was made with, as a node's new attributes",
            "ask with the call's newest version",
        )],
    ),
    Failure::driver(
        500,
        "CUDA_ERROR_NOT_FOUND",
        "cudaErrorSymbolNotFound",
        &["named symbol not found"],
        "a module has no kernel or variable of this name",
        &[
            cause(
                "the name is mangled by C++",
                "declare the kernel extern \"C\", or ask for the mangled name",
            ),
            cause(
                "the image is another build than the caller expects",
                "list what the image holds, and build both anew",
            ),
        ],
    )
    .run(&["cuobjdump --dump-elf-symbols FILE"]),
    Failure::driver(
        600,
        "CUDA_ERROR_NOT_READY",
        "cudaErrorNotReady",
        &["device not ready"],
        "work that was asked about has not ended; this is an answer, not a fault",
        &[cause(
            "a stream or event was queried before its work was done",
            "wait with a synchronize, or ask again",
        )],
    )
    .formerly(34),
];
