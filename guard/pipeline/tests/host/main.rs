//! Pipelines on the host: refusals, plans, and equal results in chunks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod building;
mod failures;
mod planning;
mod random;
mod running;
#[cfg(feature = "profile")]
mod tuned;

use gridguard::{DeviceLimits, Guard, KernelLimits, LaunchLimits};
use gridguard_pipeline::{Error, HostMemory, Pipeline, PipelinePlan, PipelineRun};

/// The limits of a kernel called `name` on any device.
fn limits(name: &str) -> LaunchLimits {
    LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown(name))
}

/// Runs a pipeline with a guard of the host.
fn run(
    pipeline: &mut Pipeline<'_>,
    plan: &PipelinePlan,
    memory: HostMemory<'_>,
) -> Result<PipelineRun, Error> {
    pipeline.run(&Guard::host(DeviceLimits::any_device()), plan, memory)
}
