//! What the guard knows about a failure, as evidence for [`gridguard_diagnose`].

use gridguard::{ComputeCapability, DeviceLimits};
use gridguard::{Dim3, Error, LaunchRequest, Violation, Violations};
use gridguard_diagnose::{
    Capability, Diagnosis, Evidence, FailureId, LaunchConfig, ViolatedRule, diagnose,
};

/// An error that CUDA may have a failure for.
///
/// ```
/// use gridguard::{DeviceLimits, Dim3, Error, KernelLimits, LaunchLimits, LaunchRequest};
/// use gridguard_report::Diagnose;
///
/// let kernel = KernelLimits::unknown("attention");
/// let limits = LaunchLimits::new(DeviceLimits::any_device(), kernel);
/// let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
/// let error = Error::from(gridguard::validate(&request, &limits).expect_err("grid.y"));
///
/// let diagnosis = error.diagnosis().expect("CUDA rejects the launch");
/// assert_eq!(diagnosis.failure.to_string(), "CUDA_ERROR_INVALID_VALUE (1)");
/// ```
pub trait Diagnose {
    /// The failure, its meaning and its probable causes. `None` if CUDA has no error code for it. Violated rules are
    /// explained as the error that the driver would have returned.
    fn diagnosis(&self) -> Option<Diagnosis>;
}

impl Diagnose for Error {
    fn diagnosis(&self) -> Option<Diagnosis> {
        match self {
            Self::Violations(violations) => violations.diagnosis(),
            #[cfg(feature = "cuda")]
            Self::Cuda(error) => error.diagnosis(),
            #[cfg(feature = "cuda")]
            Self::Launch(error) => error.diagnosis(),
            _ => None,
        }
    }
}

impl Diagnose for Violations {
    fn diagnosis(&self) -> Option<Diagnosis> {
        let code = self.iter().find_map(|violation| violation.rule.possible_codes().first())?;
        let evidence =
            Evidence { violated_rules: Some(violated_rules(self)), ..Evidence::default() };
        Some(diagnose(&FailureId::from_code(*code), &evidence))
    }
}

/// The rules that a launch violates.
#[must_use]
pub fn violated_rules(violations: &Violations) -> Vec<ViolatedRule> {
    violations.iter().map(violated_rule).collect()
}

pub(crate) fn violated_rule(violation: &Violation) -> ViolatedRule {
    ViolatedRule {
        id: violation.rule.to_string(),
        what: violation.problem(),
        remedy: violation.remedy.to_string(),
        codes: violation.rule.possible_codes(),
    }
}

/// A device's name, memory and compute capability.
#[must_use]
pub fn device_evidence(device: &DeviceLimits) -> Evidence {
    Evidence {
        device_name: Some(device.name.clone()),
        total_bytes: Some(device.memory_bytes).filter(|bytes| *bytes > 0),
        capability: Some(capability(device.compute_capability)),
        ..Evidence::default()
    }
}

/// The configuration of a launch. The priority is left out, because no rule limits it.
#[must_use]
pub fn launch_config(request: &LaunchRequest) -> LaunchConfig {
    let sizes = |Dim3 { x, y, z }: Dim3| [x, y, z];
    LaunchConfig {
        grid: sizes(request.grid),
        block: sizes(request.block),
        shared_bytes: request.dynamic_shared_bytes,
        cluster: request.cluster.map(sizes),
        cooperative: request.cooperative,
        dependent: request.dependent,
        parameter_bytes: request.parameter_bytes,
        kernel_threads: None,
    }
}

const fn capability(ComputeCapability { major, minor }: ComputeCapability) -> Capability {
    Capability(major, minor)
}

/// The errors of the CUDA driver, the loader and NVRTC.
#[cfg(feature = "cuda")]
mod cuda {
    use gridguard::cuda::{
        CudaError, CudaErrorKind, CudaLibrary, DriverError, FaultSuspects, LaunchError,
        LaunchErrorKind,
    };
    use gridguard_diagnose::{Capability, CudaVersion, Diagnosis, Evidence, FailureId, diagnose};

    use super::{Diagnose, capability};

    impl Diagnose for DriverError {
        fn diagnosis(&self) -> Option<Diagnosis> {
            Some(driver_diagnosis(self, Evidence::default()))
        }
    }

