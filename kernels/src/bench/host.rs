//! Bench cases on the host, which run the reference chunk by chunk.

use core::ops::Range;
use std::sync::Arc;

use gridguard::{Choice, DeviceLimits, Guard, KernelLimits, LaunchLimits, Plan};

use super::case::{Backend, BenchCase, BenchError, Case, LaunchSetup};
use super::spec::{KernelSpec, SizedProblem};
use super::synthetic::{PERIOD, synthetic};
use crate::compare::{self, Compared as _, Difference, store};
use crate::element::{Element, to_usize};
use crate::error::KernelError;

/// A kernel's reference on the host with inputs of `T`, under the limits of `guard`'s device.
pub(super) fn host_case<T: Element, K: KernelSpec>(
    problem: &SizedProblem,
    guard: &Arc<Guard>,
) -> Result<Box<dyn BenchCase>, BenchError> {
    let kernel = K::build(problem, guard.limits())?;
    let backend = HostBackend::<T, K>::new(guard, &kernel)?;
    Ok(Box::new(Case::new(*problem, kernel, backend)))
}

/// The tensors of a problem on the host.
struct HostBackend<T: Element, K: KernelSpec> {
    guard: Arc<Guard>,
    limits: LaunchLimits,
    inputs: Vec<Vec<T>>,
    /// All outputs of an item, then those of the next.
    out: Vec<K::Output<T>>,
    output_per_item: u64,
}

impl<T: Element, K: KernelSpec> HostBackend<T, K> {
    fn new(guard: &Arc<Guard>, kernel: &K) -> Result<Self, BenchError> {
        let limits = guard.limits_for(KernelLimits::unknown(K::KERNEL)).with_automatic_opt_in();
        let (items, tensors) = (kernel.batch().items(), kernel.tensors());
        let mut inputs = Vec::new();
        for (input, seed) in tensors.inputs.iter().zip(1..) {
            let elements = to_usize(input.elements(items));
            let mut memory = with_capacity(elements)?;
            memory.extend(synthetic::<T>(PERIOD, seed).iter().cycle().take(elements));
            inputs.push(memory);
        }
        let output_per_item = tensors.output_per_item();
        let elements = to_usize(items * output_per_item);
        let [poison, _] = K::Output::poisons();
        let mut out = with_capacity(elements)?;
        out.resize(elements, poison);
        Ok(Self { guard: Arc::clone(guard), limits, inputs, out, output_per_item })
    }
}

impl<T: Element, K: KernelSpec> Backend for HostBackend<T, K> {
    type Kernel = K;
    type Element = T;
    type Prepared = (K, Plan);
    type Copy = Vec<K::Output<T>>;

    fn device(&self) -> &DeviceLimits {
        self.guard.limits()
    }

    /// The default alone: launch parameters are the device code's.
    fn setups(&self, kernel: &K) -> Result<Vec<LaunchSetup>, BenchError> {
        Ok(vec![LaunchSetup::new(kernel, self.limits.clone())])
    }

    fn prepare(&self, kernel: K, choice: Choice) -> Result<(K, Plan), BenchError> {
        let (request, batch) = kernel.grid();
        let plan = self.guard.plan(&request, Some(&batch), &self.limits, choice);
        Ok((kernel, plan.map_err(KernelError::from)?))
    }

    fn plan((_, plan): &(K, Plan)) -> &Plan {
        plan
    }

    fn launch(&mut self, (kernel, plan): &(K, Plan)) -> Result<u64, BenchError> {
        let (inputs, tensors) = (&self.inputs, kernel.tensors());
        let run = |item: u64, out: &mut [K::Output<T>]| {
            let parts = tensors.inputs.iter().zip(inputs);
            let parts: Vec<&[T]> =
                parts.map(|(input, all)| all.get(input.part(item)).unwrap_or_default()).collect();
            store(kernel.expected(&parts), out);
        };
        let elements = to_usize(plan.items() * self.output_per_item).min(self.out.len());
        let (out, per_item) = (&mut self.out[..elements], to_usize(self.output_per_item));
        Ok(self.guard.launch_on_host(plan, out, per_item, run).map_err(KernelError::from)?)
    }

    fn fill_output(&mut self, element: K::Output<T>) -> Result<(), BenchError> {
        self.out.fill(element);
        Ok(())
    }

    fn inputs(&self, parts: Vec<Range<usize>>) -> Result<Vec<Vec<T>>, BenchError> {
        let parts = self.inputs.iter().zip(parts);
        Ok(parts.map(|(memory, part)| memory.get(part).unwrap_or_default().to_vec()).collect())
    }

    fn output(&self, item: u64) -> Result<Vec<K::Output<T>>, BenchError> {
        let [start, end] = [item, item + 1].map(|item| to_usize(item * self.output_per_item));
        let part = start..end;
        Ok(self.out.get(part).unwrap_or_default().to_vec())
    }

    fn copy_output(&self) -> Result<Self::Copy, BenchError> {
        let mut copy = with_capacity(self.out.len())?;
        copy.extend_from_slice(&self.out);
        Ok(copy)
    }

    fn difference(&self, items: u64, golden: &Self::Copy) -> Result<Difference, BenchError> {
        let elements = to_usize(items * self.output_per_item);
        let [out, golden] =
            [&self.out, golden].map(|tensor| tensor.get(..elements).unwrap_or_default());
        Ok(compare::reference(out, golden))
    }
}

