//! Converts launches, limits and violations into evidence for [`gridguard_diagnose`], and diagnoses
//! [`Error`].

use gridguard_diagnose::{Capability, Diagnosis, Evidence, FailureId, ViolatedRule, diagnose};

use crate::dim::Dim3;
use crate::error::Error;
use crate::launch::request::LaunchRequest;
use crate::launch::violation::{Violation, Violations};
use crate::limits::{ComputeCapability, DeviceLimits};

impl Error {
    /// The CUDA failure behind the error. `None` if CUDA has no error code for it.
    ///
    /// ```
    /// # use gridguard::{DeviceLimits, Dim3, Error, KernelLimits, LaunchLimits, LaunchRequest};
    /// let kernel = KernelLimits::unknown("attention");
    /// let limits = LaunchLimits::new(DeviceLimits::any_device(), kernel);
    /// let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
    /// let error = Error::from(gridguard::validate(&request, &limits).expect_err("grid.y"));
    ///
    /// let diagnosis = error.diagnosis().expect("CUDA rejects the launch");
    /// assert_eq!(diagnosis.failure.to_string(), "CUDA_ERROR_INVALID_VALUE (1)");
    /// ```
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
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

impl Violations {
    /// The CUDA failure of the launch. `None` if CUDA does not reject it.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        let code = self.iter().find_map(|violation| violation.rule.possible_codes().first())?;
        Some(diagnose(&FailureId::from_code(*code), &self.into()))
    }
}

impl From<&Violations> for Evidence {
    /// The violated rules.
    fn from(violations: &Violations) -> Self {
        let rules = violations.iter().map(ViolatedRule::from).collect();
        Self { violated_rules: Some(rules), ..Self::default() }
    }
}

impl From<&Violation> for ViolatedRule {
    fn from(violation: &Violation) -> Self {
        Self {
            id: violation.rule.to_string(),
            what: violation.problem(),
            remedy: violation.remedy.to_string(),
            codes: violation.rule.possible_codes(),
        }
    }
}

impl From<&DeviceLimits> for Evidence {
    /// The device's name, memory and compute capability.
    fn from(device: &DeviceLimits) -> Self {
        Self {
            device_name: Some(device.name.clone()),
            total_bytes: Some(device.memory_bytes).filter(|bytes| *bytes > 0),
            capability: Some(device.compute_capability.into()),
            ..Self::default()
        }
    }
}

impl From<&LaunchRequest> for Evidence {
    /// The launch, as options of `gridguard check`.
    fn from(request: &LaunchRequest) -> Self {
        let sizes = |Dim3 { x, y, z }: &Dim3| format!("{x},{y},{z}");
        let nonzero = |bytes: u64| (bytes > 0).then(|| bytes.to_string());
        // No rule limits the priority.
        let options = [
            ("--grid", Some(sizes(&request.grid))),
            ("--block", Some(sizes(&request.block))),
            ("--shared-mem", nonzero(request.dynamic_shared_bytes)),
            ("--cluster", request.cluster.as_ref().map(sizes)),
            ("--cooperative", request.cooperative.then(String::new)),
            ("--dependent", request.dependent.then(String::new)),
            ("--param-bytes", nonzero(request.parameter_bytes)),
        ];
        let options = options.into_iter().filter_map(|(name, value)| {
            value.map(|value| format!("{name} {value}").trim_end().to_owned())
        });
        Self { launch: Some(options.collect::<Vec<_>>().join(" ")), ..Self::default() }
    }
}

impl From<ComputeCapability> for Capability {
    fn from(capability: ComputeCapability) -> Self {
        Self(capability.major, capability.minor)
    }
}

/// Diagnoses the errors of the CUDA driver, the loader and NVRTC.
#[cfg(feature = "cuda")]
mod cuda {
    use gridguard_diagnose::{Capability, CudaVersion, Diagnosis, Evidence, FailureId, diagnose};

    use crate::cuda::driver::error::DriverError;
    use crate::cuda::driver::suspects::{FaultSuspects, NAMED};
    use crate::cuda::error::{
        CudaError, CudaLibrary, LaunchError, LibraryUnavailable, LoadError, NvrtcError,
    };
    use crate::launch::violation::Violations;

