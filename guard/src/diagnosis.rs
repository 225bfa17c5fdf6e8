//! Translates launches, limits and violations into evidence for [`gridguard_diagnose`], and
//! diagnoses [`Error`].

use gridguard_diagnose::{Capability, Diagnosis, Evidence, FailureId, ViolatedRule, diagnose};

use crate::dim::Dim3;
use crate::error::Error;
use crate::launch::request::LaunchRequest;
use crate::launch::rule::Rule;
use crate::launch::violation::{Violation, Violations};
use crate::limits::{ComputeCapability, DeviceLimits};

impl Error {
    /// What the failure means in CUDA's terms; `None` where CUDA has no error code for it.
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
    /// What the launch would fail with, and why; `None` where CUDA does not reject it.
    #[must_use]
    pub fn diagnosis(&self) -> Option<Diagnosis> {
        let code = self.iter().find_map(|violation| codes(violation.rule).first())?;
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
        let remedy = violation.remedy.to_string();
        let text = violation.to_string();
        let what = text.strip_suffix(&format!(": {remedy}")).unwrap_or(&text).to_owned();
        Self { id: violation.rule.to_string(), what, remedy, codes: codes(violation.rule) }
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
        let LaunchRequest {
            grid,
            block,
            dynamic_shared_bytes,
            cluster,
            cooperative,
            parameter_bytes,
            // No rule is about it.
            priority: _,
            dependent,
        } = request;
        let sizes = |Dim3 { x, y, z }: &Dim3| format!("{x},{y},{z}");
        let nonzero = |bytes: &u64| (*bytes > 0).then(|| bytes.to_string());
        let options = [
            ("--grid", Some(sizes(grid))),
            ("--block", Some(sizes(block))),
            ("--shared-mem", nonzero(dynamic_shared_bytes)),
            ("--cluster", cluster.as_ref().map(sizes)),
            ("--cooperative", cooperative.then(String::new)),
            ("--dependent", dependent.then(String::new)),
            ("--param-bytes", nonzero(parameter_bytes)),
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

/// The codes that a launch violating `rule` can fail with, the driver's own first; empty where CUDA
/// does not check the rule.
const fn codes(rule: Rule) -> &'static [i32] {
    match rule {
        Rule::GridDimX
        | Rule::GridDimY
        | Rule::GridDimZ
        | Rule::GridDimZero
        | Rule::BlockDimX
        | Rule::BlockDimY
        | Rule::BlockDimZ
        | Rule::BlockDimZero
        | Rule::ThreadsPerBlock
        | Rule::KernelThreadsPerBlock => &[1, 9],
        // A cooperative launch of which not even one block fits is too large.
        Rule::SharedMemoryTotal | Rule::DynamicSharedMemoryOptIn => &[1, 9, 720],
        Rule::RegistersPerBlock => &[701, 720],
        Rule::ClusterUnsupported | Rule::CooperativeUnsupported => &[801, 1, 9, 912],
        Rule::DependentUnsupported => &[801, 1, 9],
        Rule::ClusterSize | Rule::ClusterDividesGrid | Rule::ClusterRequired => &[912, 1, 9],
        Rule::ClusterResidency => &[912],
        Rule::CooperativeResidency => &[720],
        Rule::ParameterBytes => &[1, 701],
        Rule::IndexWidth => &[700, 719],
        Rule::WorkspaceMemory => &[2],
        Rule::BatchCoversGrid
        | Rule::SplitCooperative
        | Rule::SplitCluster
        | Rule::SplitAlignment
        | Rule::SplitItem
        | Rule::FoldUnavailable => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_code_of_a_rule_is_the_driver_s() {
        for rule in Rule::ALL {
            if let Some(code) = rule.driver_code() {
                assert_eq!(codes(*rule).first(), Some(&code), "{rule}");
            }
        }
    }

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
