//! Commands that several tables recommend.

/// Reports each refused launch with kernel, rule and value. Filled in with the program if it is known.
pub(crate) const RUN: &str = "gridguard run -- COMMAND";
/// Names the launches whose 32-bit indices wrap.
pub(crate) const INDEX: &str = "gridguard run --index -- PROGRAM";
/// Filled in with the launch if it is known.
pub(crate) const CHECK: &str = "gridguard check --device 0 --grid X,Y,Z --block X,Y,Z";
pub(crate) const LIMITS: &str = "gridguard limits --device 0";
pub(super) const DOCTOR: &str = "gridguard doctor";
/// Drivers of CUDA 12.9 and later log the sizes of a refused launch.
pub(crate) const DRIVER_LOG: &str = "CUDA_LOG_FILE=stderr PROGRAM";
pub(crate) const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING=1 PROGRAM";
pub(crate) const SANITIZER: &str = "compute-sanitizer PROGRAM";
/// Free memory of the host, and the limit on its locked memory.
pub(crate) const HOST: [&str; 2] = ["free -h", "ulimit -l"];
pub(super) const NVIDIA_SMI: &str = "nvidia-smi";
pub(super) const NVIDIA_SMI_Q: &str = "nvidia-smi -q";
pub(super) const XIDS: &str = "dmesg | grep -i xid";
pub(super) const LIST_ELF: &str = "cuobjdump --list-elf --list-ptx FILE";
pub(super) const LIBCUDA: &str = "ldconfig -p | grep libcuda";
pub(super) const LIBRARY_PATH: &str = "echo \"$LD_LIBRARY_PATH\"";
pub(super) const VISIBLE_DEVICES: &str = "echo \"$CUDA_VISIBLE_DEVICES\"";
pub(super) const TORCH_BUILD: &str =
    "python -c 'import torch; print(torch.version.cuda, torch.cuda.get_arch_list())'";

pub(super) const LAUNCH: &[&str] = &[CHECK, DRIVER_LOG, LIMITS, BLOCKING];
pub(super) const EXECUTION: &[&str] = &[SANITIZER, BLOCKING];
pub(super) const HARDWARE: &[&str] = &[NVIDIA_SMI_Q, XIDS];
