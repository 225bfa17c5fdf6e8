//! Devices, drivers and their libraries: missing, hidden, outdated or not ready.

use super::commands::{
    DOCTOR, HARDWARE, LIBCUDA, LIBRARY_PATH, NVIDIA_SMI, NVIDIA_SMI_Q, TORCH_BUILD,
    VISIBLE_DEVICES, XIDS,
};
use crate::failure::{Hint, KnownCause, KnownFailure, Origin, cause, driver, renumbered, runtime};

const HIDDEN: KnownCause = cause(
    "no device is visible to the process: CUDA_VISIBLE_DEVICES is empty or names only devices that \
     do not exist, or the container was started without devices",
)
.fix("unset CUDA_VISIBLE_DEVICES, or start the container with --gpus all")
.hint(Hint::NoDevice);
const NO_DRIVER: KnownCause = cause("the NVIDIA kernel module is not loaded")
    .fix("run nvidia-smi; if it fails, install or load the driver");
const OLD_DRIVER: KnownCause =
    cause("the driver is older than the CUDA version the program was built with")
        .fix("update the driver, or install a build for an older CUDA")
        .hint(Hint::DriverAge);
const NO_TOOLKIT: KnownCause = cause(
    "the NVIDIA Container Toolkit is not installed, or the container engine is not configured to \
     use it",
)
.fix(
    "install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; \
             sudo systemctl restart docker",
);

