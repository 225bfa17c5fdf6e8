//! The guard's own errors, explained with what they know.

use super::error::{
    CudaError, DriverError, DriverUnavailable, LaunchError, LoadError, NvrtcError, NvrtcUnavailable,
};
use super::faults::{FaultSuspects, NAMED};
use crate::diagnose::{CudaVersion, Diagnosis, Evidence, Subject, answers, architecture, diagnose};
use crate::error::Error;
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
    /// What the driver's answer means, and where it probably comes from. The launches that it is
    /// blamed on are evidence, where `evidence` has no others.
    #[must_use]
    pub fn diagnosis(&self, evidence: &Evidence) -> Diagnosis {
        let subject = Subject::of_code(self.code);
        match self.suspects() {
            Some(blame) if evidence.at_fault.is_none() && evidence.recent_launches.is_empty() => {
                diagnose(&subject, &blamed(blame, evidence.clone()))
            }
            _ => diagnose(&subject, evidence),
        }
    }
}

/// `evidence` with the launches that can be to blame, the last of them by name.
fn blamed(blame: &FaultSuspects, evidence: Evidence) -> Evidence {
    let (launches, forgotten) = match blame {
        FaultSuspects::Launch(launch) => {
            return Evidence { at_fault: Some(launch.to_string()), ..evidence };
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
    /// What it means that there is no driver.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        let of_code = |code, evidence| Some(diagnose(&Subject::of_code(code), &evidence));
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
    /// What the refusal of an image means; `None` where it is no failure of CUDA's.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        let (code, evidence) = match self {
            Self::Refused { error, .. } | Self::Driver(error) => {
                return Some(error.diagnosis(&Evidence::default()));
            }
            Self::Image(_) => (INVALID_IMAGE, Evidence::default()),
            Self::WrongArchitecture { image, capability, .. } => {
                let sm = image.strip_prefix("sm_").and_then(architecture);
                let architectures = sm.into_iter().collect();
                let capability = Some(*capability);
                let evidence = Evidence { capability, architectures, ..Evidence::default() };
                (NO_BINARY_FOR_GPU, evidence)
            }
            Self::PtxTooNew { .. } => (UNSUPPORTED_PTX_VERSION, Evidence::default()),
            Self::NoSuchKernel { .. } | Self::Parameters { .. } | Self::NoDevice => return None,
        };
        Some(diagnose(&Subject::of_code(code), &evidence))
    }
}

impl LaunchError {
    /// What kept the launch from running; `None` where it is no failure of CUDA's. Broken rules are
    /// explained as the answer that CUDA would have given.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        match self {
            Self::Invalid(violations) => broken_rules(violations),
            Self::Unknown(error) => error.diagnosis(),
            Self::Driver(error) => Some(error.diagnosis(&Evidence::default())),
            // Every chunk was validated, so its sizes are not the cause.
            Self::Stopped(stopped) => Some(stopped.source.diagnosis(&Evidence {
                violations: Some(Violations::default()),
                ..Evidence::default()
            })),
            Self::OutOfWorkspace(end) => Some(end.source_error().diagnosis(&Evidence {
                violations: Some(Violations::default()),
                ..Evidence::default()
            })),
            Self::Unsupported { .. } => {
                let subject = Subject::of_code(CALL_REQUIRES_NEWER_DRIVER);
                Some(diagnose(&subject, &Evidence::default()))
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
    /// What the failure means; `None` where it is none of CUDA's own.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        match self {
            Self::Unavailable(error) => error.diagnosis(),
            Self::NoSuchDevice { ordinal, count } => {
                let (ordinal, visible_devices) = (Some(*ordinal), Some(*count));
                let evidence = Evidence { ordinal, visible_devices, ..Evidence::default() };
                Some(diagnose(&Subject::of_code(INVALID_DEVICE), &evidence))
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

impl Error {
    /// What the failure means in CUDA's terms; `None` where it is none of CUDA's.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        match self {
            Self::Violations(violations) => broken_rules(violations),
            Self::Cuda(error) => error.diagnosis(),
            Self::Launch(error) => error.diagnosis(),
            _ => None,
        }
    }
}

fn named(name: &str) -> Option<Diagnosis> {
    Subject::of_name(name).map(|subject| diagnose(&subject, &Evidence::default()))
}

fn broken_rules(violations: &Violations) -> Option<Diagnosis> {
    let code = violations.iter().find_map(|violation| answers(violation.rule).first())?;
    let evidence = Evidence { violations: Some(violations.clone()), ..Evidence::default() };
    Some(diagnose(&Subject::of_code(*code), &evidence))
}
