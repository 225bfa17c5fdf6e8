//! Libraries that are not found, or do not belong together.

use super::{NVIDIA_SMI, TORCH_BUILD};
use crate::diagnose::failure::{Failure, Origin, cause};

pub(super) const FAILURES: &[Failure] = &[
    Failure::new(
        Origin::Loader,
        "libcuda missing",
        &[
            "no CUDA driver library found",
            "could not find cuda drivers on your machine",
            "CUDA driver library cannot be found",
            "unable to dynamically load the \"cuda\" shared library",
            "libcuda.so cannot found",
        ],
        "the driver's library is not where the loader looks",
        &[
            cause(
                "no NVIDIA driver is installed, or the container was started without it",
                "install the driver; start the container with --gpus all (NVIDIA Container Toolkit)",
            ),
            cause(
                "the library is in a folder where the loader does not look, such as \
                 /usr/lib/wsl/lib in WSL",
                "add that folder to LD_LIBRARY_PATH",
            ),
            cause(
                "this machine has no GPU and is not meant to",
                "ignore it where the program goes on without",
            ),
        ],
    )
    .run(&["gridguard doctor", NVIDIA_SMI, "ldconfig -p | grep libcuda"]),
    Failure::new(
        Origin::Loader,
        "libnvrtc missing",
        &[
            "no NVRTC library found",
            "failed to open libnvrtc-builtins",
            "unable to dynamically load the \"nvrtc\" shared library",
        ],
        "the compiler for kernels at run time is not installed where the loader looks",
        &[cause(
            "the toolkit's libnvrtc is missing, or of another major version than the program wants",
            "pip install nvidia-cuda-nvrtc (for CUDA 12 nvidia-cuda-nvrtc-cu12) or install the \
             toolkit, and add its folder to LD_LIBRARY_PATH",
        )],
    )
    .run(&["gridguard doctor", "ldconfig -p | grep nvrtc"]),
    Failure::new(
        Origin::Loader,
        "CUDA library missing",
        &["cannot dlopen some GPU libraries", "could not locate zlibwapi.dll"],
        "a library of the CUDA toolkit, or cuDNN, is not where the loader looks",
        &[
            cause(
                "the program was built for another major version than is installed: the number at \
                 the end of the library's name is the one it wants",
                "install that version's package, such as nvidia-cublas-cu12 or nvidia-cudnn-cu12, or \
                 a build of the program for what is there",
            ),
            cause(
                "the library is installed where the loader does not look",
                "add its folder to LD_LIBRARY_PATH; pip puts them in site-packages/nvidia/*/lib",
            ),
        ],
    )
    .run(&["ldconfig -p | grep -E 'cudart|cublas|cudnn'", TORCH_BUILD]),
    Failure::new(
        Origin::Loader,
        "CUDA libraries mixed",
        &[],
        "a library was found that is older or newer than the one that needs it",
        &[
            cause(
                "LD_LIBRARY_PATH puts another toolkit's libraries before the program's own",
                "unset LD_LIBRARY_PATH and try again; take the toolkit's folders out where that helps",
            ),
            cause(
                "packages of the environment are of different versions",
                "install the program anew in an environment of its own",
            ),
        ],
    )
    .run(&["echo \"$LD_LIBRARY_PATH\"", TORCH_BUILD]),
];
