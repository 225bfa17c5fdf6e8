//! What tunes: devices of this machine, or the host under the limits of a GPU.

use core::fmt;
use std::sync::Arc;

use gridguard::cuda::{self, CudaError};
use gridguard::profile::{DeviceIdentity, Environment};
use gridguard::{DeviceLimits, Guard, catalog};

use super::values::DeviceSelection;
use crate::error::CommandError;

/// A device, or the host.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The device's ordinal; `None` is the host.
    pub(crate) ordinal: Option<usize>,
    pub(crate) limits: Arc<DeviceLimits>,
    pub(crate) identity: DeviceIdentity,
}

impl Target {
    pub(crate) fn device(ordinal: usize) -> Result<Self, CommandError> {
        let limits = cuda::device_limits(ordinal)?;
        Ok(Self { ordinal: Some(ordinal), identity: DeviceIdentity::of(&limits), limits })
    }

    /// The host, under the limits of a GPU of the catalogue.
    pub(crate) fn host(gpu: &str) -> Result<Self, CommandError> {
        let limits = Arc::clone(&catalog::gpu(gpu)?.limits);
        Ok(Self { ordinal: None, identity: DeviceIdentity::of(&limits).on_host(), limits })
    }

    pub(crate) const fn is_host(&self) -> bool {
        self.ordinal.is_none()
    }

    /// Whether it is of the model of those.
    pub(crate) fn is_like(&self, others: &[Self]) -> bool {
        others.first().is_some_and(|other| other.identity == self.identity)
    }

    /// A guard of it.
    pub(crate) fn guard(&self) -> Result<Guard, CudaError> {
        match self.ordinal {
            Some(ordinal) => Guard::cuda(ordinal),
            None => Ok(Guard::host(Arc::clone(&self.limits))),
        }
    }

    /// What its measurements depend on beside the device.
    pub(crate) fn environment(&self) -> Result<Environment, CudaError> {
        if self.is_host() { Ok(Environment::of_host()) } else { Environment::of_cuda() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ordinal {
            Some(ordinal) => write!(f, "{} ({ordinal})", self.limits.name),
            None => write!(f, "the host as {}", self.limits.name),
        }
    }
}

/// What a selection comes to.
pub(crate) struct Selected<'a> {
    pub(crate) targets: Vec<Target>,
    /// The GPU whose limits the host takes on.
    pub(crate) gpu: &'a str,
    /// Why it is the host, where nobody asked for it.
    pub(crate) fallback: Option<CudaError>,
}

/// The targets of a selection; without one all devices, or else the host, with the reason. A `gpu` is
/// for the host alone.
pub(crate) fn targets(
    selection: Option<DeviceSelection>,
    gpu: Option<&str>,
) -> Result<Selected<'_>, CommandError> {
    let given = gpu.is_some();
    let gpu = gpu.unwrap_or(DEFAULT_GPU);
    if let Some(DeviceSelection::One(_) | DeviceSelection::All) = selection
        && given
    {
        return Err(gpu_of_no_host());
    }
    let (targets, fallback) = found(selection, gpu)?;
    if given && !targets.iter().all(Target::is_host) {
        return Err(gpu_of_no_host());
    }
    Ok(Selected { targets, gpu, fallback })
}

/// Somebody wants a device to take on the limits of another one.
pub(crate) fn gpu_of_no_host() -> CommandError {
    CommandError::Invalid(
        "--gpu names the limits that the host takes on: ask for --device host".into(),
    )
}

fn found(
    selection: Option<DeviceSelection>,
    gpu: &str,
) -> Result<(Vec<Target>, Option<CudaError>), CommandError> {
    let all = |count| (0..count).map(Target::device).collect::<Result<Vec<_>, _>>();
    match selection {
        Some(DeviceSelection::One(ordinal)) => Ok((vec![Target::device(ordinal)?], None)),
        Some(DeviceSelection::All) => match cuda::device_count()? {
            // None that tunes is no success.
            0 => Err(CudaError::NoSuchDevice { ordinal: 0, count: 0 }.into()),
            count => Ok((all(count)?, None)),
        },
        Some(DeviceSelection::Host) => Ok((vec![Target::host(gpu)?], None)),
        None => match cuda::device_count() {
            Ok(count) if count > 0 => Ok((all(count)?, None)),
            Ok(count) => {
                let reason = CudaError::NoSuchDevice { ordinal: 0, count };
                Ok((vec![Target::host(gpu)?], Some(reason)))
            }
            Err(reason) => Ok((vec![Target::host(gpu)?], Some(reason))),
        },
    }
}

/// The GPU whose limits the host takes on where none is named.
pub(crate) const DEFAULT_GPU: &str = "h200";
