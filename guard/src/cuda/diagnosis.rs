//! Diagnoses the errors of the CUDA driver, the loader and NVRTC.

use gridguard_diagnose::{Capability, CudaVersion, Diagnosis, Evidence, FailureId, diagnose};

use super::error::{
    CudaError, DriverError, DriverUnavailable, LaunchError, LoadError, NvrtcError, NvrtcUnavailable,
};
use super::faults::{FaultSuspects, NAMED};
use crate::launch::violation::Violations;

const STUB_LIBRARY: i32 = 34;
const INSUFFICIENT_DRIVER: i32 = 35;
const CALL_REQUIRES_NEWER_DRIVER: i32 = 36;
const NO_DEVICE: i32 = 100;
const INVALID_DEVICE: i32 = 101;
const INVALID_IMAGE: i32 = 200;
const NO_BINARY_FOR_GPU: i32 = 209;
const UNSUPPORTED_PTX_VERSION: i32 = 222;

impl DriverError {
    /// What the driver's result means and what probably caused it. Its suspected launches are added
    /// to `evidence`, unless that has launches already.
    #[must_use]
    pub fn diagnosis(&self, evidence: &Evidence) -> Diagnosis {
        let failure = FailureId::from_code(self.code);
        let has_launches =
            evidence.faulting_launch.is_some() || !evidence.recent_launches.is_empty();
        match self.suspects() {
            Some(suspects) if !has_launches => {
                diagnose(&failure, &with_suspects(evidence.clone(), suspects))
            }
            _ => diagnose(&failure, evidence),
        }
    }
}

/// `evidence` with the suspected launches, the last of them by name.
fn with_suspects(evidence: Evidence, suspects: &FaultSuspects) -> Evidence {
    let (launches, forgotten) = match suspects {
        FaultSuspects::Launch(launch) => {
            return Evidence { faulting_launch: Some(launch.to_string()), ..evidence };
        }
        FaultSuspects::OneOf { launches, forgotten } => (launches, *forgotten),
    };
    let (others, named) = launches.split_at(launches.len().saturating_sub(NAMED));
    let others = u64::try_from(others.len()).unwrap_or(u64::MAX).saturating_add(forgotten);
    let others = (others > 0).then(|| format!("{others} others"));
    let recent_launches = others.into_iter().chain(named.iter().map(ToString::to_string));
    Evidence { recent_launches: recent_launches.collect(), ..evidence }
}

impl DriverUnavailable {
    /// What it means that no driver is available, and how to get one.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        let of_code = |code, evidence| Some(diagnose(&FailureId::from_code(code), &evidence));
        match self {
            Self::LibraryMissing { .. } => named("libcuda missing"),
            Self::SymbolMissing { .. } => of_code(CALL_REQUIRES_NEWER_DRIVER, Evidence::default()),
            Self::OtherLibrary { .. } => of_code(STUB_LIBRARY, Evidence::default()),
            Self::TooOld { version, oldest } => {
                let driver_cuda = Some(CudaVersion(*version));
                let program_cuda = Some(CudaVersion(*oldest));
                let evidence = Evidence { driver_cuda, program_cuda, ..Evidence::default() };
                of_code(INSUFFICIENT_DRIVER, evidence)
            }
            Self::InitFailed(error) => Some(error.diagnosis(&Evidence::default())),
            Self::NoDevice { .. } => {
                let evidence = Evidence { visible_devices: Some(0), ..Evidence::default() };
                of_code(NO_DEVICE, evidence)
            }
        }
    }
}

impl LoadError {
    /// What the error means; `None` where CUDA has no error code for it.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        let (code, evidence) = match self {
            Self::Refused { error, .. } | Self::Driver(error) => {
                return Some(error.diagnosis(&Evidence::default()));
            }
            Self::Image(_) => (INVALID_IMAGE, Evidence::default()),
            Self::WrongArchitecture { image, capability, .. } => {
                let sm = image.strip_prefix("sm_").and_then(Capability::from_sm);
                let architectures = sm.into_iter().collect();
                let capability = Some((*capability).into());
                let evidence = Evidence { capability, architectures, ..Evidence::default() };
                (NO_BINARY_FOR_GPU, evidence)
            }
            Self::PtxTooNew { .. } => (UNSUPPORTED_PTX_VERSION, Evidence::default()),
            Self::NoSuchKernel { .. } | Self::Parameters { .. } | Self::NoDevice => return None,
        };
        Some(diagnose(&FailureId::from_code(code), &evidence))
    }
}

impl LaunchError {
    /// Why the launch failed; `None` where CUDA has no error code for it. Violated rules are
    /// explained as the error that the driver would have returned.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        match self {
            Self::Invalid(violations) => violations.diagnosis(),
            Self::Unknown(error) => error.diagnosis(),
            Self::Driver(error) => Some(error.diagnosis(&Evidence::default())),
            Self::Stopped(stopped) => Some(stopped.source.diagnosis(&validated())),
            Self::Backoff(error) => {
                error.failure().map(|(_, source)| source.diagnosis(&validated()))
            }
            Self::Unsupported { .. } => {
                let failure = FailureId::from_code(CALL_REQUIRES_NEWER_DRIVER);
                Some(diagnose(&failure, &Evidence::default()))
            }
            Self::OtherKernel { .. }
            | Self::OtherContext { .. }
            | Self::NotDependent { .. }
            | Self::Undeclared { .. }
            | Self::Args(_) => None,
        }
    }
}

impl CudaError {
    /// What the failure means; `None` where CUDA has no error code for it.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        match self {
            Self::Unavailable(error) => error.diagnosis(),
            Self::NoSuchDevice { ordinal, count } => {
                let (ordinal, visible_devices) = (Some(*ordinal), Some(*count));
                let evidence = Evidence { ordinal, visible_devices, ..Evidence::default() };
                Some(diagnose(&FailureId::from_code(INVALID_DEVICE), &evidence))
            }
            Self::Driver(error) => Some(error.diagnosis(&Evidence::default())),
            Self::Load(error) => error.diagnosis(),
            Self::Compile(NvrtcError::Unavailable(NvrtcUnavailable::LibraryMissing { .. })) => {
                named("libnvrtc missing")
            }
            Self::Compile(NvrtcError::Compilation { name, .. } | NvrtcError::Call { name, .. }) => {
                named(name)
            }
            Self::Compile(_) => None,
        }
    }
}

fn named(name: &str) -> Option<Diagnosis> {
    FailureId::from_name(name).map(|failure| diagnose(&failure, &Evidence::default()))
}

/// Every chunk was validated, so the launch configuration is not the cause.
fn validated() -> Evidence {
    Evidence::from(&Violations::default())
}
