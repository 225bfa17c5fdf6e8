//! Memory: allocations, registrations, peers.

use super::{BLOCKING, NVIDIA_SMI, TORCH_BUILD};
use crate::diagnose::failure::{Failure, Hint, Origin, UsualCause, cause, hinted};

pub(super) const TOO_LITTLE_FREE: UsualCause = hinted(
    Hint::TooLittleFree,
    "less memory is free than is asked for",
    "use a smaller batch, a smaller cache or a smaller model",
);
const FRAGMENTS: UsualCause = hinted(
    Hint::Fragments,
    "memory is free, but in pieces, or an allocator of this process holds it back",
    "give cached memory back, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
);
pub(super) const OTHER_PROCESS: UsualCause = hinted(
    Hint::OtherProcess,
    "another process holds the memory, such as an earlier run that did not end",
    "find it with nvidia-smi, and end it or use another device",
);
const ABSURD: UsualCause = hinted(
    Hint::AbsurdSize,
    "the size was computed wrongly: it wrapped, or a shape is not what was meant",
    "print the shapes of the operation that allocates",
);

pub(super) const FAILURES: &[Failure] = &[
    Failure::driver(
        2,
        "CUDA_ERROR_OUT_OF_MEMORY",
        "cudaErrorMemoryAllocation",
        &["out of memory", "Error Code 2: OutOfMemory"],
        "the driver could not get memory for an allocation, a kernel's stack, a module or a context",
        &[
            TOO_LITTLE_FREE,
            OTHER_PROCESS,
            FRAGMENTS,
            hinted(
                Hint::LocalMemory,
                "the stack and local memory of all resident threads do not fit: they are allocated \
                 when a kernel is first launched",
                "lower the stack limit (CU_LIMIT_STACK_SIZE), or use a kernel with less local memory",
            ),
            ABSURD,
            cause(
                "host memory cannot be pinned: the limit of locked pages or the system's memory is \
                 used up",
                "raise the limit with ulimit -l, or pin less",
            ),
        ],
    )
    .run(&[NVIDIA_SMI]),
    Failure::new(
        Origin::Torch,
        "torch.OutOfMemoryError",
        &["CUDA out of memory", "torch.cuda.OutOfMemoryError", "torch.OutOfMemoryError"],
        "PyTorch's allocator asked the driver for memory and got none, also after it gave back what \
         it had cached",
        &[
            TOO_LITTLE_FREE,
            OTHER_PROCESS,
            FRAGMENTS,
            ABSURD,
            cause(
                "tensors stay alive: a graph kept for backward, a list of outputs, a traceback",
                "run inference under torch.inference_mode(), and drop what is no longer needed",
            ),
        ],
    )
    .run(&[NVIDIA_SMI, TORCH_BUILD]),
    Failure::new(
        Origin::Vllm,
        "vLLM memory check",
        &[
            "less than desired gpu memory utilization",
            "no available memory for the cache blocks",
            "larger than the maximum number of tokens that can be stored in KV cache",
            "larger than the available KV cache memory",
        ],
        "vLLM measured the memory at the start, and its share of it does not hold the model and a \
         cache",
        &[
            OTHER_PROCESS,
            cause(
                "gpu_memory_utilization is above what is free, or too low for the model",
                "set it to the share of the device that is free",
            ),
            cause("the cache of one longest sequence does not fit", "lower max_model_len"),
        ],
    )
    .run(&[NVIDIA_SMI]),
    Failure::driver(
        217,
        "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        "cudaErrorPeerAccessUnsupported",
        &["peer access is not supported between these two devices"],
        "one device cannot reach the other's memory",
        &[cause(
            "the devices have no direct link, or virtualisation forbids it",
            "ask cuDeviceCanAccessPeer first, and copy through the host where it says no",
        )],
    )
    .formerly(64)
    .run(&["nvidia-smi topo -m"]),
    Failure::driver(
        704,
        "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        "cudaErrorPeerAccessAlreadyEnabled",
        &["peer access is already enabled"],
        "access to the peer was enabled before",
        &[cause("two parts of a program enable it", "take this answer for a success")],
    )
    .formerly(50),
    Failure::driver(
        705,
        "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
        "cudaErrorPeerAccessNotEnabled",
        &["peer access has not been enabled"],
        "access to the peer is to be disabled, but was never enabled",
        &[cause("it was disabled twice, or for the wrong device", "enable it first")],
    )
    .formerly(51),
    Failure::driver(
        711,
        "CUDA_ERROR_TOO_MANY_PEERS",
        "cudaErrorTooManyPeers",
        &["peer mapping resources exhausted"],
        "a device has no room for another peer",
        &[cause("more peers are enabled than the hardware maps", "enable those needed only")],
    )
    .formerly(60),
    Failure::driver(
        712,
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        "cudaErrorHostMemoryAlreadyRegistered",
        &["part or all of the requested memory range is already mapped"],
        "host memory is to be pinned that already is",
        &[cause("a range, or one that overlaps it, was registered before", "register it once")],
    )
    .formerly(61),
    Failure::driver(
        713,
        "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        "cudaErrorHostMemoryNotRegistered",
        &["pointer does not correspond to a registered memory region"],
        "host memory is to be unpinned that is not pinned",
        &[cause("the pointer is not the one that was registered", "keep the pointer itself")],
    )
    .formerly(62),
    Failure::driver_alone(
        47,
        "CUDA_ERROR_MULTICAST_RESOURCE_FULL",
        "memory could not be bound to a multicast object: the hardware has no room for another",
        &[cause(
            "the memory is not aligned as the hardware prefers, which takes more room",
            "align it to what cuMulticastGetGranularity recommends",
        )],
    ),
    Failure::driver(
        914,
        "CUDA_ERROR_INVALID_RESOURCE_TYPE",
        "cudaErrorInvalidResourceType",
        &["one or more resources passed in are not valid resource types for the operation"],
        "a resource given to the call is of a kind that it does not take",
        &[cause("resources of a green context are mixed up", "look at what the call takes")],
    ),
    Failure::driver(
        915,
        "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
        "cudaErrorInvalidResourceConfiguration",
        &["one or more resources are insufficient or non-applicable for the operation"],
        "resources given to the call are too few, or do not apply",
        &[cause(
            "a green context is asked for with a count of multiprocessors that cannot be had",
            "ask for a multiple of the device's smallest partition",
        )],
    )
    .run(&[BLOCKING]),
];
