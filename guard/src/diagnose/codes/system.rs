//! Systems, services and contexts around the device.

use super::{HARDWARE, LIMITS, NVIDIA_SMI, NVIDIA_SMI_Q};
use crate::diagnose::failure::{Failure, Hint, UsualCause, cause, hinted};

const MPS_LOG: &[&str] = &["cat /var/log/nvidia-mps/control.log"];
const MPS_FULL: UsualCause =
    cause("more processes than MPS has room for are connected", "start fewer clients");

pub(super) const FAILURES: &[Failure] = &[
    Failure::driver(
        802,
        "CUDA_ERROR_SYSTEM_NOT_READY",
        "cudaErrorSystemNotReady",
        &["system not yet initialized"],
        "the machine's links between GPUs are not set up yet",
        &[
            cause(
                "nvidia-fabricmanager does not run, or is of another version than the driver: \
                 machines with NVSwitch need it",
                "start it, and keep its version equal to the driver's",
            ),
            cause("the machine has just started", "wait for the services, and try again"),
        ],
    )
    .formerly(83)
    .not("a fault of the program: not even a count of devices can be had")
    .run(&["systemctl status nvidia-fabricmanager", "nvidia-smi -q | grep -A 3 Fabric"]),
    Failure::driver(
        919,
        "CUDA_ERROR_FABRIC_NOT_READY",
        "cudaErrorFabricNotReady",
        &["GPU fabric is not ready within the probe wait budget"],
        "the machine's links between GPUs were not set up in the time that was waited",
        &[
            cause("the machine has just started", "wait a minute, and try again"),
            cause(
                "nvidia-fabricmanager or nvidia-imex does not run",
                "start it; CUDA_FABRIC_INIT_TIMEOUT_MS says how long is waited",
            ),
        ],
    )
    .run(&["systemctl status nvidia-fabricmanager", "nvidia-smi -q | grep -A 3 Fabric"]),
    Failure::driver(
        803,
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "cudaErrorSystemDriverMismatch",
        &[
            "system has unsupported display driver / cuda driver combination",
            "Driver/library version mismatch",
            "NVRM: API mismatch",
            "NVML/RM version mismatch",
        ],
        "the kernel's module and libcuda are of different driver versions",
        &[
            cause(
                "the driver was updated while the old module was loaded",
                "start the machine anew, or reload the module",
            ),
            cause(
                "a container brings a libcuda of its own, as in the folder compat",
                "take that folder out of LD_LIBRARY_PATH",
            ),
        ],
    )
    .run(&["cat /proc/driver/nvidia/version", "ldconfig -p | grep libcuda"]),
    Failure::driver(
        804,
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        "cudaErrorCompatNotSupportedOnDevice",
        &["forward compatibility was attempted on non supported HW"],
        "a libcuda newer than the kernel's module was loaded, which only data centre GPUs allow",
        &[
            hinted(
                Hint::DriverAge,
                "the container's CUDA is newer than the driver, and its compat libraries were taken",
                "update the driver, or use an image for an older CUDA",
            ),
            cause(
                "the driver was updated and the machine not started anew",
                "start the machine anew",
            ),
        ],
    )
    .run(&[NVIDIA_SMI, "cat /proc/driver/nvidia/version"]),
    Failure::driver(
        4,
        "CUDA_ERROR_DEINITIALIZED",
        "cudaErrorCudartUnloading",
        &["driver shutting down"],
        "CUDA was called while the process ends",
        &[cause(
            "a destructor of a global, or a thread that still runs, calls CUDA after main",
            "release what belongs to CUDA before main ends; otherwise ignore it",
        )],
    )
    .follows(),
    Failure::driver(
        201,
        "CUDA_ERROR_INVALID_CONTEXT",
        "cudaErrorDeviceUninitialized",
        &["invalid device context"],
        "no context is current on this thread, or one that is gone",
        &[
            cause(
                "a thread calls the driver without a context",
                "make the context current on each thread, or call cudaSetDevice",
            ),
            cause("the context was destroyed", "keep it while it is used"),
        ],
    )
    .follows(),
    Failure::driver(
        709,
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "cudaErrorContextIsDestroyed",
        &["context is destroyed"],
        "the current context was destroyed",
        &[cause("the device was reset, or the context freed elsewhere", "make a new context")],
    )
    .follows(),
    Failure::driver(
        708,
        "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        "cudaErrorSetOnActiveProcess",
        &["cannot set while device is active in this process"],
        "flags of a device are to be set after its context was made",
        &[cause("the call comes too late", "set flags before anything else uses the device")],
    )
    .formerly(36),
    Failure::runtime(
        49,
        "cudaErrorIncompatibleDriverContext",
        &["incompatible driver context"],
        "the current context is one that the runtime cannot use",
        &[cause("it was made by the driver's own call", "use the device's primary context")],
    ),
    Failure::driver(
        5,
        "CUDA_ERROR_PROFILER_DISABLED",
        "cudaErrorProfilerDisabled",
        &["profiler disabled while using external profiling tool"],
        "the program starts the profiler while another one runs it",
        &[cause("it runs under a profiling tool", "ignore it, or take the calls out")],
    ),
    Failure::runtime(
        103,
        "cudaErrorSoftwareValidityNotEstablished",
        &["integrity checks failed"],
        "the driver or the device did not pass the system's checks of integrity",
        &[cause("confidential computing is not set up in full", "look at the device's mode")],
    )
    .run(&[NVIDIA_SMI_Q]),
    Failure::runtime(
        127,
        "cudaErrorStartupFailure",
        &["startup failure in cuda runtime"],
        "the CUDA runtime could not start",
        &[cause(
            "driver and runtime do not go together, or the device failed",
            "see whether nvidia-smi works, and look for an Xid in the system log",
        )],
    )
    .run(HARDWARE),
    Failure::driver_alone(
        916,
        "CUDA_ERROR_KEY_ROTATION",
        "the keys of confidential computing could not be changed",
        &[cause("the device failed, or the machine's set-up is wrong", "start the process anew")],
    )
    .run(HARDWARE),
    Failure::driver(
        917,
        "CUDA_ERROR_STREAM_DETACHED",
        "cudaErrorStreamDetached",
        &["API call not permitted since the green context associated with the stream has been \
           destroyed"],
        "a stream is used whose green context is gone",
        &[cause("the context was destroyed first", "keep it while its streams are used")],
    ),
    Failure::driver(
        215,
        "CUDA_ERROR_UNSUPPORTED_LIMIT",
        "cudaErrorUnsupportedLimit",
        &["limit is not supported on this architecture"],
        "the device does not have the limit that is to be set",
        &[cause("the limit is for other architectures", "do not set it on this device")],
    )
    .formerly(42),
    Failure::driver(
        224,
        "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY",
        "cudaErrorUnsupportedExecAffinity",
        &["the provided execution affinity is not supported"],
        "a context cannot be bound to a share of the multiprocessors here",
        &[cause("MPS does not run, or the device cannot", "make the context without affinity")],
    ),
    Failure::driver(
        304,
        "CUDA_ERROR_OPERATING_SYSTEM",
        "cudaErrorOperatingSystem",
        &["OS call failed or operation not supported on this OS"],
        "the operating system refused a call of the driver",
        &[
            cause(
                "a limit is reached: open files, locked memory, shared memory of a container",
                "raise it, as with ulimit -n, ulimit -l or --shm-size",
            ),
            cause(
                "memory cannot be shared between processes here, as in WSL or some containers",
                "share the IPC namespace, or copy instead",
            ),
        ],
    )
    .formerly(63)
    .run(&["ulimit -a"]),
    Failure::driver(
        800,
        "CUDA_ERROR_NOT_PERMITTED",
        "cudaErrorNotPermitted",
        &["operation not permitted"],
        "the call is not allowed here",
        &[
            cause(
                "a callback of a stream calls CUDA",
                "do not call CUDA from callbacks; hand the work to another thread",
            ),
            cause("the process lacks a permission", "look at the permissions of /dev/nvidia*"),
        ],
    )
    .formerly(70),
    Failure::driver(
        801,
        "CUDA_ERROR_NOT_SUPPORTED",
        "cudaErrorNotSupported",
        &["operation not supported"],
        "device, driver or system cannot do this",
        &[
            cause(
                "memory pools, peers or managed memory are missing here, as on a virtual GPU or in \
                 WSL",
                "query the device's attribute first, and go another way where it says no",
            ),
            hinted(
                Hint::Rules,
                "the launch needs what the device lacks: a cluster or a cooperative launch",
                "check the launch against the device, and launch it plainly",
            ),
        ],
    )
    .formerly(71)
    .run(&[LIMITS, NVIDIA_SMI_Q]),
    Failure::driver(
        805,
        "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "cudaErrorMpsConnectionFailed",
        &["MPS client failed to connect to the MPS control daemon or the MPS server"],
        "the process is to share the device through MPS, but reaches no server",
        &[cause(
            "the daemon does not run, or of another user, or its pipe folder is not shared",
            "start nvidia-cuda-mps-control -d, and set CUDA_MPS_PIPE_DIRECTORY alike",
        )],
    )
    .run(MPS_LOG),
    Failure::driver(
        806,
        "CUDA_ERROR_MPS_RPC_FAILURE",
        "cudaErrorMpsRpcFailure",
        &["the remote procedural call between the MPS server and the MPS client failed"],
        "the MPS server did not answer",
        &[cause("the server ended, often by another client's fault", "start the server anew")],
    )
    .run(MPS_LOG),
    Failure::driver(
        807,
        "CUDA_ERROR_MPS_SERVER_NOT_READY",
        "cudaErrorMpsServerNotReady",
        &["MPS server is not ready to accept new MPS client requests"],
        "the MPS server recovers from a fault",
        &[cause("another client failed", "wait for the other clients to end, and try again")],
    )
    .run(MPS_LOG),
    Failure::driver(
        808,
        "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        "cudaErrorMpsMaxClientsReached",
        &["the hardware resources required to create MPS client have been exhausted"],
        "MPS takes no further process",
        &[MPS_FULL],
    )
    .run(MPS_LOG),
    Failure::driver(
        809,
        "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        "cudaErrorMpsMaxConnectionsReached",
        &["the hardware resources required to support device connections have been exhausted"],
        "MPS takes no further connection to the device",
        &[MPS_FULL],
    )
    .run(MPS_LOG),
    Failure::driver(
        810,
        "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        "cudaErrorMpsClientTerminated",
        &["the MPS client has been terminated by the server"],
        "the MPS server ended this process's use of the device",
        &[cause("a client that shares the device failed", "start the process anew")],
    )
    .fatal()
    .run(HARDWARE),
];
