//! The table of all kernels.

use gridguard::profile::{Key, Objective, Policy};
use gridguard::{KernelLimits, LaunchLimits};

use super::case::LaunchSetup;
use super::spec::{KernelSpec, ProblemArgs, ProblemSets, TensorSpec};
use crate::argsort::Argsort;
use crate::batched_gemm::BatchedGemm;
use crate::error::KernelError;
use crate::get_rows::GetRows;
use crate::reflection_pad1d::ReflectionPad1d;
use crate::rms_norm::RmsNorm;
use crate::softmax::Softmax;
use crate::temporal_attention::TemporalAttention;
use crate::upsample_nearest2d::UpsampleNearest2d;
#[cfg(any(feature = "cuda", feature = "host"))]
use {
    super::case::{BenchCase, BenchError},
    crate::element::ElementType,
    half::{bf16, f16},
    std::sync::Arc,
};
#[cfg(feature = "cuda")]
use {super::device::device_case, crate::kernels::Kernels, cudarc::driver::CudaStream};
#[cfg(feature = "host")]
use {super::host::host_case, gridguard::Guard};

/// All kernels, by name.
pub(super) static KERNELS: [KernelEntry; 8] = [
    KernelEntry::of::<Argsort>(),
    KernelEntry::of::<BatchedGemm>(),
    KernelEntry::of::<GetRows>(),
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
    pub(super) problems: ProblemSets,
    /// The key in profiles.
    pub(super) key: fn(&ProblemArgs<'_>, Policy, Objective) -> KernelResult<Key>,
    pub(super) tensors: fn(&ProblemArgs<'_>) -> KernelResult<TensorSpec>,
    /// The launch with these launch parameters, under the limits of any kernel on the device.
    pub(super) setup: fn(&ProblemArgs<'_>, &Parameters) -> KernelResult<LaunchSetup>,
    #[cfg(feature = "cuda")]
    pub(super) on_device: fn(&ProblemArgs<'_>, &Kernels, &Arc<CudaStream>) -> CaseResult,
    #[cfg(feature = "host")]
    pub(super) on_host: fn(&ProblemArgs<'_>, &Arc<Guard>) -> CaseResult,
}

type KernelResult<T> = Result<T, KernelError>;
type Parameters = [(String, u64)];
#[cfg(any(feature = "cuda", feature = "host"))]
type CaseResult = Result<Box<dyn BenchCase>, BenchError>;

impl KernelEntry {
    const fn of<K: KernelSpec>() -> Self {
        Self {
            name: K::KERNEL,
            sizes: K::SIZES,
            has_indices: K::HAS_INDICES,
            sources: K::SOURCES,
            problems: K::PROBLEMS,
            key: |args, policy, objective| K::build(args)?.key(args.device, policy, objective),
            tensors: |args| Ok(K::build(args)?.tensors()),
            setup: |args, parameters| {
                let kernel = K::build(args)?.with_parameters(parameters)?;
                let limits =
                    LaunchLimits::new(args.device.clone(), KernelLimits::unknown(K::KERNEL));
                Ok(LaunchSetup {
                    parameters: kernel.parameters(),
                    request: kernel.request(),
                    batch: kernel.batch(),
                    limits: limits.with_automatic_opt_in(),
                })
            },
            #[cfg(feature = "cuda")]
            on_device: |args, kernels, stream| match args.element {
                ElementType::F16 => device_case::<f16, K>(kernels, stream, K::build(args)?),
                ElementType::Bf16 => device_case::<bf16, K>(kernels, stream, K::build(args)?),
                ElementType::F32 => device_case::<f32, K>(kernels, stream, K::build(args)?),
            },
            #[cfg(feature = "host")]
            on_host: |args, guard| match args.element {
                ElementType::F16 => host_case::<f16, K>(guard, K::build(args)?),
                ElementType::Bf16 => host_case::<bf16, K>(guard, K::build(args)?),
                ElementType::F32 => host_case::<f32, K>(guard, K::build(args)?),
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
