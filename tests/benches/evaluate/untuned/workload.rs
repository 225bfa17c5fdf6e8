//! The problems as workloads, whatever holds their tensors.

use std::collections::HashMap;

use gridguard::profile::Named;
use gridguard::{LaunchLimits, Plan, PlannedLaunch};
use gridguard_autotune::{Candidate, FailureKind, LaunchConfig, MeasureFailure, Portion, Workload};

use super::problem::UntunedProblem;

/// What holds the tensors of a problem.
pub(crate) trait BackEnd {
    /// The limits of the kernel with these launch parameters.
    fn limits(&self, parameters: &Named) -> LaunchLimits;

    /// Runs one launch of a plan, or all passes over its chunk.
    fn launch(&mut self, planned: &PlannedLaunch, parameters: &Named)
    -> Result<(), MeasureFailure>;

    /// Fills the output with zeros.
    fn clear(&mut self) -> Result<(), MeasureFailure>;

    /// The elements of the output that are wrong.
    fn wrong(&mut self) -> Result<u64, MeasureFailure>;
}

pub(crate) struct UntunedWorkload<B> {
    problem: UntunedProblem,
    plans: HashMap<Candidate, Plan>,
    pub(crate) back_end: B,
}

impl<B: BackEnd> UntunedWorkload<B> {
    pub(crate) fn new(problem: UntunedProblem, back_end: B) -> Self {
        Self { problem, plans: HashMap::new(), back_end }
    }
}

impl<B: BackEnd> Workload for UntunedWorkload<B> {
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
        let configuration = |parameters: Named| {
            let limits = self.back_end.limits(&parameters);
            self.problem.configuration(parameters, limits)
        };
        Ok(self.problem.parameters().into_iter().map(configuration).collect())
    }

    fn prepare(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        let limits = self.back_end.limits(&candidate.parameters);
        let LaunchConfig { request, batch, limits, .. } =
            self.problem.configuration(candidate.parameters.clone(), limits);
        let plan = Plan::new(&request, batch.as_ref(), &limits, candidate.choice.into())?;
        self.plans.insert(candidate.clone(), plan);
        Ok(())
    }

    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure> {
        let unprepared = || MeasureFailure::new(FailureKind::Launch, "it was not prepared");
        let plan = self.plans.get(candidate).ok_or_else(unprepared)?;
        let (most, least) = match portion {
            Portion::Sequence => (usize::MAX, 0),
            Portion::LargestLaunch => (1, plan.largest_chunk()),
        };
        let launches = plan.launches().filter(|planned| planned.chunk.items >= least).take(most);
        for planned in launches {
            self.back_end.launch(&planned, &candidate.parameters)?;
        }
        Ok(())
    }

    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.back_end.clear()?;
        self.launch(candidate, Portion::Sequence)?;
        match self.back_end.wrong()? {
            0 => Ok(()),
            wrong => {
                let of = self.problem.elements();
                let message = format!("{wrong} of {of} elements are wrong");
                Err(MeasureFailure::new(FailureKind::Mismatch, message))
            }
        }
    }
}
