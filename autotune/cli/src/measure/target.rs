//! Selects the devices to measure on, or the host under the limits of a GPU.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::result::device;
use gridguard::cuda::{self, CudaError, CudaErrorKind};
use gridguard::profile::{Backend, DeviceIdentity, Environment};
use gridguard::{DeviceLimits, Guard, catalog};
use gridguard_kernels::CubinCache;

use super::args::DeviceSelection;
use crate::error::CommandError;
use crate::output::note;

#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The device's ordinal; `None` is the host.
    pub(crate) ordinal: Option<usize>,
    pub(crate) limits: Arc<DeviceLimits>,
    pub(crate) identity: DeviceIdentity,
}

impl Target {
    pub(crate) fn device(ordinal: usize) -> Result<Self, CudaError> {
        let limits = cuda::device_limits(ordinal)?;
        Ok(Self { ordinal: Some(ordinal), identity: DeviceIdentity::new(&limits), limits })
    }

    /// The host, under the limits of a GPU of the catalogue.
    pub(crate) fn host(gpu: &str) -> Result<Self, CommandError> {
        let limits = catalog::limits(gpu)?;
        Ok(Self { ordinal: None, identity: DeviceIdentity::new(&limits).on_host(), limits })
    }

    /// A GPU of the catalogue that only another program can reach.
    pub(crate) fn absent(gpu: &str) -> Result<Self, CommandError> {
        let limits = catalog::limits(gpu)?;
        Ok(Self { ordinal: None, identity: DeviceIdentity::new(&limits), limits })
    }

    /// The one target of `--device` and `--gpu`. The host has the limits of `usual_gpu` by default.
    pub(crate) fn select(
        device: DeviceSelection,
        gpu: Option<&str>,
        usual_gpu: &str,
    ) -> Result<Self, CommandError> {
        let invalid = |message: &str| Err(CommandError::invalid(message));
        match device {
            DeviceSelection::Host => Self::host(gpu.unwrap_or(usual_gpu)),
            _ if gpu.is_some() => {
                invalid("--gpu names the limits that the host uses: it needs --device host")
            }
            DeviceSelection::Ordinal(ordinal) => Ok(Self::device(ordinal)?),
            DeviceSelection::All => {
                invalid("this command uses one device: name its ordinal, or host")
            }
        }
    }

    pub(crate) const fn is_host(&self) -> bool {
        self.ordinal.is_none()
    }

    /// A name for files: `host`, or the device's UUID, because ordinals depend on `CUDA_VISIBLE_DEVICES`.
    pub(crate) fn journal_name(&self) -> String {
        let Some(ordinal) = self.ordinal else { return "host".to_owned() };
        self.uuid().map_or_else(|| format!("device{ordinal}"), |uuid| format!("gpu-{uuid}"))
    }

    /// The UUID of the device, 32 hexadecimal digits.
    pub(crate) fn uuid(&self) -> Option<String> {
        let device = device::get(i32::try_from(self.ordinal?).ok()?).ok()?;
        let uuid = device::get_uuid(device).ok()?;
        Some(uuid.bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
    }

    pub(crate) fn guard(&self) -> Result<Guard, CudaError> {
        match self.ordinal {
            Some(ordinal) => Guard::cuda(ordinal),
            None => Ok(Guard::host(Arc::clone(&self.limits))),
        }
    }

    pub(crate) fn environment(&self) -> Result<Environment, CudaError> {
        if self.is_host() { Ok(Environment::host()) } else { Environment::cuda() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ordinal {
            Some(ordinal) => write!(f, "{} ({ordinal})", self.limits.name),
            None if self.identity.backend == Backend::Cuda => f.write_str(&self.limits.name),
            None => write!(f, "the host as {}", self.limits.name),
        }
    }
}

/// The targets of `--device` and `--gpu`, by default all devices. Fails without a device: profiles of the host are
/// useless for devices, so the host is used only on request.
pub(crate) fn select_targets(
    device: Option<DeviceSelection>,
    gpu: Option<&str>,
) -> Result<Vec<Target>, CommandError> {
    let device = device.unwrap_or(DeviceSelection::All);
    if device != DeviceSelection::All || gpu.is_some() {
        return Ok(vec![Target::select(device, gpu, DEFAULT_GPU)?]);
    }
    let count = match cuda::device_count() {
        Ok(0) => Err(CudaErrorKind::NoSuchDevice { ordinal: 0, count: 0 }.into()),
        count => count,
    };
    let count = count.map_err(|reason| {
        let advice = "to measure on the host instead, use --device host";
        CommandError::failed(format_args!("there is no GPU to measure on: {reason}; {advice}"))
    })?;
    Ok((0..count).map(Target::device).collect::<Result<_, _>>()?)
}

pub(crate) fn note_cache(targets: &[Target]) {
    let cache = CubinCache::for_user().filter(|_| !targets.iter().all(Target::is_host));
    if let Some(Err(reason)) = cache.map(|cache| cache.check()) {
        note(reason);
    }
}

pub(crate) const DEFAULT_GPU: &str = "h200";
