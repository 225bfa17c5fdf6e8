//! What goes wrong while a kernel runs.

use super::{BLOCKING, EXECUTION, HARDWARE, SANITIZER, XIDS};
use crate::diagnose::failure::{Failure, Hint, UsualCause, cause, hinted};

const EARLIER: UsualCause = hinted(
    Hint::EarlierLaunch,
    "an earlier kernel is at fault, not the call that reports it",
    "run with blocking launches, or under compute-sanitizer, to see which",
);
const INDEX_WRAPS: UsualCause = hinted(
    Hint::Rules,
    "an index wraps in 32 bits: the tensors have 2^31 elements or more",
    "compile the kernel with 64-bit indices, or launch it in chunks",
);

pub(super) const FAILURES: &[Failure] = &[
    Failure::driver(
        700,
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "cudaErrorIllegalAddress",
        &[
            "an illegal memory access was encountered",
            "invalid __global__ read of size",
            "invalid __global__ write of size",
            "invalid __global__ atomic of size",
        ],
        "a kernel read or wrote memory that is not its own",
        &[
            EARLIER,
            cause(
                "a kernel runs past the end of a tensor: wrong strides, an index out of range, a \
                 grid that does not cover the shape exactly",
                "run under compute-sanitizer, which names kernel, thread and address",
            ),
            INDEX_WRAPS,
            cause(
                "memory was freed or reused while a kernel on another stream still used it",
                "order streams by events, and free after the last use",
            ),
        ],
    )
    .formerly(77)
    .fatal()
    .run(EXECUTION),
    Failure::driver(
        719,
        "CUDA_ERROR_LAUNCH_FAILED",
        "cudaErrorLaunchFailure",
        &[
            "unspecified launch failure",
            "invalid __shared__ read of size",
            "invalid __shared__ write of size",
            "invalid __local__ read of size",
            "invalid __local__ write of size",
        ],
        "a kernel ended with an exception that has no code of its own, often a bad access to shared \
         or local memory",
        &[
            EARLIER,
            cause(
                "a kernel reaches past its shared memory, its stack or an allocation",
                "run under compute-sanitizer",
            ),
            INDEX_WRAPS,
            cause("the device was reset or lost", "look for an Xid in the system log"),
        ],
    )
    .follows()
    .formerly(4)
    .fatal()
    .run(&[SANITIZER, BLOCKING, XIDS]),
    Failure::driver(
        710,
        "CUDA_ERROR_ASSERT",
        "cudaErrorAssert",
        &["device-side assert triggered"],
        "an assertion in device code failed",
        &[
            hinted(
                Hint::Assertion,
                "the first line with Assertion `...` failed, above the traceback, names file and \
                 condition",
                "read that line, or run with blocking launches to get it",
            ),
            cause(
                "an index is out of range: a label not below the number of classes, a token not \
                 below the vocabulary, a position beyond the embedding",
                "check indices on the host; the same call on the CPU names the index",
            ),
            EARLIER,
        ],
    )
    .formerly(59)
    .fatal()
    .run(&[BLOCKING]),
    Failure::driver(
        716,
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "cudaErrorMisalignedAddress",
        &["misaligned address"],
        "a kernel accessed memory at an address that is no multiple of the access's size",
        &[
            cause(
                "a kernel loads vectors of 8 or 16 bytes from a tensor with an odd offset or stride",
                "align slices to 16 bytes, or use the kernel without vector loads",
            ),
            EARLIER,
        ],
    )
    .formerly(74)
    .fatal()
    .run(EXECUTION),
    Failure::driver(
        715,
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "cudaErrorIllegalInstruction",
        &["an illegal instruction was encountered"],
        "a kernel met an instruction that the device does not have",
        &[
            cause(
                "code for another variant of the architecture, such as sm_90a, or a broken image",
                "compile for the very device",
            ),
            cause(
                "an instruction was used with operands it does not take, as in inline PTX",
                "look at the kernel's inline assembly",
            ),
        ],
    )
    .formerly(73)
    .fatal()
    .run(EXECUTION),
    Failure::driver(
        702,
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "cudaErrorLaunchTimeout",
        &["the launch timed out and was terminated"],
        "a kernel ran longer than the system allows on a device that drives a display",
        &[
            cause(
                "the watchdog of the display driver ended the kernel",
                "launch in smaller chunks, or use a device without a display",
            ),
            cause("the kernel does not end", "run it on less data, under a debugger"),
        ],
    )
    .formerly(6)
    .fatal()
    .run(&["nvidia-smi -q -d COMPUTE", BLOCKING]),
    Failure::driver(
        714,
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "cudaErrorHardwareStackError",
        &["hardware stack error"],
        "the call stack of a kernel overflowed or was damaged",
        &[cause(
            "recursion or large local arrays need more stack than is set",
            "raise CU_LIMIT_STACK_SIZE, or recurse less",
        )],
    )
    .formerly(72)
    .fatal()
    .run(EXECUTION),
    Failure::driver(
        717,
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "cudaErrorInvalidAddressSpace",
        &["operation not supported on global/shared address space"],
        "an instruction for one kind of memory was given an address of another",
        &[cause("a shared pointer is used as a global one, or the other way", "check the casts")],
    )
    .formerly(75)
    .fatal()
    .run(EXECUTION),
    Failure::driver(
        718,
        "CUDA_ERROR_INVALID_PC",
        "cudaErrorInvalidPc",
        &["invalid program counter"],
        "a kernel jumped to an address that holds no code",
        &[cause(
            "a function pointer of the host is called on the device, or the stack was damaged",
            "take the address of a device function in device code",
        )],
    )
    .formerly(76)
    .fatal()
    .run(EXECUTION),
    Failure::driver(
        214,
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "cudaErrorECCUncorrectable",
        &["uncorrectable ECC error encountered", "ecc error"],
        "memory of the device lost data that its error correction could not restore",
        &[cause(
            "a memory cell is faulty: hardware, not the program",
            "drain the device and reset it; have it replaced if rows can no longer be remapped",
        )],
    )
    .formerly(39)
    .fatal()
    .run(HARDWARE),
    Failure::driver(
        220,
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "cudaErrorNvlinkUncorrectable",
        &["uncorrectable NVLink error detected during the execution"],
        "a link between devices lost data",
        &[cause(
            "an NVLink or a switch is faulty: hardware, not the program",
            "look at the link's counters, and reset or replace",
        )],
    )
    .formerly(80)
    .fatal()
    .run(&["nvidia-smi nvlink -e", XIDS]),
    Failure::driver(
        226,
        "CUDA_ERROR_CONTAINED",
        "cudaErrorContained",
        &["invalid access of peer gpu memory over nvlink or a hardware error"],
        "an error of memory or link was confined to this process",
        &[cause(
            "another process or device of the fabric failed, or memory is faulty",
            "start the process anew, and look for an Xid",
        )],
    )
    .fatal()
    .run(HARDWARE),
    Failure::driver(
        721,
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
        "cudaErrorTensorMemoryLeak",
        &["tensor memory not completely freed"],
        "a kernel ended without giving back the tensor memory that it took",
        &[cause(
            "a path through the kernel leaves before tcgen05.dealloc",
            "free on every path, by the warp that allocated",
        )],
    )
    .fatal()
    .run(EXECUTION),
    Failure::driver(
        909,
        "CUDA_ERROR_TIMEOUT",
        "cudaErrorTimeout",
        &["wait operation timed out"],
        "a wait on the device took longer than was allowed",
        &[cause("what is waited for never comes", "look for a missing signal or a dead peer")],
    )
    .late(),
    Failure::driver(
        911,
        "CUDA_ERROR_EXTERNAL_DEVICE",
        "cudaErrorExternalDevice",
        &[
            "an async error has occured in external entity outside of CUDA",
            "an async error has occurred in external entity outside of CUDA",
        ],
        "something outside of CUDA that a stream waits for failed",
        &[cause("another engine or device reported an error", "look into that one's log")],
    )
    .fatal(),
    Failure::driver(
        999,
        "CUDA_ERROR_UNKNOWN",
        "cudaErrorUnknown",
        &["unknown error"],
        "the driver failed inside and has no code for it",
        &[
            cause(
                "the driver's modules are not all there: nvidia-uvm is missing after an update or \
                 a suspend, or the container lacks /dev/nvidia-uvm",
                "load it with nvidia-modprobe -u, or start the machine anew",
            ),
            cause("the device was lost", "look for an Xid in the system log"),
            EARLIER,
        ],
    )
    .follows()
    .formerly(30)
    .run(HARDWARE),
];
