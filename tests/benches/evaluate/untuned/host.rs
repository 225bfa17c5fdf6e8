//! The problems on the host.

use gridguard::profile::Named;
use gridguard::{Guard, KernelLimits, LaunchLimits, PlannedLaunch, launch_chunk_on_host};
use gridguard_autotune::{FailureKind, MeasureFailure};

use super::problem::UntunedProblem::{self, Passes, Transpose};
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
            Transpose { height, width, .. } => {
                let input = &self.input;
                let transpose = |item: u64, out: &mut [f32]| {
                    let of_item = input.iter().skip(index(item) * each).take(each);
                    for (place, x) in of_item.enumerate() {
                        if let Some(out) = out.get_mut(transposed([height, width], place)) {
                            *out = *x;
                        }
                    }
                };
                launch_chunk_on_host(chunk, &mut self.output, each, &transpose).map_err(failed)
            }
        }
    }

    fn clear(&mut self) -> Result<(), MeasureFailure> {
        self.output.fill(0.0);
        Ok(())
    }

    fn wrong(&mut self) -> Result<u64, MeasureFailure> {
        let wrong = match self.problem {
            Passes { .. } => {
                let expected = self.problem.expected();
                self.output.iter().filter(|x| **x != expected).count()
            }
            Transpose { height, width, .. } => {
                let each = index(height * width);
                let items = self.input.chunks(each).zip(self.output.chunks(each));
                let misplaced = |(input, output): (&[f32], &[f32])| {
                    let is_wrong = |(place, x): &(usize, &f32)| {
                        output.get(transposed([height, width], *place)) != Some(*x)
                    };
                    input.iter().enumerate().filter(is_wrong).count()
                };
                items.map(misplaced).sum()
            }
        };
        Ok(u64::try_from(wrong).unwrap_or(u64::MAX))
    }
}

/// Where the transposition of a matrix puts the element at `place`.
fn transposed([height, width]: [u64; 2], place: usize) -> usize {
    let [height, width] = [index(height), index(width)];
    place % width * height + place / width
}