pub(super) const FAILURES: &[KnownFailure] = &[
    renumbered(38, 100, "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice")
        .says("no CUDA-capable device is detected")
        .says("no CUDA devices found")
        .says("no nvidia devices detected")
        .means("the driver reports no device")
        .causes(&[HIDDEN, NO_DRIVER])
        .run(&[NVIDIA_SMI, VISIBLE_DEVICES]),
    KnownFailure::new(Origin::Torch, "No CUDA GPUs are available")
        .says("no cuda gpus are available")
        .means("PyTorch was built for CUDA, but the driver reports no device")
        .not("a CPU build: that one says `Torch not compiled with CUDA enabled`")
        .causes(&[HIDDEN, NO_DRIVER])
        .run(&[NVIDIA_SMI, VISIBLE_DEVICES]),
    KnownFailure::new(Origin::Torch, "Torch not compiled with CUDA enabled")
        .says("torch not compiled with cuda enabled")
        .says(
            "attempting to deserialize object on a CUDA device but torch.cuda.is_available() is \
             False",
        )
        .means("the installed PyTorch was built without CUDA")
        .not("a missing GPU: this build never looks for one")
        .cause("a CPU build of PyTorch is installed")
        .fix("install a CUDA build, for example from https://download.pytorch.org/whl/cu128")
        .run(&[TORCH_BUILD]),
    KnownFailure::new(Origin::Torch, "Found no NVIDIA driver on your system")
        .says("found no nvidia driver on your system")
        .means("PyTorch was built for CUDA, but finds no driver")
        .causes(&[NO_DRIVER])
        .cause("the container was started without devices")
        .fix("start it with --gpus all")
        .run(&[NVIDIA_SMI]),
    runtime(35, "cudaErrorInsufficientDriver")
        .says("CUDA driver version is insufficient for CUDA runtime version")
        .says("The NVIDIA driver on your system is too old")
        .means("the driver is older than the CUDA runtime of the program")
        .causes(&[OLD_DRIVER])
        .cause("no driver is loaded, so that its version counts as 0")
        .fix("run nvidia-smi to check")
        .run(&[NVIDIA_SMI, TORCH_BUILD]),
    driver(36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "cudaErrorCallRequiresNewerDriver")
        .says("API call is not supported in the installed CUDA driver")
        .means("the program calls a function that the driver is too old for")
        .causes(&[OLD_DRIVER])
        .run(&[NVIDIA_SMI]),
    renumbered(10, 101, "CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice")
        .says("invalid device ordinal")
        .says("invalid device id")
        .says("attempting to deserialize object on CUDA device")
        .says("device >= 0 && device < num_gpus")
        .means("no device with the requested number is visible to the process")
        .cause(
            "the number is not below the number of visible devices; CUDA_VISIBLE_DEVICES renumbers \
             them from 0",
        )
        .fix("count the devices visible to the process, and use a lower number")
        .hint(Hint::Ordinal)
        .cause(
            "cuInit fails: CUDA_VISIBLE_DEVICES names a device twice, or CUDA_DEVICE_ORDER has an \
             invalid value",
        )
        .fix("unset both")
        .cause("more processes were started than there are devices")
        .fix("start one per device")
        .run(&[NVIDIA_SMI, VISIBLE_DEVICES]),
    driver(46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "cudaErrorDevicesUnavailable")
        .says("CUDA-capable device(s) is/are busy or unavailable")
        .says("all CUDA-capable devices are busy or unavailable")
        .means("the device does not accept another process at the moment")
        .cause("the compute mode is exclusive and another process uses the device")
        .fix("end that process, or reset the mode with nvidia-smi -c 0")
        .cause("MIG is enabled, and no instance was created or selected")
        .fix("list the instances with nvidia-smi -L, and name one in CUDA_VISIBLE_DEVICES")
        .cause("the device was lost or is being reset")
        .fix("look for an Xid in the system log")
        .run(HARDWARE),
    renumbered(54, 216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "cudaErrorDeviceAlreadyInUse")
        .says("exclusive-thread device already in use by a different thread")
        .means("the device is in exclusive mode and another thread uses it")
        .cause("the compute mode is exclusive")
        .fix("reset the mode with nvidia-smi -c 0")
        .run(&[NVIDIA_SMI_Q]),
    driver(102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "cudaErrorDeviceNotLicensed")
        .says("device doesn't have valid Grid license")
        .means("the virtual GPU has no license for compute")
        .cause("the license server is not reachable")
        .fix("check the vGPU's license state")
        .run(&[NVIDIA_SMI_Q]),
    driver(3, "CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError")
        .says("initialization error")
        .says("cannot re-initialize cuda in forked subprocess")
        .means("CUDA was used before it was initialized, or its initialization failed")
        .cause("the process was forked after its parent had used CUDA")
        .fix("start processes with spawn or forkserver, or use CUDA only in the children")
        .causes(&[NO_DRIVER])
        .run(&[NVIDIA_SMI]),
    driver(34, "CUDA_ERROR_STUB_LIBRARY", "cudaErrorStubLibrary")
        .says("CUDA driver is a stub library")
        .means("the libcuda that was loaded is the stub for linking, not the driver")
        .cause("LD_LIBRARY_PATH contains the toolkit's folder lib64/stubs")
        .fix("remove that folder: it is for the linker only")
        .run(&[LIBRARY_PATH, LIBCUDA]),
    KnownFailure::new(Origin::Loader, "libcuda missing")
        .says("no CUDA driver library found")
        .says("could not find cuda drivers on your machine")
        .says("CUDA driver library cannot be found")
        .says("unable to dynamically load the \"cuda\" shared library")
        .says("libcuda.so cannot found")
        .means("the loader does not find the driver library libcuda")
        .cause("no NVIDIA driver is installed, or the container was started without it")
        .fix("install the driver; start the container with --gpus all (NVIDIA Container Toolkit)")
        .cause(
            "the library is in a folder that the loader does not search, such as /usr/lib/wsl/lib \
             in WSL",
        )
        .fix("add that folder to LD_LIBRARY_PATH")
        .cause("this machine has no GPU by design")
        .fix("ignore the message if the program continues without a GPU")
        .run(&[DOCTOR, NVIDIA_SMI, LIBCUDA]),
    KnownFailure::new(Origin::Loader, "libnvrtc missing")
        .says("no NVRTC library found")
        .says("failed to open libnvrtc-builtins")
        .says("unable to dynamically load the \"nvrtc\" shared library")
        .means("the loader does not find the runtime compiler NVRTC")
        .cause("libnvrtc is missing, or has another major version than the program needs")
        .fix(
            "pip install nvidia-cuda-nvrtc (for CUDA 12 nvidia-cuda-nvrtc-cu12) or install the \
             toolkit, and add its folder to LD_LIBRARY_PATH",
        )
        .run(&[DOCTOR, "ldconfig -p | grep nvrtc"]),
    KnownFailure::new(Origin::Loader, "CUDA library missing")
        .says("cannot dlopen some GPU libraries")
        .says("could not locate zlibwapi.dll")
        .means("the loader does not find a library of the CUDA toolkit, or cuDNN")
        .cause(
            "the program was built for another major version than is installed: the number at the \
             end of the library's name is the one it needs",
        )
        .fix(
            "install that version's package, such as nvidia-cublas-cu12 or nvidia-cudnn-cu12, or a \
             build of the program for the installed version",
        )
        .cause("the library is installed in a folder that the loader does not search")
        .fix("add its folder to LD_LIBRARY_PATH; pip installs into site-packages/nvidia/*/lib")
        .run(&["ldconfig -p | grep -E 'cudart|cublas|cudnn'", TORCH_BUILD]),
    KnownFailure::new(Origin::Loader, "CUDA libraries mixed")
        .means("the loader found a library that is older or newer than its user needs")
        .cause("LD_LIBRARY_PATH puts another toolkit's libraries before the program's own")
        .fix("unset LD_LIBRARY_PATH and try again; if that helps, remove the toolkit's folders")
        .cause("packages of the environment have different versions")
        .fix("reinstall the program in a fresh environment")
        .run(&[LIBRARY_PATH, TORCH_BUILD]),
    KnownFailure::new(Origin::Nvml, "NVML: driver not reached")
        .says("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver")
        .says("failed to initialize NVML: driver not loaded")
        .says("nvml error: driver not loaded")
        .says("driver not loaded")
        .says("NVML shared library not found")
        .says("can't initialize NVML")
        .means("the NVIDIA kernel module is not loaded, so no program can use a GPU")
        .cause(
            "the Linux kernel was updated and the module was not rebuilt for it, or the driver is \
             not installed",
        )
        .fix(
            "sudo modprobe nvidia; if that fails, reinstall the driver (dkms status lists the \
             kernels it is built for)",
        )
        .cause("the module is unsigned and Secure Boot rejects it, or nouveau uses the device")
        .fix("sign the module or disable Secure Boot, and blacklist nouveau")
        .cause("the container was started without devices")
        .fix("start it with --gpus all (NVIDIA Container Toolkit)")
        .run(&[
            "lsmod | grep nvidia; modinfo nvidia | head -n 3",
            "dmesg | grep -i -E 'nvidia|nvrm'",
        ]),
    KnownFailure::new(Origin::Nvml, "NVML: devices not reached")
        .says("failed to initialize NVML: unknown error")
        .says("NVMLError_Unknown")
        .means("the process may no longer open the GPUs' device files")
        .not("usually a lost GPU: try nvidia-smi outside the container")
        .cause(
            "systemd removed the devices from the running container, for example on systemctl \
             daemon-reload",
        )
        .fix("restart the container; to prevent it, use CDI, or cgroupfs as Docker's cgroup driver")
        .cause("the device files belong to another user, or the batch system's cgroup hides them")
        .fix("check ls -l /dev/nvidia*, and request a GPU from the batch system")
        .run(&["ls -l /dev/nvidia*", XIDS]),
    KnownFailure::new(Origin::Nvml, "NVML: GPU lost")
        .sticky()
        .says("unable to determine the device handle for GPU")
        .says("GPU is lost")
        .means("a GPU of the machine no longer responds")
        .cause("power, temperature, the slot or the device itself")
        .fix("reboot; if it recurs, have power, cooling and device checked")
        .run(HARDWARE),
    KnownFailure::new(Origin::Container, "container without GPU")
        .says("could not select device driver")
        .says("unknown or invalid runtime name: nvidia")
        .says("nvidia-container-cli: initialization error")
        .says("unresolvable CDI devices")
        .means("the container engine could not give the container its GPUs")
        .causes(&[NO_TOOLKIT])
        .cause("the driver on the host does not work")
        .fix("run nvidia-smi on the host; if it fails, install or load the driver")
        .cause("the list of devices (CDI) is missing or was generated for another driver")
        .fix("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml")
        .run(&[NVIDIA_SMI, "docker info | grep -i runtimes"]),
    KnownFailure::new(Origin::Container, "container needs a newer driver")
        .says("nvidia-container-cli: requirement error")
        .says("unsatisfied condition: cuda")
        .means("the image requires a CUDA version that the host's driver does not support")
        .cause("the image is newer than the host's driver")
        .fix("update the host's driver, or use an image for an older CUDA")
        .hint(Hint::DriverAge)
        .cause("the driver supports it nevertheless, as within one major version")
        .fix("start the container with -e NVIDIA_DISABLE_REQUIRE=1")
        .run(&[NVIDIA_SMI]),
    KnownFailure::new(Origin::Container, "cluster without a free GPU")
        .says("insufficient nvidia.com/gpu")
        .means("no node has as many free GPUs as the pod requests")
        .cause("all GPUs are in use")
        .fix("wait, end the jobs that use them, or request fewer")
        .cause("no node offers any: the device plugin is not running, or the node's driver fails")
        .fix("check the plugin's pods and their logs")
        .run(&[
            "kubectl describe nodes | grep -A 8 Allocatable",
            "kubectl get pods -A | grep nvidia-device-plugin",
        ]),
];
