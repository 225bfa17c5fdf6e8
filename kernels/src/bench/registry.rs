//! The table of all kernels, and each one behind a common interface.

use gridguard::profile::{Key, Objective, Policy};
use gridguard::{DeviceLimits, KernelLimits, LaunchLimits};

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

/// What is known of a kernel before it has sizes.
pub(super) struct KernelEntry {
    pub(super) name: &'static str,
    pub(super) sizes: &'static [&'static str],
    pub(super) has_indices: bool,
    pub(super) sources: &'static [&'static str],
    pub(super) problems: ProblemSets,
    pub(super) build: fn(&ProblemArgs<'_>) -> Result<Box<dyn BuiltKernel>, KernelError>,
}

impl KernelEntry {
    const fn of<K: KernelSpec>() -> Self {
        Self {
            name: K::KERNEL,
            sizes: K::SIZES,
            has_indices: K::HAS_INDICES,
            sources: K::SOURCES,
            problems: K::PROBLEMS,
            build: |problem| Ok(Box::new(K::build(problem)?)),
        }
    }
}

/// A kernel of any type, built for a problem.
pub(super) trait BuiltKernel {
    fn profile_key(
        &self,
        device: &DeviceLimits,
        policy: Policy,
        objective: Objective,
    ) -> Result<Key, KernelError>;

    fn tensor_spec(&self) -> TensorSpec;

    /// The launch with these launch parameters, under the limits of any kernel on the device.
    fn setup(
        &self,
        device: &DeviceLimits,
        parameters: &[(String, u64)],
    ) -> Result<LaunchSetup, KernelError>;

    #[cfg(feature = "cuda")]
    fn on_device(
        &self,
        kernels: &crate::kernels::Kernels,
        stream: &Arc<cudarc::driver::CudaStream>,
    ) -> Result<Box<dyn BenchCase>, BenchError>;

    #[cfg(feature = "host")]
    fn on_host(&self, guard: &Arc<gridguard::Guard>) -> Result<Box<dyn BenchCase>, BenchError>;
}

impl<K: KernelSpec> BuiltKernel for K {
    fn profile_key(
        &self,
        device: &DeviceLimits,
        policy: Policy,
        objective: Objective,
    ) -> Result<Key, KernelError> {
        self.key(device, policy, objective)
    }

    fn tensor_spec(&self) -> TensorSpec {
        self.tensors()
    }

    fn setup(
        &self,
        device: &DeviceLimits,
        parameters: &[(String, u64)],
    ) -> Result<LaunchSetup, KernelError> {
        let kernel = self.with_parameters(parameters)?;
        let limits = LaunchLimits::new(device.clone(), KernelLimits::unknown(K::KERNEL));
        Ok(LaunchSetup {
            parameters: kernel.parameters(),
            request: kernel.request(),
            batch: kernel.batch(),
            limits: limits.with_automatic_opt_in(),
        })
    }

    #[cfg(feature = "cuda")]
    fn on_device(
        &self,
        kernels: &crate::kernels::Kernels,
        stream: &Arc<cudarc::driver::CudaStream>,
    ) -> Result<Box<dyn BenchCase>, BenchError> {
        use super::device::device_case;
        match self.element() {
            ElementType::F16 => device_case::<f16, K>(kernels, stream, self.clone()),
            ElementType::Bf16 => device_case::<bf16, K>(kernels, stream, self.clone()),
            ElementType::F32 => device_case::<f32, K>(kernels, stream, self.clone()),
        }
    }

    #[cfg(feature = "host")]
    fn on_host(&self, guard: &Arc<gridguard::Guard>) -> Result<Box<dyn BenchCase>, BenchError> {
        use super::host::host_case;
        match self.element() {
            ElementType::F16 => host_case::<f16, K>(guard, self.clone()),
            ElementType::Bf16 => host_case::<bf16, K>(guard, self.clone()),
            ElementType::F32 => host_case::<f32, K>(guard, self.clone()),
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
