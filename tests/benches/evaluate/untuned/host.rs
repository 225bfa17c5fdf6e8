//! The problems on the host.

use std::iter::repeat;

use gridguard::profile::Named;
use gridguard::{Guard, KernelLimits, LaunchLimits, PlannedLaunch, launch_chunk_on_host};
use gridguard_autotune::{FailureKind, MeasureFailure};

use super::problem::UntunedProblem::{self, Blur, Passes, Peaks, Transpose};
use super::problem::index;
use super::workload::BackEnd;

pub(crate) struct OnHost {
    problem: UntunedProblem,
    limits: LaunchLimits,
    input: Vec<f32>,
    pub(crate) output: Vec<f32>,
}

impl OnHost {
    pub(crate) fn new(problem: UntunedProblem, guard: &Guard) -> Self {
        let limits = guard.limits_for(KernelLimits::unknown(problem.kernel()));
        let output = vec![0.0; problem.elements()];
        Self { problem, limits, input: problem.input(), output }
    }
}

impl BackEnd for OnHost {
    fn limits(&self, _: &Named) -> LaunchLimits {
        self.limits.clone()
    }

    fn launch(&mut self, planned: &PlannedLaunch, _: &Named) -> Result<(), MeasureFailure> {
        let each = index(self.problem.elements_per_item());
        let chunk = &planned.chunk;
        let failed = |error| MeasureFailure::new(FailureKind::Launch, format!("{error}"));
        match self.problem {
            Passes { passes, .. } => {
                let pass = |_, row: &mut [f32]| row.iter_mut().for_each(|x| *x = *x * 0.5 + 1.0);
                let mut launch = || launch_chunk_on_host(chunk, &mut self.output, each, &pass);
                (0..passes).try_for_each(|_| launch()).map_err(failed)
            }
            problem => {
                let items = &self.input;
                let compute = |item: u64, out: &mut [f32]| {
                    let input = items.chunks(each).nth(index(item)).unwrap_or_default();
                    for (place, out) in out.iter_mut().enumerate() {
                        *out = result(problem, input, place);
                    }
                };
                launch_chunk_on_host(chunk, &mut self.output, each, &compute).map_err(failed)
            }
        }
    }

    fn clear(&mut self) -> Result<(), MeasureFailure> {
        self.output.fill(0.0);
        Ok(())
    }

    fn wrong(&mut self) -> Result<u64, MeasureFailure> {
        let (problem, each) = (self.problem, index(self.problem.elements_per_item()));
        // Passes have no input.
        let inputs = self.input.chunks(each).chain(repeat(&[][..]));
        let wrong = |(input, output): (&[f32], &[f32])| {
            let is_wrong = |(place, x): &(usize, &f32)| result(problem, input, *place) != **x;
            output.iter().enumerate().filter(is_wrong).count()
        };
        let wrong: usize = inputs.zip(self.output.chunks(each)).map(wrong).sum();
        Ok(u64::try_from(wrong).unwrap_or(u64::MAX))
    }
}

/// The element at `place` of an item's output.
fn result(problem: UntunedProblem, input: &[f32], place: usize) -> f32 {
    let at = |place: usize| input.get(place).copied().unwrap_or(f32::NAN);
    match problem {
        Passes { .. } => problem.expected(),
        Transpose { height, width, .. } => {
            let [height, width] = [index(height), index(width)];
            at(place % height * width + place / height)
        }
        // The sum of an element and its four neighbours. Those beyond an edge are the edge's.
        Blur { height, width, .. } => {
            let [height, width] = [index(height), index(width)];
            let (y, x) = (place / width, place % width);
            let of = |y: usize, x: usize| at(y * width + x);
            let (below, right) = ((y + 1).min(height - 1), (x + 1).min(width - 1));
            of(y, x)
                + of(y.saturating_sub(1), x)
                + of(below, x)
                + of(y, x.saturating_sub(1))
                + of(y, right)
        }
        Peaks { .. } => at(place) + input.iter().copied().fold(f32::MIN, f32::max),
    }
}
