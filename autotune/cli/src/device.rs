//! The arguments `--gpu` and `--device` of subcommands that only need limits.

use std::sync::Arc;

use clap::Args;
use gridguard::{DeviceLimits, catalog, cuda};

use crate::error::CommandError;
use crate::words::{Suggested, gpu_words};

#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct DeviceChoice {
    /// GPU of the catalogue, by name or alias, for example h200 or rtx-4090; sm_86 or 8.6 for the GPUs of that
    /// compute capability; or any
    #[arg(long, value_name = "NAME", value_parser = Suggested(gpu_words), hide_possible_values = true)]
    pub(crate) gpu: Option<String>,
    /// Ordinal of a device of this machine
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,
}

impl DeviceChoice {
    /// The limits of the chosen device; `None` if none was chosen.
    pub(crate) fn limits(&self) -> Result<Option<Arc<DeviceLimits>>, CommandError> {
        match (&self.gpu, self.device) {
            (Some(name), _) => Ok(Some(catalog::limits(name)?)),
            (None, Some(ordinal)) => Ok(Some(cuda::device_limits(ordinal)?)),
            (None, None) => Ok(None),
        }
    }
}
