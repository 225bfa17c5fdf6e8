//! The arguments `--gpu` and `--device` of subcommands that only need limits.

use std::sync::Arc;

use clap::Args;
use gridguard::{ComputeCapability, DeviceLimits, catalog, cuda};

use crate::error::CommandError;

#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct DeviceChoice {
    /// GPU of the catalogue, by name or alias, such as h200 or rtx-4090; any of a compute capability, as
    /// sm_86; or any
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
    /// Device of this machine, by ordinal
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,
}

impl DeviceChoice {
    /// The limits of the chosen device; `None` if none was chosen.
    pub(crate) fn limits(&self) -> Result<Option<Arc<DeviceLimits>>, CommandError> {
        match (&self.gpu, self.device) {
            (Some(name), _) => Ok(Some(named(name)?)),
            (None, Some(ordinal)) => Ok(Some(cuda::device_limits(ordinal)?)),
            (None, None) => Ok(None),
        }
    }
}

/// The limits of the GPU called `name`. `sm_86` is the one of this compute capability with the fewest
/// multiprocessors, and `any` has the limits that every GPU has.
pub(crate) fn named(name: &str) -> Result<Arc<DeviceLimits>, CommandError> {
    if name.eq_ignore_ascii_case("any") {
        return Ok(Arc::new(DeviceLimits::any_device()));
    }
    let of_capability = catalog::gpus()?.iter().filter(|gpu| {
        let ComputeCapability { major, minor } = gpu.limits.compute_capability;
        name.eq_ignore_ascii_case(&format!("sm_{major}{minor}"))
    });
    match of_capability.min_by_key(|gpu| gpu.limits.multiprocessors) {
        Some(smallest) => {
            let mut limits = DeviceLimits::clone(&smallest.limits);
            limits.name = format!("any {}", name.to_lowercase());
            Ok(Arc::new(limits))
        }
        None => Ok(Arc::clone(&catalog::gpu(name)?.limits)),
    }
}