    /// The meaning of the driver's result, given `evidence`, the driver's log and the suspected launches.
    fn driver_diagnosis(error: &DriverError, mut evidence: Evidence) -> Diagnosis {
        if let Some(local) = error.local_memory() {
            evidence.local_bytes_per_thread = Some(local.bytes_per_thread);
            evidence.resident_threads = Some(local.resident_threads);
        }
        if let Some(log) = error.driver_log().filter(|log| !log.may_be_of_another_thread) {
            evidence.driver_log = log.text.lines().map(str::to_owned).collect();
        }
        match error.suspects() {
            Some(FaultSuspects::Launch(launch)) => {
                evidence.faulting_launch = Some(launch.to_string());
            }
            Some(FaultSuspects::OneOf { launches, forgotten }) => {
                let unnamed = launches.len().saturating_sub(FaultSuspects::NAMED);
                let named = launches.iter().skip(unnamed).map(ToString::to_string);
                let others = u64::try_from(unnamed).unwrap_or(u64::MAX).saturating_add(*forgotten);
                let others = (others > 0).then(|| format!("{others} others"));
                evidence.recent_launches = others.into_iter().chain(named).collect();
            }
            _ => {}
        }
        diagnose(&FailureId::from_code(error.code), &evidence)
    }

    impl Diagnose for CudaErrorKind {
        fn diagnosis(&self) -> Option<Diagnosis> {
            match self {
                Self::LibraryMissing { of: CudaLibrary::Driver, .. } => bare("libcuda missing"),
                Self::LibraryMissing { of: CudaLibrary::Nvrtc, .. } => bare("libnvrtc missing"),
                Self::SymbolMissing { of: CudaLibrary::Driver, .. } => {
                    bare("cudaErrorCallRequiresNewerDriver")
                }
                Self::OtherLibrary { .. } => bare("CUDA_ERROR_STUB_LIBRARY"),
                Self::TooOld { version, oldest } => {
                    let driver_cuda = Some(CudaVersion(*version));
                    let program_cuda = Some(CudaVersion(*oldest));
                    let evidence = Evidence { driver_cuda, program_cuda, ..Evidence::default() };
                    named("cudaErrorInsufficientDriver", &evidence)
                }
                Self::NoDevice { .. } => {
                    let evidence = Evidence { visible_devices: Some(0), ..Evidence::default() };
                    named("CUDA_ERROR_NO_DEVICE", &evidence)
                }
                Self::NoSuchDevice { ordinal, count } => {
                    let (ordinal, visible_devices) = (Some(*ordinal), Some(*count));
                    let evidence = Evidence { ordinal, visible_devices, ..Evidence::default() };
                    named("CUDA_ERROR_INVALID_DEVICE", &evidence)
                }
                Self::Compilation { name, .. } | Self::Compiler { name, .. } => bare(name),
                Self::Image(_) => bare("CUDA_ERROR_INVALID_IMAGE"),
                Self::WrongArchitecture { image, capability: of_device, .. } => {
                    let sm = image.strip_prefix("sm_").and_then(Capability::from_sm);
                    let architectures = sm.into_iter().collect();
                    let capability = Some(capability(*of_device));
                    let evidence = Evidence { capability, architectures, ..Evidence::default() };
                    named("CUDA_ERROR_NO_BINARY_FOR_GPU", &evidence)
                }
                Self::PtxTooNew { .. } => bare("CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
                Self::InitFailed(error) | Self::Refused { error, .. } | Self::Driver(error) => {
                    error.diagnosis()
                }
                _ => None,
            }
        }
    }

    impl Diagnose for CudaError {
        fn diagnosis(&self) -> Option<Diagnosis> {
            self.kind().diagnosis()
        }
    }

    impl Diagnose for LaunchError {
        fn diagnosis(&self) -> Option<Diagnosis> {
            // Every chunk was validated, so the launch configuration is not the cause.
            let validated = Evidence { violated_rules: Some(Vec::new()), ..Evidence::default() };
            match self.kind() {
                LaunchErrorKind::Unknown(error) => error.diagnosis(),
                LaunchErrorKind::Driver(error) => error.diagnosis(),
                LaunchErrorKind::Unsupported { .. } => bare("cudaErrorCallRequiresNewerDriver"),
                _ => match self.driver() {
                    Some(error) => Some(driver_diagnosis(error, validated)),
                    None => self.violations().and_then(Diagnose::diagnosis),
                },
            }
        }
    }

    fn named(name: &str, evidence: &Evidence) -> Option<Diagnosis> {
        FailureId::from_name(name).map(|failure| diagnose(&failure, evidence))
    }

    fn bare(name: &str) -> Option<Diagnosis> {
        named(name, &Evidence::default())
    }
}
