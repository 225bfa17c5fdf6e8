//! A problem to tune, with policy and objective.

use std::fmt;
use std::sync::Arc;

use gridguard::DeviceLimits;
use gridguard::profile::{Key, L2, Named, Objective, Policy};
use gridguard_kernels::KernelError;
use gridguard_problems::{Problem, Traffic};
use serde::{Serialize, Serializer};

use super::program::ProgramTask;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TaskProblem {
    Kernel(Problem),
    Program(Arc<ProgramTask>),
}

impl TaskProblem {
    /// The sizes with their names.
    pub(crate) fn shape(&self) -> Named {
        match self {
            Self::Kernel(problem) => problem.shape(),
            Self::Program(program) => program.problem.sizes().clone(),
        }
    }
}

impl fmt::Display for TaskProblem {
    /// `rms_norm f16 32768x4096`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(problem) => problem.fmt(f),
            Self::Program(program) => program.fmt(f),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Task {
    #[serde(serialize_with = "as_text")]
    pub(crate) problem: TaskProblem,
    #[serde(serialize_with = "as_text")]
    pub(crate) policy: Policy,
    #[serde(serialize_with = "as_text")]
    pub(crate) objective: Objective,
}

fn as_text<S: Serializer>(part: &impl fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(part)
}

impl Task {
    /// The key of the choice in the profile of a device.
    pub(crate) fn key(&self, device: &DeviceLimits) -> Result<Key, KernelError> {
        match &self.problem {
            TaskProblem::Kernel(problem) => problem.key(device, self.policy, self.objective),
            TaskProblem::Program(program) => Ok(program.key.clone()),
        }
    }

    /// The memory that measuring needs on a device: inputs, the output with the reference copy, and for a cold cache
    /// the flush. `None` if unknown.
    pub(crate) fn memory_bytes(&self, device: &DeviceLimits) -> Option<u128> {
        let TaskProblem::Kernel(problem) = &self.problem else { return None };
        let Traffic { read, written } = problem.traffic(device).ok()?;
        let flush = if self.policy.l2 == L2::Cold { device.l2_bytes.saturating_mul(2) } else { 0 };
        Some(read.saturating_add(written.saturating_mul(2)).saturating_add(flush.into()))
    }
}

impl fmt::Display for Task {
    /// `rms_norm f16 32768x4096, cold-eager, throughput`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { problem, policy, objective } = self;
        write!(f, "{problem}, {policy}, {objective}")
    }
}
