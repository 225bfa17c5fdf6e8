//! The table of all kernels.

use std::sync::Arc;

use gridguard::profile::{Key, Objective, Policy};
use gridguard::{DeviceLimits, Guard, KernelLimits, LaunchLimits};
use half::{bf16, f16};

use super::case::{BenchCase, BenchError, LaunchSetup};
use super::host::host_case;
use super::spec::{KernelSpec, SizedProblem, TensorSpec};
use crate::argsort::Argsort;
use crate::batched_gemm::BatchedGemm;
use crate::compare::Compared as _;
use crate::element::ElementType;
use crate::error::KernelError;
use crate::geglu::Geglu;
use crate::get_rows::GetRows;
use crate::layer_norm::LayerNorm;
use crate::operation::Code;
use crate::reflection_pad1d::ReflectionPad1d;
use crate::rms_norm::RmsNorm;
use crate::softmax::Softmax;
use crate::temporal_attention::{AttentionBackward, TemporalAttention};
use crate::upsample_nearest2d::UpsampleNearest2d;
#[cfg(feature = "cuda")]
use {super::device::device_case, crate::kernels::Kernels, cudarc::driver::CudaStream};

/// All kernels, by name.
pub(super) static KERNELS: [KernelEntry; 11] = [
    KernelEntry::of::<Argsort>(),
    KernelEntry::of::<AttentionBackward>(),
    KernelEntry::of::<BatchedGemm>(),
    KernelEntry::of::<Geglu>(),
    KernelEntry::of::<GetRows>(),
    KernelEntry::of::<LayerNorm>(),
    KernelEntry::of::<ReflectionPad1d>(),
    KernelEntry::of::<RmsNorm>(),
    KernelEntry::of::<Softmax>(),
    KernelEntry::of::<TemporalAttention>(),
    KernelEntry::of::<UpsampleNearest2d>(),
];

/// A kernel without sizes. The functions build it for a problem.
pub(super) struct KernelEntry {
    pub(super) name: &'static str,
    pub(super) sizes: &'static [&'static str],
    pub(super) has_indices: bool,
    pub(super) sources: &'static [&'static str],
    pub(super) shipped: &'static str,
    pub(super) small: &'static str,
    /// The key in profiles.
    pub(super) key: fn(&SizedProblem, &DeviceLimits, Policy, Objective) -> KernelResult<Key>,
    pub(super) code: fn(&SizedProblem, &DeviceLimits, &Parameters) -> KernelResult<Code>,
    pub(super) tensors: fn(&SizedProblem, &DeviceLimits) -> KernelResult<TensorSpec>,
    /// Whether the elements of the output are u32 instead of those of the inputs.
    pub(super) writes_u32: bool,
    /// The launch with these launch parameters, under the limits of any kernel on the device.
    pub(super) setup: fn(&SizedProblem, &DeviceLimits, &Parameters) -> KernelResult<LaunchSetup>,
    #[cfg(feature = "cuda")]
    pub(super) on_device: fn(&SizedProblem, &Kernels, &Arc<CudaStream>) -> CaseResult,
    pub(super) on_host: fn(&SizedProblem, &Arc<Guard>) -> CaseResult,
}

type KernelResult<T> = Result<T, KernelError>;
type Parameters = [(String, u64)];
type CaseResult = Result<Box<dyn BenchCase>, BenchError>;

impl KernelEntry {
    const fn of<K: KernelSpec>() -> Self {
        Self {
            name: K::KERNEL,
            sizes: K::SIZES,
            has_indices: K::HAS_INDICES,
            sources: K::SOURCES,
            shipped: K::SHIPPED,
            small: K::SMALL,
            key: |problem, device, policy, objective| {
                K::build(problem, device)?.key(device, policy, objective)
            },
            code: |problem, device, parameters| {
                K::build(problem, device)?.with_parameters(parameters)?.code(device)
            },
            tensors: |problem, device| Ok(K::build(problem, device)?.tensors()),
            writes_u32: K::Output::<f32>::IS_INTEGER,
            setup: |problem, device, parameters| {
                let kernel = K::build(problem, device)?.with_parameters(parameters)?;
                let limits = LaunchLimits::new(device.clone(), KernelLimits::unknown(K::KERNEL));
                Ok(LaunchSetup::new(&kernel, limits.with_automatic_opt_in()))
            },
            #[cfg(feature = "cuda")]
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
