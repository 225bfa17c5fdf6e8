//! Causes that several tables name.

use crate::failure::{Hint, KnownCause, cause};

pub(super) const EARLIER_KERNEL: KnownCause =
    cause("an earlier kernel failed; the call that reports the error is not at fault")
        .fix("run with blocking launches or under compute-sanitizer to find the kernel")
        .hint(Hint::EarlierKernel);
pub(super) const TOO_LITTLE_FREE: KnownCause = cause("less memory is free than was requested")
    .fix("use a smaller batch, a smaller cache or a smaller model")
    .hint(Hint::TooLittleFree);
pub(super) const OTHER_PROCESS: KnownCause =
    cause("another process uses the memory, such as an earlier run that has not exited")
        .fix("find it with nvidia-smi, then end it or use another device")
        .hint(Hint::OtherProcess);
pub(crate) const HOST_MEMORY: KnownCause = cause(
    "the failed allocation is pinned (page-locked) memory of the host, not memory of the GPU: the \
     host's memory is exhausted, or the limit on locked memory is reached",
)
.fix(
    "pin less: a smaller batch, cache or prefetch buffer; free host memory or add more; on Linux, \
     raise the limit on locked memory with ulimit -l",
)
.hint(Hint::HostMemory);
/// The limit, but not its size, is in NVIDIA's "CUDA on WSL User Guide", under "WSL 2 Support Constraints".
pub(crate) const WSL_MEMORY: KnownCause = cause(
    "pinned (page-locked) memory of the host is limited in WSL 2, and the log does not tell memory \
     of the GPU from memory of the host",
)
.fix(WSL_REMEDY)
.hint(Hint::HostMemory);
pub(crate) const WSL_REMEDY: &str = "pin less: in llama.cpp and other programs that use ggml, set \
    GGML_CUDA_NO_PINNED=1; or give WSL more RAM with memory= in .wslconfig, then run wsl --shutdown";
pub(super) const WRAPPED_ERROR: KnownCause =
    cause("a CUDA call inside the library failed and was logged earlier")
        .fix("find the first CUDA error in the log");
pub(super) const ANOTHER_RANK: KnownCause =
    cause("another rank failed or hangs, and the others wait for it")
        .fix("find the first error across the logs of all ranks");
pub(super) const INDEX_OVERFLOW: KnownCause =
    cause("a 32-bit index overflows: a tensor has 2^31 elements or more")
        .fix("compile the kernel with 64-bit indices, or launch it in chunks")
        .hint(Hint::IndexWrap);