/// An empty vector with room for `elements` elements.
fn with_capacity<T>(elements: usize) -> Result<Vec<T>, BenchError> {
    let mut memory = Vec::new();
    let wide = |count: usize| u128::try_from(count).unwrap_or(u128::MAX);
    let bytes = wide(elements).saturating_mul(wide(size_of::<T>()));
    memory.try_reserve_exact(elements).map_err(|_| BenchError::HostMemory { bytes })?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use gridguard::{ComputeCapability, Strategy};

    use super::*;
    use crate::bench::{LaunchHandle, Problem};
    use crate::element::ElementType;
    use crate::index::IndexType;
    use crate::rms_norm::RmsNorm;

    fn guard() -> Arc<Guard> {
        // The gradients of attention need tensor cores.
        let compute_capability = ComputeCapability::new(9, 0);
        let limits = DeviceLimits { compute_capability, ..DeviceLimits::any_device() };
        Arc::new(Guard::host(limits))
    }

    fn case(problem: &str) -> Box<dyn BenchCase> {
        let problem: Problem = problem.parse().expect("a problem");
        problem.on_host(&guard()).expect("supported")
    }

    fn chunks_of(items: u64) -> Choice {
        Choice::at_most(items).strategy(Strategy::Chunked)
    }

    #[test]
    fn every_kernel_matches_its_reference_whole_and_split() {
        for problem in [
            "argsort f32 100x33",
            "attention_backward bf16 30x5x8x64",
            "batched_gemm bf16 50x5x6x7",
            "geglu f32 100x24",
            "geglu f16 30x5",
            "get_rows f16 i32 90x16x50",
            "layer_norm bf16 100x40",
            "reflection_pad1d f32 40x3x20x2x4",
            "reflection_pad1d f32 40x3x20x0x4",
            "rms_norm f16 100x64",
            "softmax f32 700x77",
            "temporal_attention f16 30x5x8x64",
            "upsample_nearest2d f32 300x4x5x8x11",
        ] {
            let mut case = case(problem);
            let whole = case.prepare(&[], Choice::AUTOMATIC, None).expect("a plan");
            case.check(whole).unwrap_or_else(|error| panic!("{problem}: {error}"));
            let [setup] = &case.setups().expect("the default")[..] else {
                panic!("{problem}: the host has no launch parameters");
            };
            let unit = setup.batch.unit().expect("small");
            let split = case.prepare(&[], chunks_of(unit), None).expect("a plan");
            case.check(split).unwrap_or_else(|error| panic!("{problem}: {error}"));
            let launches = setup.batch.items().div_ceil(unit);
            assert_eq!(case.launch(split).expect("runs"), launches, "{problem}");
        }
    }

    #[test]
    fn tensors_too_large_for_any_host_are_an_error() {
        let problem: Problem = "rms_norm f16 100000000000000x8".parse().expect("a problem");
        let error = problem.on_host(&guard()).map(drop).expect_err("1.6 PB");
        assert_eq!(error, BenchError::HostMemory { bytes: 1_600_000_000_000_000 });
    }

    #[test]
    fn a_launch_over_the_first_items_is_checked_over_those_only() {
        let mut case = case("rms_norm f32 100x64");
        let part = case.prepare(&[], Choice::AUTOMATIC, Some(30)).expect("fewer items");
        assert_eq!(case.check(part), Ok(()));
        let error = case.prepare(&[], Choice::AUTOMATIC, Some(101));
        assert_eq!(error, Err(BenchError::Items { given: 101, items: 100 }));
    }

    #[test]
    fn unknown_parameters_and_handles_are_errors() {
        let mut case = case("rms_norm f32 100x64");
        let error = case.prepare(&[("warps".to_owned(), 1)], Choice::AUTOMATIC, None);
        let Err(BenchError::Kernel(KernelError::UnknownParameter { given, .. })) = error else {
            panic!("{error:?}");
        };
        assert_eq!(given, "warps");
        let other = LaunchHandle(3);
        assert_eq!(case.launch(other), Err(BenchError::Handle(3)));
        assert_eq!(case.check(other), Err(BenchError::Handle(3)));
    }

    #[test]
    fn an_output_that_differs_from_the_default_is_an_error() {
        let norm = RmsNorm::new(10, 64, ElementType::F32).expect("legal");
        let backend = HostBackend::<f32, _>::new(&guard(), &norm).expect("small");
        let (element, index) = (ElementType::F32, IndexType::I64);
        let problem = SizedProblem { element, index, sizes: [10, 64, 0, 0, 0] };
        let mut case = Case::new(problem, norm, backend);
        let handle = case.prepare(&[], Choice::AUTOMATIC, None).expect("a plan");
        case.check(handle).expect("right");
        let golden = case.golden.as_mut().expect("kept");
        golden[7] = f32::NAN;
        let Err(BenchError::Mismatch { error, differing, not_finite, elements, .. }) =
            case.check(handle)
        else {
            panic!("a NaN was ignored");
        };
        assert_eq!((error, differing, not_finite, elements), (f64::INFINITY, 1, 1, 640));
    }

    #[test]
    fn elements_written_by_neither_run_differ() {
        fn differ<O: compare::Compared>() {
            let [default, other] = O::poisons();
            assert!(!compare::reference(&[default], &[other]).within(0.0));
        }
        differ::<half::f16>();
        differ::<half::bf16>();
        differ::<f32>();
        differ::<u32>();
    }
}
