//! Exercises on the host: references under a plan, chunk by chunk.

use std::sync::Arc;

use gridguard::profile::{Key, Named, Objective, Policy};
use gridguard::{Choice, Guard, KernelLimits, LaunchLimits, Plan};

use super::problem::Problem;
use super::subject::{KernelSpec, Output, Tensorial, looked_at, place, same, within};
use super::synthetic::{TILE, synthetic};
use super::visit::{Exercised, Visitor};
use super::{BenchCase, BenchError, LaunchHandle, LaunchSetup};
use crate::compare::{self, Compared as _};
use crate::deviation::Deviation;

/// `problem` on the host, under the limits of `guard`'s device.
///
/// Launch parameters are of device code: on the host there is the default alone.
///
/// # Errors
///
/// [`BenchError::Kernel`] where the kernel does not take the sizes, and
/// [`BenchError::HostMemory`] where there is no room for the tensors.
pub fn on_host(guard: &Arc<Guard>, problem: &Problem) -> Result<Box<dyn BenchCase>, BenchError> {
    problem.visit(guard.limits(), OnHost(guard))?
}

struct OnHost<'a>(&'a Arc<Guard>);

impl Visitor for OnHost<'_> {
    type Made = Result<Box<dyn BenchCase>, BenchError>;

    fn visit<T: Tensorial, S: Exercised<T, N>, const N: usize>(self, subject: S) -> Self::Made {
        Ok(Box::new(HostExercise::new(Arc::clone(self.0), subject)?))
    }
}

/// A kernel's reference with tensors on the host.
struct HostExercise<T: Tensorial, S: KernelSpec<T, N>, const N: usize> {
    guard: Arc<Guard>,
    limits: LaunchLimits,
    subject: S,
    inputs: [Vec<T>; N],
    out: Vec<S::Output>,
    /// The default's output, once it was looked at.
    golden: Option<Vec<S::Output>>,
    prepared: Vec<(S, Plan)>,
}

impl<T: Tensorial, S: KernelSpec<T, N>, const N: usize> HostExercise<T, S, N> {
    fn new(guard: Arc<Guard>, subject: S) -> Result<Self, BenchError> {
        let limits = guard.limits_for(KernelLimits::unknown(S::KERNEL)).with_automatic_opt_in();
        let (items, specified) = (subject.batch().items(), subject.specification());
        let mut inputs = [const { Vec::new() }; N];
        for ((input, made), seed) in specified.inputs.iter().zip(&mut inputs).zip(1..) {
            let (tile, elements) = (synthetic::<T>(TILE, seed), place(input.elements(items)));
            *made = room_for(elements)?;
            made.extend(tile.iter().copied().cycle().take(elements));
        }
        let [poison, _] = S::Output::poisons();
        let elements = specified.output(items);
        let mut out = room_for(elements)?;
        out.resize(elements, poison);
        Ok(Self { guard, limits, subject, inputs, out, golden: None, prepared: Vec::new() })
    }

    fn plan(&self, subject: &S, choice: Choice) -> Result<Plan, BenchError> {
        let (request, batch) = (subject.request(), subject.batch());
        let plan = self.guard.plan(&request, Some(&batch), &self.limits, choice);
        Ok(plan.map_err(crate::error::KernelError::from)?)
    }

    /// Runs a plan over its items; answers the launches and the elements that they wrote.
    fn run(&mut self, subject: &S, plan: &Plan) -> Result<(u64, usize), BenchError> {
        let (items, specified) = (subject.batch().items(), subject.specification());
        let elements = specified.output(items).min(self.out.len());
        let inputs = core::array::from_fn(|n| {
            let (input, elements) = (&self.inputs[n], place(specified.inputs[n].elements(items)));
            input.get(..elements).unwrap_or(input)
        });
        let launches = subject.run_on_host(&self.guard, plan, inputs, &mut self.out[..elements])?;
        Ok((launches, elements))
    }

    fn prepared(&self, LaunchHandle(number): LaunchHandle) -> Result<(S, Plan), BenchError> {
        self.prepared.get(number).cloned().ok_or(BenchError::LaunchHandle(number))
    }

