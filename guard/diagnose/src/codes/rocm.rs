//! ROCm, which has the error numbers of CUDA, but other limits.

use crate::failure::{KnownFailure, Origin};

const NOT_CUDA: &str =
    "a failure of CUDA: an AMD GPU ran this, so no limit of an NVIDIA GPU applies";
/// Logs each call with its arguments.
const CALLS: &str = "AMD_LOG_LEVEL=3 COMMAND";
const DEVICES: &str = "rocminfo";

const fn hip(number: i32, name: &'static str) -> KnownFailure {
    KnownFailure::new(Origin::Rocm, name).numbered(number).not(NOT_CUDA)
}

/// A failure of ROCm that the table does not list.
pub(super) static UNLISTED: KnownFailure = KnownFailure::new(Origin::Rocm, "HIP error")
    .not(NOT_CUDA)
    .means("a call of HIP failed on an AMD GPU")
    .cause("the result has the name and the usual causes of CUDA's, under the limits of ROCm")
    .fix("log the calls, and look the result up in the documentation of hipError_t")
    .run(&[CALLS, DEVICES]);

pub(super) const FAILURES: &[KnownFailure] = &[
    hip(1, "hipErrorInvalidValue")
        .means("an argument of a call of HIP is invalid or out of range on an AMD GPU")
        .cause("a launch has more than 1024 threads a block, or 2^32 threads or more on an axis")
        .fix("log the launch, and split it or use smaller blocks")
        .cause("a block needs more shared memory (LDS) than the GPU has: 64 KiB on most")
        .fix("use smaller tiles")
        .cause("a pointer is null, freed or of the host")
        .fix("check every pointer passed to the call")
        .run(&[CALLS, DEVICES]),
    hip(9, "hipErrorInvalidConfiguration")
        .means("the launch exceeds a limit of ROCm or of the AMD GPU; no block ran")
        .cause(
            "a block has more than 1024 threads or none, or an axis of the grid has 2^32 threads \
             or more (blocks x threads per block)",
        )
        .fix("log the launch, and split it or use smaller blocks")
        .cause("a block needs more shared memory (LDS) than the GPU has: 64 KiB on most")
        .fix("use smaller tiles")
        .run(&[CALLS, DEVICES]),
    hip(2, "hipErrorOutOfMemory")
        .means("the AMD GPU has too little free memory for the request")
        .cause("less memory is free than was requested, or another process uses it")
        .fix("use a smaller batch or model, or end the other process")
        .run(&["rocm-smi --showmeminfo vram", CALLS]),
    hip(98, "hipErrorInvalidDeviceFunction")
        .means("the program contains no code of this kernel for the AMD GPU")
        .cause("the kernel was not compiled for the GPU's architecture (gfx...)")
        .fix(
            "install a build for it, or try HSA_OVERRIDE_GFX_VERSION with a GPU of the same family",
        )
        .run(&["rocminfo | grep gfx"]),
    hip(209, "hipErrorNoBinaryForGpu")
        .means("the program contains no code for the AMD GPU")
        .cause("the program was not compiled for the GPU's architecture (gfx...)")
        .fix(
            "install a build for it, or try HSA_OVERRIDE_GFX_VERSION with a GPU of the same family",
        )
        .run(&["rocminfo | grep gfx"]),
    hip(100, "hipErrorNoDevice")
        .means("ROCm finds no AMD GPU that it supports")
        .cause("the user may not open /dev/kfd, or HIP_VISIBLE_DEVICES hides the GPU")
        .fix("add the user to the groups render and video, and unset the variable")
        .run(&[DEVICES]),
    hip(101, "hipErrorInvalidDevice")
        .means("no AMD GPU with the requested number is visible to the process")
        .cause("the number is not below the number of visible GPUs, or HIP_VISIBLE_DEVICES hides the GPU")
        .fix("count the visible GPUs, and use a lower number or unset the variable")
        .run(&[DEVICES]),
    hip(400, "hipErrorInvalidHandle")
        .means("a stream, event or module does not belong to the current AMD GPU")
        .cause("the handle was created on another GPU, or was destroyed")
        .fix("set the GPU before the call, and keep handles alive while they are used")
        .run(&[CALLS]),
    hip(701, "hipErrorLaunchOutOfResources")
        .means("a block needs more registers or shared memory (LDS) than the AMD GPU has; no block ran")
        .cause("registers per thread times threads per block exceed those of a compute unit")
        .fix("use smaller blocks, or compile with __launch_bounds__")
        .run(&[CALLS, DEVICES]),
    hip(710, "hipErrorAssert")
        .sticky()
        .late()
        .means("an assertion in device code failed on an AMD GPU")
        .cause("an index is out of range, for example a label or a token")
        .fix("run with AMD_SERIALIZE_KERNEL=3, or on the CPU, which reports the index")
        .run(&["AMD_SERIALIZE_KERNEL=3 COMMAND"]),
    hip(719, "hipErrorLaunchFailure")
        .sticky()
        .late()
        .means("a kernel on an AMD GPU failed while it ran")
        .cause("a kernel read or wrote invalid memory, or the GPU hung and was reset")
        .fix("run with AMD_SERIALIZE_KERNEL=3 to find the kernel, and look for amdgpu in dmesg")
        .run(&["AMD_SERIALIZE_KERNEL=3 COMMAND", "dmesg | grep -i amdgpu"]),
    hip(900, "hipErrorStreamCaptureUnsupported")
        .means("a call that cannot be part of a graph was made during stream capture on an AMD GPU")
        .cause(
            "something synchronizes, allocates or queries an event during the capture, also on another \
             thread, as a watchdog of collectives does",
        )
        .fix("warm up before the capture, capture in thread-local mode, or run without graphs")
        .run(&[CALLS]),
    hip(700, "hipErrorIllegalAddress")
        .sticky()
        .late()
        .means("a kernel on an AMD GPU accessed memory that is not allocated")
        .cause("an index is out of bounds, or the memory was freed")
        .fix("run with AMD_SERIALIZE_KERNEL=3 to find the kernel")
        .run(&["AMD_SERIALIZE_KERNEL=3 COMMAND"]),
];
