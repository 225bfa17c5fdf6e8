//! Bench cases on the host, which run the reference chunk by chunk.

use core::ops::Range;
use std::sync::Arc;

use gridguard::{Choice, DeviceLimits, Guard, KernelLimits, LaunchLimits, Plan};
use gridguard_kernels::compare::{self, Compared, Difference};
use gridguard_kernels::{Element, KernelError, synthetic};

use crate::case::{Backend, BenchCase, Case, LaunchSetup};
use crate::error::{Error, ErrorKind};
use crate::spec::{KernelSpec, PERIOD, SizedProblem, TensorSpec, to_usize};

/// A kernel's reference on the host with inputs of `T`, under the limits of `guard`'s device.
pub(crate) fn host_case<T: Element, K: KernelSpec>(
    problem: &SizedProblem,
    guard: &Arc<Guard>,
) -> Result<Box<dyn BenchCase>, Error> {
    let kernel = K::build(problem, guard.limits())?;
    let backend = HostBackend::<T, K>::new(guard, &kernel, problem)?;
    Ok(Box::new(Case::new(*problem, kernel, backend)))
}

/// The tensors of a problem on the host.
struct HostBackend<T: Element, K: KernelSpec> {
    guard: Arc<Guard>,
    limits: LaunchLimits,
    tensors: TensorSpec,
    inputs: Vec<Vec<T>>,
    /// All outputs of an item, then those of the next.
    out: Vec<K::Output<T>>,
}

impl<T: Element, K: KernelSpec> HostBackend<T, K> {
    fn new(guard: &Arc<Guard>, kernel: &K, problem: &SizedProblem) -> Result<Self, Error> {
        let limits = guard.limits_for(KernelLimits::unknown(K::KERNEL)).with_automatic_opt_in();
        let (items, tensors) = (kernel.batch().items(), K::tensors(problem));
        let mut inputs = Vec::new();
        for (input, seed) in tensors.inputs.iter().zip(1..) {
            let elements = to_usize(input.elements(items));
            let mut memory = with_capacity(elements)?;
            memory.extend(synthetic::<T>(PERIOD, seed).iter().cycle().take(elements));
            inputs.push(memory);
        }
        let elements = to_usize(items * tensors.output_per_item());
        let [poison, _] = K::Output::poisons();
        let mut out = with_capacity(elements)?;
        out.resize(elements, poison);
        Ok(Self { guard: Arc::clone(guard), limits, tensors, inputs, out })
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

    fn tensors(&self) -> &TensorSpec {
        &self.tensors
    }

    /// The default alone: launch parameters are the device code's.
    fn setups(&self, kernel: &K) -> Result<Vec<LaunchSetup>, Error> {
        Ok(vec![LaunchSetup::new(kernel, self.limits.clone())])
    }

    fn prepare(&self, kernel: K, choice: Choice) -> Result<(K, Plan), Error> {
        let (request, batch) = kernel.grid();
        let plan = self.guard.plan(&request, Some(&batch), &self.limits, choice);
        Ok((kernel, plan.map_err(KernelError::from)?))
    }

    fn plan((_, plan): &(K, Plan)) -> &Plan {
        plan
    }

    fn launch(&mut self, (kernel, plan): &(K, Plan)) -> Result<u64, Error> {
        let (inputs, tensors) = (&self.inputs, &self.tensors);
        let run = |item: u64, out: &mut [K::Output<T>]| {
            let parts = tensors.inputs.iter().zip(inputs);
            let parts: Vec<&[T]> =
                parts.map(|(input, all)| all.get(input.part(item)).unwrap_or_default()).collect();
            for (out, value) in out.iter_mut().zip(kernel.expected(&parts)) {
                *out = Compared::nearest(value);
            }
        };
        let elements = to_usize(plan.items() * self.tensors.output_per_item()).min(self.out.len());
        let (out, per_item) = (&mut self.out[..elements], to_usize(self.tensors.output_per_item()));
        Ok(self.guard.launch_on_host(plan, out, per_item, run).map_err(KernelError::from)?)
    }

    fn fill_output(&mut self, element: K::Output<T>) -> Result<(), Error> {
        self.out.fill(element);
        Ok(())
    }

    fn inputs(&self, parts: Vec<Range<usize>>) -> Result<Vec<Vec<T>>, Error> {
        let parts = self.inputs.iter().zip(parts);
        Ok(parts.map(|(memory, part)| memory.get(part).unwrap_or_default().to_vec()).collect())
    }

    fn output(&self, item: u64) -> Result<Vec<K::Output<T>>, Error> {
        let [start, end] =
            [item, item + 1].map(|item| to_usize(item * self.tensors.output_per_item()));
        let part = start..end;
        Ok(self.out.get(part).unwrap_or_default().to_vec())
    }

    fn copy_output(&self) -> Result<Self::Copy, Error> {
        let mut copy = with_capacity(self.out.len())?;
        copy.extend_from_slice(&self.out);
        Ok(copy)
    }

    fn difference(&self, items: u64, golden: &Self::Copy) -> Result<Difference, Error> {
        let elements = to_usize(items * self.tensors.output_per_item());
        let [out, golden] =
            [&self.out, golden].map(|tensor| tensor.get(..elements).unwrap_or_default());
        Ok(compare::reference(out, golden))
    }
}

/// An empty vector with room for `elements` elements.
fn with_capacity<T>(elements: usize) -> Result<Vec<T>, Error> {
    let mut memory = Vec::new();
    let wide = |count: usize| u128::try_from(count).unwrap_or(u128::MAX);
    let bytes = wide(elements).saturating_mul(wide(size_of::<T>()));
    memory.try_reserve_exact(elements).map_err(|_| {
        let message =
            format!("the host cannot allocate {bytes} bytes for a tensor: use fewer items");
        Error::new(ErrorKind::HostMemory, message)
    })?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use gridguard::{ComputeCapability, Strategy};
    use gridguard_kernels::ElementType;
    use gridguard_kernels::rms_norm::RmsNorm;

    use super::*;
    use crate::case::unknown_handle;
    use crate::{LaunchHandle, Problem};

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
            "geglu f32 100x24",
            "geglu f16 30x5",
            "layer_norm bf16 100x40",
            "rms_norm f16 100x64",
            "softmax f32 700x77",
            "temporal_attention f16 30x5x8x64",
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
        assert_eq!(*error.kind(), ErrorKind::HostMemory);
        assert_eq!(
            error.to_string(),
            "the host cannot allocate 1600000000000000 bytes for a tensor: use fewer items"
        );
    }