    impl DriverError {
        /// The meaning and the probable causes of the driver's result. The driver's log and the suspected
        /// launches are added to `evidence`, unless it already has them.
        #[must_use]
        pub fn diagnosis(&self, evidence: &Evidence) -> Diagnosis {
            let failure = FailureId::from_code(self.code);
            let mut evidence = evidence.clone();
            if let Some(local) = self.local_memory() {
                evidence.local_bytes_per_thread = Some(local.bytes_per_thread);
                evidence.resident_threads = Some(local.resident_threads);
            }
            if let Some(log) = self.driver_log().filter(|log| !log.may_be_of_another_thread)
                && evidence.driver_log.is_empty()
            {
                evidence.driver_log = log.text.lines().map(str::to_owned).collect();
            }
            let has_launches =
                evidence.faulting_launch.is_some() || !evidence.recent_launches.is_empty();
            match self.suspects() {
                Some(suspects) if !has_launches => {
                    diagnose(&failure, &with_suspects(evidence, suspects))
                }
                _ => diagnose(&failure, &evidence),
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

    impl LibraryUnavailable {
        /// Why the library is not available, and how to install it.
        #[must_use]
        pub fn diagnosis(&self) -> Option<Diagnosis> {
            match self {
                Self::LibraryMissing { of: CudaLibrary::Driver, .. } => bare("libcuda missing"),
                Self::LibraryMissing { of: CudaLibrary::Nvrtc, .. } => bare("libnvrtc missing"),
                Self::SymbolMissing { of: CudaLibrary::Driver, .. } => {
                    bare("cudaErrorCallRequiresNewerDriver")
                }
                Self::LibraryMissing { .. } | Self::SymbolMissing { .. } => None,
                Self::OtherLibrary { .. } => bare("CUDA_ERROR_STUB_LIBRARY"),
                Self::TooOld { version, oldest } => {
                    let driver_cuda = Some(CudaVersion(*version));
                    let program_cuda = Some(CudaVersion(*oldest));
                    let evidence = Evidence { driver_cuda, program_cuda, ..Evidence::default() };
                    named("cudaErrorInsufficientDriver", &evidence)
                }
                Self::InitFailed(error) => Some(error.diagnosis(&Evidence::default())),
                Self::NoDevice { .. } => {
                    let evidence = Evidence { visible_devices: Some(0), ..Evidence::default() };
                    named("CUDA_ERROR_NO_DEVICE", &evidence)
                }
            }
        }
    }

    impl LoadError {
        /// The meaning of the error. `None` if CUDA has no error code for it.
        #[must_use]
        pub fn diagnosis(&self) -> Option<Diagnosis> {
            let (code, evidence) = match self {
                Self::Refused { error, .. } | Self::Driver(error) => {
                    return Some(error.diagnosis(&Evidence::default()));
                }
                Self::Image(_) => ("CUDA_ERROR_INVALID_IMAGE", Evidence::default()),
                #[cfg(feature = "ptx")]
                Self::Rewrite(_) => return None,
                Self::WrongArchitecture { image, capability, .. } => {
                    let sm = image.strip_prefix("sm_").and_then(Capability::from_sm);
                    let architectures = sm.into_iter().collect();
                    let capability = Some((*capability).into());
                    let evidence = Evidence { capability, architectures, ..Evidence::default() };
                    ("CUDA_ERROR_NO_BINARY_FOR_GPU", evidence)
                }
                Self::PtxTooNew { .. } => {
                    ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", Evidence::default())
                }
                Self::NoSuchKernel { .. } | Self::Parameters { .. } | Self::NoDevice => {
                    return None;
                }
            };
            named(code, &evidence)
        }
    }

    impl LaunchError {
        /// Why the launch failed. `None` if CUDA has no error code for it. Violated rules are explained as the
        /// error that the driver would have returned.
        #[must_use]
        pub fn diagnosis(&self) -> Option<Diagnosis> {
            match self {
                Self::Invalid(violations) => violations.diagnosis(),
                #[cfg(feature = "ptx")]
                Self::NotRewritten { violations, .. } => violations.diagnosis(),
                Self::Unknown(error) => error.diagnosis(),
                Self::Driver(error) => Some(error.diagnosis(&Evidence::default())),
                Self::Stopped(stopped) => Some(stopped.source.diagnosis(&validated())),
                Self::Workspace(error) => Some(error.source.diagnosis(&validated())),
                Self::Unsupported { .. } => bare("cudaErrorCallRequiresNewerDriver"),
                Self::OtherKernel { .. }
                | Self::OtherContext { .. }
                | Self::NotDependent { .. }
                | Self::Undeclared { .. }
                | Self::Args(_)
                | Self::Captured { .. } => None,
            }
        }
    }

    impl CudaError {
        /// The meaning of the failure. `None` if CUDA has no error code for it.
        #[must_use]
        pub fn diagnosis(&self) -> Option<Diagnosis> {
            match self {
                Self::Unavailable(error) | Self::Compile(NvrtcError::Unavailable(error)) => {
                    error.diagnosis()
                }
                Self::NoSuchDevice { ordinal, count } => {
                    let (ordinal, visible_devices) = (Some(*ordinal), Some(*count));
                    let evidence = Evidence { ordinal, visible_devices, ..Evidence::default() };
                    named("CUDA_ERROR_INVALID_DEVICE", &evidence)
                }
                Self::Driver(error) => Some(error.diagnosis(&Evidence::default())),
                Self::Load(error) => error.diagnosis(),
                Self::Compile(
                    NvrtcError::Compilation { name, .. } | NvrtcError::Call { name, .. },
                ) => bare(name),
                Self::Compile(_) => None,
            }
        }
    }

    fn named(name: &str, evidence: &Evidence) -> Option<Diagnosis> {
        FailureId::from_name(name).map(|failure| diagnose(&failure, evidence))
    }

    fn bare(name: &str) -> Option<Diagnosis> {
        named(name, &Evidence::default())
    }

    /// Every chunk was validated, so the launch configuration is not the cause.
    fn validated() -> Evidence {
        Evidence::from(&Violations::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_becomes_options_of_the_check_command() {
        let launch = |request: LaunchRequest| Evidence::from(&request).launch;
        let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
        let plain = "--grid 1,76800,1 --block 128,1,1";
        assert_eq!(launch(request).as_deref(), Some(plain));
        let full = request.dynamic_shared_bytes(16_384).cluster(Dim3::new(2, 1, 1)).cooperative();
        let full = launch(full).expect("a launch");
        assert_eq!(full, format!("{plain} --shared-mem 16384 --cluster 2,1,1 --cooperative"));
    }
}
