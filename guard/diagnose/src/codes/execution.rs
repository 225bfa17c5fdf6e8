//! Failures of running kernels.

use super::causes::{EARLIER_KERNEL, INDEX_OVERFLOW};
use super::commands::{BLOCKING, EXECUTION, HARDWARE, SANITIZER, XIDS};
use crate::failure::{Hint, KnownFailure, driver, renumbered};

pub(super) const FAILURES: &[KnownFailure] = &[
    renumbered(77, 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress")
        .loses_context()
        .says("an illegal memory access was encountered")
        .says("invalid __global__ read of size")
        .says("invalid __global__ write of size")
        .says("invalid __global__ atomic of size")
        .means("a kernel accessed memory that is not allocated or not accessible to it")
        .causes(&[EARLIER_KERNEL])
        .cause(
            "a kernel runs past the end of a tensor: wrong strides, an index out of range, or a \
             grid larger than the shape without a bounds check",
        )
        .fix("run under compute-sanitizer, which reports kernel, thread and address")
        .hint(Hint::OutOfBounds)
        .causes(&[INDEX_OVERFLOW])
        .cause("memory was freed or reused while a kernel on another stream still used it")
        .fix("order the streams with events, and free after the last use")
        .run(EXECUTION),
    renumbered(4, 719, "CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure")
        .loses_context()
        .follows()
        .says("unspecified launch failure")
        .says("invalid __shared__ read of size")
        .says("invalid __shared__ write of size")
        .says("invalid __local__ read of size")
        .says("invalid __local__ write of size")
        .means(
            "a kernel raised an exception that has no code of its own, often an invalid access to \
             shared or local memory",
        )
        .causes(&[EARLIER_KERNEL])
        .cause("a kernel runs past the end of its shared memory, its stack or an allocation")
        .fix("run under compute-sanitizer")
        .hint(Hint::OutOfBounds)
        .causes(&[INDEX_OVERFLOW])
        .cause("the device was reset or lost")
        .fix("look for an Xid in the system log")
        .run(&[SANITIZER, BLOCKING, XIDS]),
    renumbered(59, 710, "CUDA_ERROR_ASSERT", "cudaErrorAssert")
        .loses_context()
        .says("device-side assert triggered")
        .means("an assertion in device code failed")
        .cause(
            "an index is out of range: a label >= the number of classes, a token >= the vocabulary \
             size, a position beyond the embedding",
        )
        .fix("check indices on the host; the same operation on the CPU reports the index")
        .hint(Hint::IndexOutOfRange)
        .cause(
            "the first line with Assertion `...` failed, above the traceback, names the file and \
             the condition",
        )
        .fix("read that line; if it is missing, run with blocking launches to get it")
        .hint(Hint::FailedAssertion)
        .causes(&[EARLIER_KERNEL])
        .run(&[BLOCKING]),
    renumbered(74, 716, "CUDA_ERROR_MISALIGNED_ADDRESS", "cudaErrorMisalignedAddress")
        .loses_context()
        .says("misaligned address")
        .means("a kernel accessed memory at an address that is not a multiple of the access size")
        .cause(
            "a kernel uses 8- or 16-byte vector loads on a tensor whose offset or stride is not \
             aligned",
        )
        .fix("align slices to 16 bytes, or use a kernel without vector loads")
        .hint(Hint::Misaligned)
        .cause(
            "an input of the attention is a view that begins at an odd element, and the attention \
             kernel reads 16 bytes at once",
        )
        .fix("copy the view with .clone(), or call gridguard.torch.install()")
        .hint(Hint::AttentionBatch)
        .causes(&[EARLIER_KERNEL])
        .run(EXECUTION),
    renumbered(73, 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "cudaErrorIllegalInstruction")
        .loses_context()
        .says("an illegal instruction was encountered")
        .means("a kernel executed an instruction that the device does not support")
        .cause(
            "the code is for another variant of the architecture, such as sm_90a, or the image is \
             damaged",
        )
        .fix("compile for exactly this device")
        .cause("an instruction has operands that it does not support, as in inline PTX")
        .fix("check the kernel's inline assembly")
        .run(EXECUTION),
    renumbered(6, 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout")
        .loses_context()
        .says("the launch timed out and was terminated")
        .means("a kernel ran longer than the system allows on a device that drives a display")
        .cause("the display driver's watchdog stopped the kernel")
        .fix("launch in smaller chunks, or use a device without a display")
        .cause("the kernel does not terminate")
        .fix("run it on less data, in a debugger")
        .run(&["nvidia-smi -q -d COMPUTE", BLOCKING]),
    renumbered(72, 714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "cudaErrorHardwareStackError")
        .loses_context()
        .says("hardware stack error")
        .means("the call stack of a kernel overflowed or was corrupted")
        .cause("recursion or large local arrays need more stack than the limit")
        .fix("raise CU_LIMIT_STACK_SIZE, or recurse less")
        .run(EXECUTION),
    renumbered(75, 717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "cudaErrorInvalidAddressSpace")
        .loses_context()
        .says("operation not supported on global/shared address space")
        .means("an instruction for one address space was given an address of another")
        .cause("a shared-memory pointer is used as a global one, or the reverse")
        .fix("check the pointer casts")
        .run(EXECUTION),
    renumbered(76, 718, "CUDA_ERROR_INVALID_PC", "cudaErrorInvalidPc")
        .loses_context()
        .says("invalid program counter")
        .means("a kernel jumped to an address that holds no code")
        .cause("a host function pointer is called on the device, or the stack was corrupted")
        .fix("take the address of a device function in device code")
        .run(EXECUTION),
    renumbered(39, 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable")
        .loses_context()
        .says("uncorrectable ECC error encountered")
        .says("ecc error")
        .means("device memory lost data that its error correction (ECC) could not restore")
        .cause("a memory cell is faulty: hardware, not the program")
        .fix("drain the device and reset it; replace it if no more rows can be remapped")
        .run(HARDWARE),
    renumbered(80, 220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "cudaErrorNvlinkUncorrectable")
        .loses_context()
        .says("uncorrectable NVLink error detected during the execution")
        .means("an NVLink between devices lost data")
        .cause("an NVLink or a switch is faulty: hardware, not the program")
        .fix("read the link's error counters; reset the device, and replace the part if it recurs")
        .run(&["nvidia-smi nvlink -e", XIDS]),
    driver(226, "CUDA_ERROR_CONTAINED", "cudaErrorContained")
        .loses_context()
        .says("invalid access of peer gpu memory over nvlink or a hardware error")
        .means("a memory or NVLink error was contained to this process, which has to be restarted")
        .cause("another process or device of the fabric failed, or memory is faulty")
        .fix("restart the process, and look for an Xid in the system log")
        .run(HARDWARE),
    driver(721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "cudaErrorTensorMemoryLeak")
        .loses_context()
        .says("tensor memory not completely freed")
        .means("a kernel exited without freeing the tensor memory it had allocated")
        .cause("a path through the kernel exits before tcgen05.dealloc")
        .fix("free on every path, from the warp that allocated")
        .run(EXECUTION),
    driver(909, "CUDA_ERROR_TIMEOUT", "cudaErrorTimeout")
        .late()
        .says("wait operation timed out")
        .means("a wait on the device took longer than its time limit")
        .cause("its signal never arrives")
        .fix("look for a missing signal or failed peer"),
    driver(911, "CUDA_ERROR_EXTERNAL_DEVICE", "cudaErrorExternalDevice")
        .loses_context()
        .says("an async error has occured in external entity outside of CUDA")
        .says("an async error has occurred in external entity outside of CUDA")
        .means("an engine or device outside CUDA, which a stream waits for, reported an error")
        .cause("the external engine or device failed")
        .fix("read its own log"),
    renumbered(30, 999, "CUDA_ERROR_UNKNOWN", "cudaErrorUnknown")
        .follows()
        .says("unknown error")
        .means("the driver had an internal error that has no code of its own")
        .cause(
            "a driver module is missing: nvidia-uvm is not loaded after an update or a suspend, or \
             the container lacks /dev/nvidia-uvm",
        )
        .fix("load it with nvidia-modprobe -u, or reboot")
        .cause("the device was lost")
        .fix("look for an Xid in the system log")
        .causes(&[EARLIER_KERNEL])
        .run(HARDWARE),
];
