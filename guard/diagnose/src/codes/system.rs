//! Systems, services and contexts around the device.

use super::commands::{HARDWARE, LIBCUDA, LIMITS, NVIDIA_SMI, NVIDIA_SMI_Q};
use crate::failure::{
    Hint, KnownCause, KnownFailure, cause, driver, driver_only, renumbered, runtime,
};

const DRIVER_VERSION: &str = "cat /proc/driver/nvidia/version";
const FABRIC: &[&str] =
    &["systemctl status nvidia-fabricmanager", "nvidia-smi -q | grep -A 3 Fabric"];
const MPS_LOG: &[&str] = &["cat /var/log/nvidia-mps/control.log"];
const MPS_FULL: KnownCause =
    cause("more processes are connected than MPS supports").fix("start fewer clients");

pub(super) const FAILURES: &[KnownFailure] = &[
    renumbered(83, 802, "CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady")
        .says("system not yet initialized")
        .means("the machine's links between GPUs are not initialized yet")
        .not("a fault of the program: even counting the devices fails")
        .cause(
            "nvidia-fabricmanager, which machines with NVSwitch need, is not running or has \
             another version than the driver",
        )
        .fix("start it, and keep its version equal to the driver's")
        .cause("the machine has just booted")
        .fix("wait for the services, and try again")
        .run(FABRIC),
    driver(919, "CUDA_ERROR_FABRIC_NOT_READY", "cudaErrorFabricNotReady")
        .says("GPU fabric is not ready within the probe wait budget")
        .means("the machine's links between GPUs were not initialized within the time limit")
        .cause("the machine has just booted")
        .fix("wait a minute, and try again")
        .cause("nvidia-fabricmanager or nvidia-imex is not running")
        .fix("start it; CUDA_FABRIC_INIT_TIMEOUT_MS sets the time limit")
        .run(FABRIC),
    driver(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "cudaErrorSystemDriverMismatch")
        .says("system has unsupported display driver / cuda driver combination")
        .says("Driver/library version mismatch")
        .says("NVRM: API mismatch")
        .says("NVML/RM version mismatch")
        .means("the NVIDIA kernel module and libcuda have different driver versions")
        .cause("the driver was updated while the old kernel module was loaded")
        .fix("reboot, or reload the module")
        .cause("a container brings its own libcuda, as in the folder compat")
        .fix("remove that folder from LD_LIBRARY_PATH")
        .run(&[DRIVER_VERSION, LIBCUDA]),
    driver(804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cudaErrorCompatNotSupportedOnDevice")
        .says("forward compatibility was attempted on non supported HW")
        .means("libcuda is newer than the kernel module, which only data center GPUs support")
        .cause(
            "the container's CUDA is newer than the driver, and its compat libraries were loaded",
        )
        .fix("update the driver, or use an image for an older CUDA")
        .hint(Hint::DriverAge)
        .cause("the driver was updated and the machine was not rebooted")
        .fix("reboot")
        .run(&[NVIDIA_SMI, DRIVER_VERSION]),
    driver(4, "CUDA_ERROR_DEINITIALIZED", "cudaErrorCudartUnloading")
        .follows()
        .says("driver shutting down")
        .means("CUDA was called while the process exits")
        .cause("a destructor of a global, or a thread that is still running, calls CUDA after main")
        .fix("release CUDA objects before main returns; otherwise ignore it"),
    driver(201, "CUDA_ERROR_INVALID_CONTEXT", "cudaErrorDeviceUninitialized")
        .follows()
        .says("invalid device context")
        .means("no context is current on this thread, or the current one was destroyed")
        .cause("a thread calls the driver without a context")
        .fix("make the context current on each thread, or call cudaSetDevice")
        .cause("the context was destroyed")
        .fix("keep it alive while it is used"),
    driver(709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "cudaErrorContextIsDestroyed")
        .follows()
        .says("context is destroyed")
        .means("the current context was destroyed, or is a primary context not yet initialized")
        .cause("the device was reset or its context destroyed")
        .fix("create a new context"),
    renumbered(36, 708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cudaErrorSetOnActiveProcess")
        .says("cannot set while device is active in this process")
        .means("device flags cannot be set once the device's context exists")
        .cause("the call comes too late")
        .fix("set the flags before using the device"),
    runtime(49, "cudaErrorIncompatibleDriverContext")
        .says("incompatible driver context")
        .means("the runtime cannot use the current context")
        .cause("the driver API created the context")
        .fix("use the device's primary context"),
    driver(5, "CUDA_ERROR_PROFILER_DISABLED", "cudaErrorProfilerDisabled")
        .says("profiler disabled while using external profiling tool")
        .means("the program starts the profiler while another tool is profiling it")
        .cause("it runs under a profiling tool")
        .fix("ignore it, or remove the calls"),
    runtime(103, "cudaErrorSoftwareValidityNotEstablished")
        .says("integrity checks failed")
        .means("the driver or the device did not pass the system's integrity checks")
        .cause("confidential computing is not fully set up")
        .fix("check the device's confidential computing mode")
        .run(&[NVIDIA_SMI_Q]),
    runtime(127, "cudaErrorStartupFailure")
        .says("startup failure in cuda runtime")
        .means("the CUDA runtime could not start")
        .cause("driver and runtime do not match, or the device failed")
        .fix("run nvidia-smi, and look for an Xid in the system log")
        .run(HARDWARE),
    driver_only(916, "CUDA_ERROR_KEY_ROTATION")
        .means("the keys of confidential computing could not be rotated")
        .cause("the device failed, or the set-up is incorrect")
        .fix("restart the process")
        .run(HARDWARE),
    driver(917, "CUDA_ERROR_STREAM_DETACHED", "cudaErrorStreamDetached")
        .says(
            "API call not permitted since the green context associated with the stream has been \
             destroyed",
        )
        .means("the stream's green context was destroyed")
        .cause("the context was destroyed before the stream")
        .fix("keep it alive while its streams are used"),
    renumbered(42, 215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "cudaErrorUnsupportedLimit")
        .says("limit is not supported on this architecture")
        .means("the device does not support the limit that the call sets")
        .cause("the limit is for other architectures")
        .fix("do not set it on this device"),
    driver(224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "cudaErrorUnsupportedExecAffinity")
        .says("the provided execution affinity is not supported")
        .means("a context cannot be limited to a share of the multiprocessors here")
        .cause("MPS is not running, or the device does not support it")
        .fix("create the context without an affinity"),
    renumbered(63, 304, "CUDA_ERROR_OPERATING_SYSTEM", "cudaErrorOperatingSystem")
        .says("OS call failed or operation not supported on this OS")
        .means("the operating system rejected a call of the driver")
        .cause("a limit is reached: open files, locked memory, shared memory of a container")
        .fix("raise it, as with ulimit -n, ulimit -l or --shm-size")
        .cause("memory cannot be shared between processes here, as in WSL or some containers")
        .fix("share the IPC namespace, or copy instead")
        .run(&["ulimit -a"]),
    renumbered(70, 800, "CUDA_ERROR_NOT_PERMITTED", "cudaErrorNotPermitted")
        .says("operation not permitted")
        .means("the call is not allowed in this place or for this process")
        .cause("a stream callback calls CUDA")
        .fix("do not call CUDA from callbacks; hand the work to another thread")
        .cause("the process lacks a permission")
        .fix("check the permissions of /dev/nvidia*"),
    renumbered(71, 801, "CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported")
        .says("operation not supported")
        .means("the device, the driver or the system does not support the operation")
        .cause("memory pools, peer access or managed memory are missing, as on a vGPU or in WSL")
        .fix("query the device attribute first, and avoid the feature where it is missing")
        .cause("the launch uses a feature the device lacks: a cluster or a cooperative launch")
        .fix("check the launch against the device, and launch it without the feature")
        .hint(Hint::LaunchRule)
        .run(&[LIMITS, NVIDIA_SMI_Q]),
    driver(805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "cudaErrorMpsConnectionFailed")
        .says("MPS client failed to connect to the MPS control daemon or the MPS server")
        .means("the process should share the device through MPS, but cannot reach the server")
        .cause(
            "the MPS daemon is not running, runs as another user, or its pipe folder is not shared",
        )
        .fix(
            "start nvidia-cuda-mps-control -d, and set CUDA_MPS_PIPE_DIRECTORY to the same folder \
             for both",
        )
        .run(MPS_LOG),
    driver(806, "CUDA_ERROR_MPS_RPC_FAILURE", "cudaErrorMpsRpcFailure")
        .says("the remote procedural call between the MPS server and the MPS client failed")
        .means("the MPS server did not respond")
        .cause("the server exited, often after a client failed")
        .fix("restart the server")
        .run(MPS_LOG),
    driver(807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "cudaErrorMpsServerNotReady")
        .says("MPS server is not ready to accept new MPS client requests")
        .means("the MPS server is recovering from a failure")
        .cause("another client failed")
        .fix("wait until all clients exit, and retry")
        .run(MPS_LOG),
    driver(808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "cudaErrorMpsMaxClientsReached")
        .says("the hardware resources required to create MPS client have been exhausted")
        .means("MPS accepts no more processes")
        .causes(&[MPS_FULL])
        .run(MPS_LOG),
    driver(809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "cudaErrorMpsMaxConnectionsReached")
        .says("the hardware resources required to support device connections have been exhausted")
        .means("MPS accepts no more connections to the device")
        .causes(&[MPS_FULL])
        .run(MPS_LOG),
    driver(810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "cudaErrorMpsClientTerminated")
        .loses_context()
        .says("the MPS client has been terminated by the server")
        .means("the MPS server ended this process's use of the device")
        .cause("this or another client of the device failed")
        .fix("restart the process")
        .run(HARDWARE),
];
