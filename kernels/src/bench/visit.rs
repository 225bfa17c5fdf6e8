//! From a problem, which is data, to its kernel, which is a type.

use gridguard::profile::{Key, Objective, Policy};
use gridguard::{DeviceLimits, KernelLimits, LaunchLimits};
use half::{bf16, f16};

use super::LaunchSetup;
#[cfg(feature = "cuda")]
pub(super) use super::launched::Launched as Exercised;
use super::problem::{Problem, Sizes};
#[cfg(not(feature = "cuda"))]
pub(super) use super::subject::KernelSpec as Exercised;
use super::subject::Tensorial;
use crate::argsort::{Argsort, Order};
use crate::batched_gemm::BatchedGemm;
use crate::element::ElementType;
use crate::error::KernelError;
use crate::get_rows::GetRows;
use crate::reflection_pad1d::ReflectionPad1d;
use crate::rms_norm::RmsNorm;
use crate::softmax::Softmax;
use crate::temporal_attention::{Layout, Shape, TemporalAttention};
use crate::upsample_nearest2d::UpsampleNearest2d;

/// Makes something of a kernel, whichever it is.
pub(super) trait Visitor {
    /// What is made.
    type Made;

    fn visit<T: Tensorial, S: Exercised<T, N>, const N: usize>(self, subject: S) -> Self::Made;
}

struct LeastBytes;

impl Visitor for LeastBytes {
    type Made = u128;

    fn visit<T: Tensorial, S: Exercised<T, N>, const N: usize>(self, subject: S) -> u128 {
        subject.specification().least_bytes
    }
}

struct KeyOf<'a> {
    device: &'a DeviceLimits,
    policy: Policy,
    objective: Objective,
}

impl Visitor for KeyOf<'_> {
    type Made = Result<Key, KernelError>;

    fn visit<T: Tensorial, S: Exercised<T, N>, const N: usize>(self, subject: S) -> Self::Made {
        subject.key(self.device, self.policy, self.objective)
    }
}

struct Configured<'a> {
    device: &'a DeviceLimits,
    parameters: &'a [(String, u64)],
}

impl Visitor for Configured<'_> {
    type Made = Result<LaunchSetup, KernelError>;

    fn visit<T: Tensorial, S: Exercised<T, N>, const N: usize>(self, subject: S) -> Self::Made {
        let subject = subject.with_parameters(self.parameters)?;
        let kernel = KernelLimits::unknown(S::KERNEL);
        Ok(LaunchSetup {
            parameters: subject.parameters(),
            request: subject.request(),
            batch: subject.batch(),
            limits: LaunchLimits::new(self.device.clone(), kernel).with_automatic_opt_in(),
        })
    }
}

impl Problem {
    /// The launch with these parameters, those not named by default, without tensors and uncompiled:
    /// under what the device allows any kernel.
    ///
    /// # Errors
    ///
    /// [`KernelError`] where the kernel does not take the sizes, the device or the parameters.
    pub fn setup(
        &self,
        device: &DeviceLimits,
        parameters: &[(String, u64)],
    ) -> Result<LaunchSetup, KernelError> {
        self.visit(device, Configured { device, parameters })?
    }

    /// What a profile of a device with these limits stores choices for it under.
    ///
    /// # Errors
    ///
    /// [`KernelError`] where the kernel does not take the sizes or the device.
    pub fn key(
        &self,
        device: &DeviceLimits,
        policy: Policy,
        objective: Objective,
    ) -> Result<Key, KernelError> {
        self.visit(device, KeyOf { device, policy, objective })?
    }

    /// Bytes that must move at least, on a device with these limits.
    ///
    /// # Errors
    ///
    /// [`KernelError`] where the kernel does not take the sizes or the device.
    pub fn least_bytes(&self, device: &DeviceLimits) -> Result<u128, KernelError> {
        self.visit(device, LeastBytes)
    }

    /// Shows the problem's kernel to `visitor`.
    pub(super) fn visit<V: Visitor>(
        &self,
        device: &DeviceLimits,
        visitor: V,
    ) -> Result<V::Made, KernelError> {
        match self.element {
            ElementType::F16 => self.visit_of::<f16, V>(device, visitor),
            ElementType::Bf16 => self.visit_of::<bf16, V>(device, visitor),
            ElementType::F32 => self.visit_of::<f32, V>(device, visitor),
        }
    }

