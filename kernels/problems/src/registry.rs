//! The table of all kernels.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard::profile::{Key, Objective, Policy};
use gridguard::{DeviceLimits, Guard, KernelLimits, LaunchLimits};
use gridguard_kernels::argsort::Argsort;
use gridguard_kernels::compare::Compared as _;
use gridguard_kernels::geglu::Geglu;
use gridguard_kernels::layer_norm::LayerNorm;
use gridguard_kernels::rms_norm::RmsNorm;
use gridguard_kernels::softmax::Softmax;
use gridguard_kernels::temporal_attention::{AttentionBackward, TemporalAttention};
use gridguard_kernels::{Code, ElementType, KernelError, Kernels};
use half::{bf16, f16};

use crate::case::{BenchCase, LaunchSetup};
use crate::device::device_case;
use crate::error::Error;
use crate::host::host_case;
use crate::spec::{KernelSpec, SizedProblem, TensorSpec};

/// All kernels, by name.
pub(crate) static KERNELS: [KernelEntry; 7] = [
    KernelEntry::of::<Argsort>(),
    KernelEntry::of::<AttentionBackward>(),
    KernelEntry::of::<Geglu>(),
    KernelEntry::of::<LayerNorm>(),
    KernelEntry::of::<RmsNorm>(),
    KernelEntry::of::<Softmax>(),
    KernelEntry::of::<TemporalAttention>(),
];

/// A kernel without sizes. The functions build it for a problem.
pub(crate) struct KernelEntry {
    pub(crate) name: &'static str,
    pub(crate) sizes: &'static [&'static str],
    pub(crate) sources: fn() -> Vec<String>,
    pub(crate) shipped: &'static str,
    pub(crate) small: &'static str,
    /// The key in profiles.
    pub(crate) key: fn(&SizedProblem, &DeviceLimits, Policy, Objective) -> KernelResult<Key>,
    pub(crate) code: fn(&SizedProblem, &DeviceLimits, &Parameters) -> KernelResult<Code>,
    pub(crate) tensors: fn(&SizedProblem, &DeviceLimits) -> KernelResult<TensorSpec>,
    /// Whether the elements of the output are u32 instead of those of the inputs.
    pub(crate) writes_u32: bool,
    /// The launch with these launch parameters, under the limits of any kernel on the device.
    pub(crate) setup: fn(&SizedProblem, &DeviceLimits, &Parameters) -> KernelResult<LaunchSetup>,
    pub(crate) on_device: fn(&SizedProblem, &Kernels, &Arc<CudaStream>) -> CaseResult,
    pub(crate) on_host: fn(&SizedProblem, &Arc<Guard>) -> CaseResult,
}

type KernelResult<T> = Result<T, KernelError>;
type Parameters = [(String, u64)];
type CaseResult = Result<Box<dyn BenchCase>, Error>;

impl KernelEntry {
    const fn of<K: KernelSpec>() -> Self {
        Self {
            name: K::KERNEL,
            sizes: K::SIZES,
            sources: K::source_hashes,
            shipped: K::SHIPPED,
            small: K::SMALL,
            key: |problem, device, policy, objective| {
                K::build(problem, device)?.key(device, policy, objective)
            },
            code: |problem, device, parameters| {
                K::build(problem, device)?.with_parameters(parameters)?.code(device)
            },
            tensors: |problem, device| K::build(problem, device).map(|_| K::tensors(problem)),
            writes_u32: K::Output::<f32>::IS_INTEGER,
            setup: |problem, device, parameters| {
                let kernel = K::build(problem, device)?.with_parameters(parameters)?;
                let limits = LaunchLimits::new(device.clone(), KernelLimits::unknown(K::KERNEL));
                Ok(LaunchSetup::new(&kernel, limits.with_automatic_opt_in()))
            },
            on_device: |problem, kernels, stream| match problem.element {
                ElementType::F16 => device_case::<f16, K>(problem, kernels, stream),
                ElementType::Bf16 => device_case::<bf16, K>(problem, kernels, stream),
                ElementType::F32 => device_case::<f32, K>(problem, kernels, stream),
            },
            on_host: |problem, guard| match problem.element {
                ElementType::F16 => host_case::<f16, K>(problem, guard),
                ElementType::Bf16 => host_case::<bf16, K>(problem, guard),
                ElementType::F32 => host_case::<f32, K>(problem, guard),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_sorted_by_name() {
        assert!(KERNELS.is_sorted_by_key(|entry| entry.name));
    }
}