    fn expected(&self, item: u64) -> Vec<f64> {
        let specified = self.subject.specification().inputs;
        let part = |n: usize| self.inputs[n].get(specified[n].part(item)).unwrap_or_default();
        self.subject.expected(core::array::from_fn(part))
    }
}

impl<T: Tensorial, S: KernelSpec<T, N>, const N: usize> BenchCase for HostExercise<T, S, N> {
    fn key(&self, policy: Policy, objective: Objective) -> Result<Key, BenchError> {
        Ok(self.subject.key(self.guard.limits(), policy, objective)?)
    }

    fn shape(&self) -> Named {
        super::shape_of(&self.subject)
    }

    fn least_bytes(&self) -> u128 {
        self.subject.specification().least_bytes
    }

    fn setups(&mut self) -> Result<Vec<LaunchSetup>, BenchError> {
        Ok(vec![LaunchSetup {
            parameters: self.subject.parameters(),
            request: self.subject.request(),
            batch: self.subject.batch(),
            limits: self.limits.clone(),
        }])
    }

    fn prepare(
        &mut self,
        parameters: &[(String, u64)],
        choice: Choice,
        items: Option<u64>,
    ) -> Result<LaunchHandle, BenchError> {
        let subject = self.subject.with_parameters(parameters)?;
        let subject = super::first_items(subject, items)?;
        let plan = self.plan(&subject, choice)?;
        self.prepared.push((subject, plan));
        Ok(LaunchHandle(self.prepared.len() - 1))
    }

    fn launch(&mut self, handle: LaunchHandle) -> Result<u64, BenchError> {
        let (subject, plan) = self.prepared(handle)?;
        Ok(self.run(&subject, &plan)?.0)
    }

    fn verify(&mut self) -> Result<f64, BenchError> {
        let subject = self.subject.clone();
        let plan = self.plan(&subject, Choice::AUTOMATIC)?;
        let [poison, _] = S::Output::poisons();
        self.out.fill(poison);
        self.run(&subject, &plan)?;
        let specified = subject.specification();
        let mut deviation = Deviation::new();
        for item in looked_at(&plan) {
            let item_output =
                self.out.chunks(specified.output(1)).nth(place(item)).unwrap_or_default();
            deviation.add_values(item_output.iter().map(|x| x.value()), &self.expected(item));
        }
        within(&deviation, specified.tolerance)
    }

    fn check(&mut self, handle: LaunchHandle) -> Result<(), BenchError> {
        let (subject, plan) = self.prepared(handle)?;
        if self.golden.is_none() {
            self.verify()?;
            let mut golden = room_for(self.out.len())?;
            golden.extend_from_slice(&self.out);
            self.golden = Some(golden);
        }
        let [_, poison] = S::Output::poisons();
        self.out.fill(poison);
        let (_, elements) = self.run(&subject, &plan)?;
        let golden = self.golden.as_deref().and_then(|golden| golden.get(..elements));
        let difference = compare::reference(&self.out[..elements], golden.unwrap_or_default());
        same(&difference, subject.specification().tolerance)
    }
}

/// An empty vector with room for so many elements.
fn room_for<T>(elements: usize) -> Result<Vec<T>, BenchError> {
    let mut room = Vec::new();
    let wide = |count: usize| u128::try_from(count).unwrap_or(u128::MAX);
    let bytes = wide(elements).saturating_mul(wide(size_of::<T>()));
    room.try_reserve_exact(elements).map_err(|_| BenchError::HostMemory { bytes })?;
    Ok(room)
}

#[cfg(test)]
mod tests {
    use gridguard::{DeviceLimits, Strategy};

    use super::*;
    use crate::element::ElementType;
    use crate::error::KernelError;
    use crate::rms_norm::RmsNorm;

    fn guard() -> Arc<Guard> {
        Arc::new(Guard::host(DeviceLimits::any_device()))
    }

    fn exercise(problem: &str) -> Box<dyn BenchCase> {
        let problem = problem.parse().expect("a problem");
        on_host(&guard(), &problem).expect("taken")
    }

    fn chunks_of(items: u64) -> Choice {
        Choice::at_most(items).strategy(Strategy::Chunked)
    }

