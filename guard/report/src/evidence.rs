//! What the guard knows about a failure, as evidence for [`gridguard_diagnose`].

use gridguard::{DeviceLimits, Error, Violation, Violations};
use gridguard_diagnose::{Diagnosis, Known, ViolatedRule, diagnose};

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
/// assert_eq!((diagnosis.failures[0].id.as_str(), diagnosis.failures[0].code), ("grid-dim-y", Some(1)));
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
        Some(of_code(*code, &Known::default().rules(violated_rules(self))))
    }
}

/// The failure of a code of the driver.
pub fn of_code(code: i32, known: &Known) -> Diagnosis {
    diagnose(&code.to_string(), known)
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
pub fn device_facts(device: &DeviceLimits) -> Known {
    let known = Known::default().text("gpu", &device.name);
    let known = known.version("cc", device.compute_capability);
    if device.memory_bytes > 0 { known.number("total", device.memory_bytes) } else { known }
}

/// The errors of the CUDA driver, the loader and NVRTC.
#[cfg(feature = "cuda")]
mod cuda {
    use gridguard::cuda::{
        CudaError, CudaErrorKind, CudaLibrary, DriverError, FaultSuspects, LaunchError,
        LaunchErrorKind,
    };
    use gridguard_diagnose::{CudaVersion, Diagnosis, Known, diagnose};

    use super::{Diagnose, of_code};

    impl Diagnose for DriverError {
        fn diagnosis(&self) -> Option<Diagnosis> {
            Some(driver_diagnosis(self, Known::default()))
        }
    }

    /// The meaning of the driver's result, given what is known, the driver's log and the suspected launches.
    fn driver_diagnosis(error: &DriverError, mut known: Known) -> Diagnosis {
        if let Some(local) = error.local_memory() {
            known = known.number("local_bytes", local.bytes_per_thread);
            known = known.number("resident_threads", local.resident_threads);
        }
        if let Some(log) = error.driver_log().filter(|log| !log.may_be_of_another_thread) {
            known = log
                .text
                .lines()
                .fold(known, |known, line| known.remark(format!("the driver's log: {line}")));
        }
        match error.suspects() {
            Some(FaultSuspects::Launch(launch)) => {
                known = known.remark(format!("the faulting launch is {launch}"));
            }
            Some(FaultSuspects::OneOf { launches, forgotten }) => {
                let unnamed = launches.len().saturating_sub(FaultSuspects::NAMED);
                let named = launches.iter().skip(unnamed).map(ToString::to_string);
                let others = u64::try_from(unnamed).unwrap_or(u64::MAX).saturating_add(*forgotten);
                let others = (others > 0).then(|| format!("{others} others"));
                let recent: Vec<String> = others.into_iter().chain(named).collect();
                if !recent.is_empty() {
                    let recent = recent.join(", ");
                    known = known.remark(format!("recent launches, newest last: {recent}"));
                }
            }
            _ => {}
        }
        of_code(error.code, &known)
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
                    let known = Known::default().version("driver_cuda", CudaVersion(*version));
                    let known = known.version("program_cuda", CudaVersion(*oldest));
                    named("cudaErrorInsufficientDriver", &known)
                }
                Self::NoDevice { .. } => {
                    named("CUDA_ERROR_NO_DEVICE", &Known::default().number("devices", 0))
                }
                Self::NoSuchDevice { ordinal, count } => {
                    let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
                    let known = Known::default().number("ordinal", number(*ordinal));
                    named("CUDA_ERROR_INVALID_DEVICE", &known.number("devices", number(*count)))
                }
                Self::Compilation { name, .. } | Self::Compiler { name, .. } => bare(name),
                Self::Image(_) => bare("CUDA_ERROR_INVALID_IMAGE"),
                Self::WrongArchitecture { image, capability: of_device, .. } => {
                    let known = Known::default().version("cc", of_device).version("image", image);
                    named("CUDA_ERROR_NO_BINARY_FOR_GPU", &known)
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
            let validated = Known::default().rules(Vec::new());
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

    fn named(name: &str, known: &Known) -> Option<Diagnosis> {
        let diagnosis = diagnose(name, known);
        (!diagnosis.failures.is_empty()).then_some(diagnosis)
    }

    fn bare(name: &str) -> Option<Diagnosis> {
        named(name, &Known::default())
    }
}
