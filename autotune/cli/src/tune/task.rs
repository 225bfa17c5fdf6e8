//! One thing to tune.

use core::fmt;

use gridguard::DeviceLimits;
use gridguard::profile::{Key, Objective, Policy};
use gridguard_kernels::KernelError;
use gridguard_kernels::bench::Problem;

/// A problem, how its times are taken, and what the choice is to be good at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) problem: Problem,
    pub(crate) policy: Policy,
    pub(crate) objective: Objective,
}

impl Task {
    /// What a profile of a device with these limits stores the choice under.
    pub(crate) fn key(&self, device: &DeviceLimits) -> Result<Key, KernelError> {
        self.problem.key(device, self.policy, self.objective)
    }
}

impl fmt::Display for Task {
    /// `rms_norm f16 32768x4096, cold-eager, throughput`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { problem, policy, objective } = self;
        write!(f, "{problem}, {policy}, {objective}")
    }
}
