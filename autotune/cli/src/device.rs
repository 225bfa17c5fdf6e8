//! Which device's limits count: one of the catalogue, or one that is present.

use std::sync::Arc;

use clap::Args;
use gridguard::{DeviceLimits, catalog, cuda};

use crate::error::CommandError;

#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct DeviceChoice {
    /// A GPU of the catalogue, by name or alias, such as h200 or rtx-4090
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu: Option<String>,
    /// A device of this machine, by ordinal
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,
}

impl DeviceChoice {
    /// The limits of the choice, or `None` where none was made.
    pub(crate) fn limits(&self) -> Result<Option<Arc<DeviceLimits>>, CommandError> {
        match (&self.gpu, self.device) {
            (Some(name), _) => Ok(Some(Arc::clone(&catalog::gpu(name)?.limits))),
            (None, Some(ordinal)) => Ok(Some(cuda::device_limits(ordinal)?)),
            (None, None) => Ok(None),
        }
    }
}