    #[test]
    fn a_launch_over_the_first_items_is_checked_over_those_only() {
        let mut case = case("rms_norm f32 100x64");
        let part = case.prepare(&[], Choice::AUTOMATIC, Some(30)).expect("fewer items");
        assert_eq!(case.check(part), Ok(true));
        let error = case.prepare(&[], Choice::AUTOMATIC, Some(101)).expect_err("too many");
        assert_eq!(*error.kind(), ErrorKind::Launch);
        assert_eq!(error.to_string(), "101 items requested, the problem has 100");
    }

    #[test]
    fn unknown_parameters_and_handles_are_errors() {
        let mut case = case("rms_norm f32 100x64");
        let error = case.prepare(&[("warps".to_owned(), 1)], Choice::AUTOMATIC, None);
        let error = error.expect_err("has none");
        let ErrorKind::Kernel(KernelError::UnknownParameter { given, .. }) = error.kind() else {
            panic!("{error:?}");
        };
        assert_eq!(given, "warps");
        let unknown = unknown_handle(3);
        assert_eq!(unknown.to_string(), "no launch was prepared with handle 3");
        assert_eq!(case.launch(LaunchHandle(3)), Err(unknown.clone()));
        assert_eq!(case.check(LaunchHandle(3)), Err(unknown));
    }

    #[test]
    fn an_output_that_differs_from_the_default_is_an_error() {
        let norm = RmsNorm::new(10, 64, ElementType::F32).expect("legal");
        let problem = SizedProblem { element: ElementType::F32, sizes: [10, 64, 0, 0] };
        let backend = HostBackend::<f32, _>::new(&guard(), &norm, &problem).expect("small");
        let mut case = Case::new(problem, norm, backend);
        let handle = case.prepare(&[], Choice::AUTOMATIC, None).expect("a plan");
        case.check(handle).expect("right");
        let golden = case.golden.as_mut().expect("kept");
        golden[5] = f32::from_bits(golden[5].to_bits() ^ 1);
        assert_eq!(case.check(handle), Ok(false), "the last bit is within the tolerance");
        let golden = case.golden.as_mut().expect("kept");
        golden[7] = f32::NAN;
        let error = case.check(handle).expect_err("a NaN was ignored");
        assert_eq!(*error.kind(), ErrorKind::Mismatch);
        assert_eq!(
            error.to_string(),
            "the output differs from the default's: the relative error is inf, the tolerance 1e-6; \
             2 of 640 elements differ, 1 of them are not finite"
        );
    }
}
