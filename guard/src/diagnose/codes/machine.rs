//! What `nvidia-smi`, containers and clusters say before CUDA is asked at all.

use super::{HARDWARE, NVIDIA_SMI, XIDS};
use crate::diagnose::failure::{Failure, Hint, Origin, UsualCause, cause, hinted};

const NO_TOOLKIT: UsualCause = cause(
    "the NVIDIA Container Toolkit is not installed, or the container engine does not know it",
    "install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; sudo \
     systemctl restart docker",
);
const MODULE: &str = "lsmod | grep nvidia; modinfo nvidia | head -n 3";

pub(super) const FAILURES: &[Failure] = &[
    Failure::new(
        Origin::Nvml,
        "NVML: driver not reached",
        &[
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
            "failed to initialize NVML: driver not loaded",
            "nvml error: driver not loaded",
            "driver not loaded",
            "NVML shared library not found",
            "can't initialize NVML",
        ],
        "the kernel's driver module is not loaded, so that no program reaches a GPU",
        &[
            cause(
                "the kernel was updated and the module was not built for it, or the driver is not \
                 installed",
                "sudo modprobe nvidia; where that fails install the driver anew (dkms status shows \
                 for which kernels it is built)",
            ),
            cause(
                "the module is not signed and Secure Boot refuses it, or nouveau has the device",
                "sign the module or switch Secure Boot off, and blacklist nouveau",
            ),
            cause(
                "the container was started without its devices",
                "start it with --gpus all (NVIDIA Container Toolkit)",
            ),
        ],
    )
    .run(&[MODULE, "dmesg | grep -i -E 'nvidia|nvrm'"]),
    Failure::new(
        Origin::Nvml,
        "NVML: devices not reached",
        &["failed to initialize NVML: unknown error", "NVMLError_Unknown"],
        "the process may not open the GPUs' device files any more",
        &[
            cause(
                "systemd took the devices from the running container, as after systemctl \
                 daemon-reload",
                "start the container anew; use CDI, or cgroupfs as Docker's cgroup driver, so that it \
                 does not come back",
            ),
            cause(
                "the device files are another user's, or the batch system's cgroup hides them",
                "look at ls -l /dev/nvidia*, and ask the batch system for a GPU",
            ),
        ],
    )
    .not("a lost GPU, mostly: try nvidia-smi outside of the container")
    .run(&["ls -l /dev/nvidia*", XIDS]),
    Failure::new(
        Origin::Nvml,
        "NVML: GPU lost",
        &["unable to determine the device handle for GPU", "GPU is lost"],
        "a GPU of the machine no longer answers",
        &[cause(
            "power, heat, the slot or the device itself",
            "start the machine anew; where it comes back have power, cooling and device checked",
        )],
    )
    .sticky()
    .run(HARDWARE),
    Failure::new(
        Origin::Container,
        "container without GPU",
        &[
            "could not select device driver",
            "unknown or invalid runtime name: nvidia",
            "nvidia-container-cli: initialization error",
            "unresolvable CDI devices",
        ],
        "the container engine could not give the container its GPUs",
        &[
            NO_TOOLKIT,
            cause(
                "the host itself has no driver that works",
                "run nvidia-smi on the host, and install or load the driver where it fails",
            ),
            cause(
                "the list of devices (CDI) is missing or of another driver",
                "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
            ),
        ],
    )
    .run(&[NVIDIA_SMI, "docker info | grep -i runtimes"]),
    Failure::new(
        Origin::Container,
        "container needs a newer driver",
        &["nvidia-container-cli: requirement error", "unsatisfied condition: cuda"],
        "the image asks for a CUDA that the host's driver does not support",
        &[
            hinted(
                Hint::DriverAge,
                "the image is newer than the host's driver",
                "update the host's driver, or use an image for an older CUDA",
            ),
            cause(
                "the driver serves it all the same, as within one major version",
                "start the container with -e NVIDIA_DISABLE_REQUIRE=1",
            ),
        ],
    )
    .run(&[NVIDIA_SMI]),
    Failure::new(
        Origin::Container,
        "cluster without a free GPU",
        &["insufficient nvidia.com/gpu"],
        "no node has as many free GPUs as the pod asks for",
        &[
            cause(
                "all of them are taken",
                "wait, end what holds them, or ask for fewer",
            ),
            cause(
                "no node offers any: the device plugin does not run, or the node's driver fails",
                "look at the plugin's pods and their logs",
            ),
        ],
    )
    .run(&[
        "kubectl describe nodes | grep -A 8 Allocatable",
        "kubectl get pods -A | grep nvidia-device-plugin",
    ]),
];