    #[test]
    fn every_kernel_meets_its_reference_whole_and_split() {
        for problem in [
            "argsort f32 100x33",
            "batched_gemm bf16 50x5x6x7",
            "get_rows f16 i32 90x16x50",
            "reflection_pad1d f32 40x3x20x2x4",
            "reflection_pad1d f32 40x3x20x0x4",
            "rms_norm f16 100x64",
            "softmax f32 700x77",
            "temporal_attention f16 30x5x8x64",
            "upsample_nearest2d f32 300x4x5x8x11",
        ] {
            let mut exercise = exercise(problem);
            let whole = exercise.prepare(&[], Choice::AUTOMATIC, None).expect("a plan");
            exercise.check(whole).unwrap_or_else(|error| panic!("{problem}: {error}"));
            let [configuration] = &exercise.setups().expect("the default")[..] else {
                panic!("{problem}: the host has no launch parameters");
            };
            let unit = configuration.batch.unit().expect("small");
            let split = exercise.prepare(&[], chunks_of(unit), None).expect("a plan");
            exercise.check(split).unwrap_or_else(|error| panic!("{problem}: {error}"));
            let launches = configuration.batch.items().div_ceil(unit);
            assert_eq!(exercise.launch(split).expect("runs"), launches, "{problem}");
            assert_eq!(
                exercise.key(Policy::default(), Objective::default()).expect("any").kernel,
                problem.split(' ').next().expect("a name")
            );
            assert_eq!(exercise.shape(), problem.parse::<Problem>().expect("a problem").shape());
        }
    }

    #[test]
    fn tensors_that_no_host_has_room_for_are_an_error() {
        let problem: Problem = "rms_norm f16 100000000000000x8".parse().expect("a problem");
        let error = on_host(&guard(), &problem).map(drop).expect_err("1.6 PB");
        assert_eq!(error, BenchError::HostMemory { bytes: 1_600_000_000_000_000 });
    }

    #[test]
    fn a_launch_over_the_first_items_is_checked_over_them_alone() {
        let mut exercise = exercise("rms_norm f32 100x64");
        let part = exercise.prepare(&[], Choice::AUTOMATIC, Some(30)).expect("fewer items");
        assert_eq!(exercise.check(part), Ok(()));
        let error = exercise.prepare(&[], Choice::AUTOMATIC, Some(101));
        assert_eq!(error, Err(BenchError::Items { given: 101, items: 100 }));
    }

    #[test]
    fn parameters_and_handles_that_there_are_not_are_errors() {
        let mut exercise = exercise("rms_norm f32 100x64");
        let error = exercise.prepare(&[("warps".to_owned(), 1)], Choice::AUTOMATIC, None);
        let Err(BenchError::Kernel(KernelError::UnknownParameter { given, .. })) = error else {
            panic!("{error:?}");
        };
        assert_eq!(given, "warps");
        let other = LaunchHandle(3);
        assert_eq!(exercise.launch(other), Err(BenchError::LaunchHandle(3)));
        assert_eq!(exercise.check(other), Err(BenchError::LaunchHandle(3)));
    }

    #[test]
    fn an_output_that_is_not_the_default_s_is_told() {
        let norm = RmsNorm::new(10, 64, ElementType::F32).expect("legal");
        let mut exercise = HostExercise::<f32, _, 2>::new(guard(), norm).expect("small");
        let handle = exercise.prepare(&[], Choice::AUTOMATIC, None).expect("a plan");
        exercise.check(handle).expect("right");
        let golden = exercise.golden.as_mut().expect("kept");
        golden[7] = f32::NAN;
        let Err(BenchError::Mismatch { error, differing, not_finite, elements, .. }) =
            exercise.check(handle)
        else {
            panic!("a NaN is passed over");
        };
        assert_eq!((error, differing, not_finite, elements), (f64::INFINITY, 1, 1, 640));
    }

    #[test]
    fn elements_that_neither_run_has_written_differ() {
        fn differ<O: Output>() {
            let [default, other] = O::poisons();
            assert!(!compare::reference(&[default], &[other]).within(0.0));
        }
        differ::<half::f16>();
        differ::<half::bf16>();
        differ::<f32>();
        differ::<u32>();
    }
}
