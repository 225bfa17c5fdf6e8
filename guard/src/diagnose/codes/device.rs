//! Devices and drivers: not there, too old, not ready.

use super::{HARDWARE, NVIDIA_SMI, NVIDIA_SMI_Q, TORCH_BUILD};
use crate::diagnose::failure::{Failure, Hint, Origin, UsualCause, cause, hinted};

const HIDDEN: UsualCause = hinted(
    Hint::NoDevice,
    "no device is visible to the process: CUDA_VISIBLE_DEVICES is empty or names none that exists, \
     or the container was started without its devices",
    "unset CUDA_VISIBLE_DEVICES, or start the container with --gpus all",
);
const NO_DRIVER: UsualCause = cause(
    "the kernel's driver module is not loaded",
    "see whether nvidia-smi works; install or load the driver where it does not",
);
const OLD_DRIVER: UsualCause = hinted(
    Hint::DriverAge,
    "the driver is older than the CUDA that the program was built with",
    "update the driver, or install a build for an older CUDA",
);
const CPU_BUILD: UsualCause = cause(
    "the installed build of PyTorch is the one for CPUs",
    "install one for CUDA, as from https://download.pytorch.org/whl/cu128",
);

pub(super) const FAILURES: &[Failure] = &[
    Failure::driver(
        100,
        "CUDA_ERROR_NO_DEVICE",
        "cudaErrorNoDevice",
        &[
            "no CUDA-capable device is detected",
            "no CUDA devices found",
            "no nvidia devices detected",
        ],
        "the driver sees no device",
        &[HIDDEN, NO_DRIVER],
    )
    .formerly(38)
    .run(&[NVIDIA_SMI, "echo \"$CUDA_VISIBLE_DEVICES\""]),
    Failure::new(
        Origin::Torch,
        "No CUDA GPUs are available",
        &["no cuda gpus are available"],
        "PyTorch was built for CUDA, but the driver shows it no device",
        &[HIDDEN, NO_DRIVER],
    )
    .not("a build for CPUs: that one says `Torch not compiled with CUDA enabled`")
    .run(&[NVIDIA_SMI, "echo \"$CUDA_VISIBLE_DEVICES\""]),
    Failure::new(
        Origin::Torch,
        "Torch not compiled with CUDA enabled",
        &[
            "torch not compiled with cuda enabled",
            "attempting to deserialize object on a CUDA device but torch.cuda.is_available() is \
             False",
        ],
        "the installed PyTorch has no CUDA in it",
        &[CPU_BUILD],
    )
    .not("a missing GPU: this build never looks for one")
    .run(&[TORCH_BUILD]),
    Failure::new(
        Origin::Torch,
        "Found no NVIDIA driver on your system",
        &["found no nvidia driver on your system"],
        "PyTorch was built for CUDA, but there is no driver that it could talk to",
        &[
            NO_DRIVER,
            cause("the container was started without its devices", "start it with --gpus all"),
        ],
    )
    .run(&[NVIDIA_SMI]),
    Failure::runtime(
        35,
        "cudaErrorInsufficientDriver",
        &[
            "CUDA driver version is insufficient for CUDA runtime version",
            "The NVIDIA driver on your system is too old",
        ],
        "the driver is older than the CUDA runtime of the program",
        &[
            OLD_DRIVER,
            cause(
                "no driver is loaded at all: the runtime then counts its version as 0",
                "see whether nvidia-smi works",
            ),
        ],
    )
    .run(&[NVIDIA_SMI, TORCH_BUILD]),
    Failure::driver(
        36,
        "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
        "cudaErrorCallRequiresNewerDriver",
        &["API call is not supported in the installed CUDA driver"],
        "the driver is older than a function that the program calls",
        &[OLD_DRIVER],
    )
    .run(&[NVIDIA_SMI]),
    Failure::driver(
        101,
        "CUDA_ERROR_INVALID_DEVICE",
        "cudaErrorInvalidDevice",
        &[
            "invalid device ordinal",
            "invalid device id",
            "attempting to deserialize object on CUDA device",
            "device >= 0 && device < num_gpus",
        ],
        "a device is asked for by a number that the process does not see",
        &[
            hinted(
                Hint::Ordinal,
                "the number is not below the count of visible devices; CUDA_VISIBLE_DEVICES \
                 numbers them anew from 0",
                "count the devices that the process sees, and use a number below",
            ),
            cause(
                "cuInit refuses to begin: CUDA_VISIBLE_DEVICES names a device twice, or \
                 CUDA_DEVICE_ORDER is none of CUDA's",
                "unset both",
            ),
            cause("more processes than devices were started", "start one for each device"),
        ],
    )
    .formerly(10)
    .run(&[NVIDIA_SMI, "echo \"$CUDA_VISIBLE_DEVICES\""]),
    Failure::driver(
        46,
        "CUDA_ERROR_DEVICE_UNAVAILABLE",
        "cudaErrorDevicesUnavailable",
        &[
            "CUDA-capable device(s) is/are busy or unavailable",
            "all CUDA-capable devices are busy or unavailable",
        ],
        "the device takes no further process now",
        &[
            cause(
                "the compute mode is exclusive and another process has the device",
                "end that process, or set the mode with nvidia-smi -c 0",
            ),
            cause(
                "MIG is on, and no instance was made or chosen",
                "list them with nvidia-smi -L, and name one in CUDA_VISIBLE_DEVICES",
            ),
            cause("the device was lost or is being reset", "look for an Xid in the system log"),
        ],
    )
    .run(HARDWARE),
    Failure::driver(
        216,
        "CUDA_ERROR_CONTEXT_ALREADY_IN_USE",
        "cudaErrorDeviceAlreadyInUse",
        &["exclusive-thread device already in use by a different thread"],
        "the device is exclusive and in use",
        &[cause("the compute mode is exclusive", "set the mode with nvidia-smi -c 0")],
    )
    .formerly(54)
    .run(&[NVIDIA_SMI_Q]),
    Failure::driver(
        102,
        "CUDA_ERROR_DEVICE_NOT_LICENSED",
        "cudaErrorDeviceNotLicensed",
        &["device doesn't have valid Grid license"],
        "a virtual GPU has no licence for computing",
        &[cause("the licence server was not reached", "look at the vGPU's licence state")],
    )
    .run(&[NVIDIA_SMI_Q]),
    Failure::driver(
        3,
        "CUDA_ERROR_NOT_INITIALIZED",
        "cudaErrorInitializationError",
        &["initialization error", "cannot re-initialize cuda in forked subprocess"],
        "CUDA was used before it was initialised, or could not be",
        &[
            cause(
                "the process was forked after its parent used CUDA",
                "start processes by spawn or forkserver, or use CUDA only in the children",
            ),
            NO_DRIVER,
        ],
    )
    .run(&[NVIDIA_SMI]),
    Failure::driver(
        34,
        "CUDA_ERROR_STUB_LIBRARY",
        "cudaErrorStubLibrary",
        &["CUDA driver is a stub library"],
        "the library found as libcuda is the one for linking, not the driver",
        &[cause(
            "LD_LIBRARY_PATH has the toolkit's folder lib64/stubs",
            "take that folder out: it is for the linker only",
        )],
    )
    .run(&["echo \"$LD_LIBRARY_PATH\"", "ldconfig -p | grep libcuda"]),
];
