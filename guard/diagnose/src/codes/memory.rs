//! Memory: allocations, registrations, peers.

use super::causes::{HOST_MEMORY, OTHER_PROCESS, TOO_LITTLE_FREE};
use super::commands::{BLOCKING, NVIDIA_SMI, TORCH_BUILD};
use crate::failure::{
    Hint, KnownCause, KnownFailure, Origin, cause, driver, driver_only, renumbered,
};

const FRAGMENTS: KnownCause = cause(
    "memory is free but fragmented, or an allocator in this process keeps it reserved",
)
.fix("release cached memory; in PyTorch, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
.hint(Hint::Fragments);
const ABSURD: KnownCause =
    cause("the size was miscalculated: it overflowed, or a shape is not the intended one")
        .fix("print the shapes of the operation that allocates")
        .hint(Hint::AbsurdSize);

pub(super) const FAILURES: &[KnownFailure] = &[
    driver(2, "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation")
        .says("out of memory")
        .says("Error Code 2: OutOfMemory")
        .means("the driver could not allocate a buffer, a kernel's stack, a module or a context")
        .causes(&[TOO_LITTLE_FREE, OTHER_PROCESS, FRAGMENTS])
        .cause(
            "the stack and local memory of all resident threads do not fit; they are allocated at \
             a kernel's first launch",
        )
        .fix("lower the stack limit (CU_LIMIT_STACK_SIZE), or use a kernel with less local memory")
        .hint(Hint::LocalMemory)
        .causes(&[ABSURD])
        .causes(&[HOST_MEMORY])
        .run(&[NVIDIA_SMI]),
    KnownFailure::new(Origin::Torch, "torch.OutOfMemoryError")
        .says("CUDA out of memory")
        .says("torch.cuda.OutOfMemoryError")
        .says("torch.OutOfMemoryError")
        .means("PyTorch's allocator got no memory from the driver, even after releasing its cache")
        .causes(&[TOO_LITTLE_FREE, OTHER_PROCESS, FRAGMENTS, ABSURD])
        .cause("tensors stay alive: a graph kept for backward, a list of outputs, a traceback")
        .fix("run inference under torch.inference_mode(), and delete tensors you no longer need")
        .run(&[NVIDIA_SMI, TORCH_BUILD]),
    KnownFailure::new(Origin::Vllm, "vLLM memory check")
        .says("less than desired gpu memory utilization")
        .says("no available memory for the cache blocks")
        .says("larger than the maximum number of tokens that can be stored in KV cache")
        .says("larger than the available KV cache memory")
        .means("vLLM's share of the memory measured at start is too small for model and cache")
        .causes(&[OTHER_PROCESS])
        .cause("gpu_memory_utilization exceeds the free memory, or is too low for the model")
        .fix("set it to the share of the device that is free")
        .cause("the cache of one sequence of full length does not fit")
        .fix("lower max_model_len")
        .run(&[NVIDIA_SMI]),
    renumbered(64, 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "cudaErrorPeerAccessUnsupported")
        .says("peer access is not supported between these two devices")
        .means("one device cannot access the other's memory")
        .cause("the devices have no direct link, or virtualization forbids it")
        .fix("query cuDeviceCanAccessPeer first, and copy through the host where it returns false")
        .run(&["nvidia-smi topo -m"]),
    driver(704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "cudaErrorPeerAccessAlreadyEnabled")
        .formerly(50)
        .says("peer access is already enabled")
        .means("access to the peer is already enabled")
        .cause("two parts of the program enable it")
        .fix("treat this result as a success"),
    renumbered(51, 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "cudaErrorPeerAccessNotEnabled")
        .says("peer access has not been enabled")
        .means("access to the peer cannot be disabled because it is not enabled")
        .cause("it was disabled twice, or for the wrong device")
        .fix("enable it first"),
    renumbered(60, 711, "CUDA_ERROR_TOO_MANY_PEERS", "cudaErrorTooManyPeers")
        .says("peer mapping resources exhausted")
        .means("the device cannot map another peer")
        .cause("too many peers are enabled")
        .fix("enable only the peers you need"),
    driver(
        712,
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        "cudaErrorHostMemoryAlreadyRegistered",
    )
    .formerly(61)
    .says("part or all of the requested memory range is already mapped")
    .means("the host memory to be pinned is already pinned")
    .cause("the range or an overlapping one is already registered")
    .fix("register it once"),
    driver(713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "cudaErrorHostMemoryNotRegistered")
        .formerly(62)
        .says("pointer does not correspond to a registered memory region")
        .means("the host memory to be unpinned is not pinned")
        .cause("another pointer was registered")
        .fix("pass the pointer that was registered"),
    driver_only(47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL")
        .means("memory could not be bound to a multicast object: the hardware's limit is reached")
        .cause(
            "the memory is not aligned to the recommended granularity, which takes more resources",
        )
        .fix("align it to what cuMulticastGetGranularity recommends"),
    driver(914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "cudaErrorInvalidResourceType")
        .says("one or more resources passed in are not valid resource types for the operation")
        .means("a resource passed to the call has a type that the call does not accept")
        .cause("resources of a green context are mixed up")
        .fix("look up which resource types the call accepts"),
    driver(
        915,
        "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
        "cudaErrorInvalidResourceConfiguration",
    )
    .says("one or more resources are insufficient or non-applicable for the operation")
    .means("the resources passed to the call are insufficient or do not apply")
    .cause(
        "a green context is requested with a number of multiprocessors the device cannot provide",
    )
    .fix("request a multiple of the device's smallest partition")
    .run(&[BLOCKING]),
];