    fn visit_of<T: Tensorial, V: Visitor>(
        &self,
        device: &DeviceLimits,
        visitor: V,
    ) -> Result<V::Made, KernelError> {
        let element = T::TYPE;
        Ok(match self.sizes {
            Sizes::Argsort([rows, columns]) => {
                let sort = Argsort::new(rows, columns, element, Order::Ascending)?;
                visitor.visit::<T, _, 1>(sort)
            }
            Sizes::BatchedGemm([batch, m, n, k]) => {
                visitor.visit::<T, _, 2>(BatchedGemm::new(batch, m, n, k, element)?)
            }
            Sizes::GetRows([rows, columns, table_rows]) => {
                let get = GetRows::new(rows, columns, table_rows, element, self.index)?;
                visitor.visit::<T, _, 1>(get)
            }
            Sizes::ReflectionPad1d([batch, channels, width, left, right]) => {
                let dims = [batch, channels, width];
                visitor.visit::<T, _, 1>(ReflectionPad1d::new(dims, [left, right], element)?)
            }
            Sizes::RmsNorm([rows, columns]) => {
                visitor.visit::<T, _, 2>(RmsNorm::new(rows, columns, element)?)
            }
            Sizes::Softmax([rows, columns]) => {
                visitor.visit::<T, _, 1>(Softmax::new(rows, columns, element)?)
            }
            Sizes::TemporalAttention([items, heads, frames, head_dim]) => {
                let shape = Shape::new(items, heads, frames, head_dim)?;
                let attention = TemporalAttention::new(shape, element, device)?;
                // The layout that overflows.
                visitor.visit::<T, _, 3>(attention.with_layout(Layout::FoldedY))
            }
            Sizes::UpsampleNearest2d([planes, height, width, out_height, out_width]) => {
                let (input, output) = ([height, width], [out_height, out_width]);
                visitor.visit::<T, _, 1>(UpsampleNearest2d::new(planes, input, output, element)?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use gridguard::ComputeCapability;

    use super::*;

    /// What a problem asks for.
    struct Asked {
        /// Blocks on y or z.
        blocks: u64,
        items: u64,
        /// Elements of the largest tensor.
        elements: u64,
    }

    struct Look;

    impl Visitor for Look {
        type Made = Asked;

        fn visit<T: Tensorial, S: Exercised<T, N>, const N: usize>(self, subject: S) -> Asked {
            let (grid, items) = (subject.request().grid, subject.batch().items());
            let specified = subject.specification();
            let inputs = specified.inputs.map(|input| input.elements(items));
            let out = items * specified.output_per_item;
            let elements = inputs.into_iter().fold(out, u64::max);
            Asked { blocks: grid.y.max(grid.z), items, elements }
        }
    }

    fn asked(problem: &Problem) -> Asked {
        let hopper = DeviceLimits {
            compute_capability: ComputeCapability::new(9, 0),
            max_shared_bytes_per_block_opt_in: 227 << 10,
            ..DeviceLimits::any_device()
        };
        problem.visit(&hopper, Look).expect("the kernel takes it")
    }

    #[test]
    fn shipped_problems_fit_and_most_overflow_a_grid_or_can_be_split_in_many_ways() {
        let all = [Problem::shipped(), Problem::between()].concat();
        let mut overflow = 0;
        for problem in &all {
            let Asked { blocks, items, elements } = asked(problem);
            assert!(items > 1, "{problem}");
            // 1.5 GB of the widest elements, of which there are four bytes.
            let bytes = elements * if problem.dtypes() == "f32" { 4 } else { 2 };
            assert!(bytes <= 1_500_000_000, "{problem}: {bytes} bytes");
            overflow += usize::from(blocks > 65_535);
        }
        assert!(2 * overflow > all.len(), "{overflow} of {}", all.len());
    }

    #[test]
    fn a_launch_is_configured_without_tensors() {
        let problem: Problem = "rms_norm f32 70000x8".parse().expect("a problem");
        let device = DeviceLimits::any_device();
        let configuration = problem.setup(&device, &[]).expect("taken");
        assert_eq!(configuration.batch.items(), 70_000);
        let unknown = problem.setup(&device, &[("warps".to_owned(), 4)]);
        assert!(matches!(unknown, Err(KernelError::UnknownParameter { .. })));
    }

    #[test]
    fn small_problems_are_small_and_some_of_them_overflow_a_grid() {
        let asked: Vec<Asked> = Problem::small().iter().map(asked).collect();
        assert!(asked.iter().all(|asked| asked.elements <= 32_000 * 256));
        assert!(asked.iter().any(|asked| asked.blocks > 65_535));
    }
}
