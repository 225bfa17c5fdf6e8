//! The workload of a function.

use std::collections::HashMap;

use gridguard::Plan;

use super::trial::{Trial, compare};
use crate::candidate::Candidate;
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::measure::{Portion, Workload};
use crate::space::Space;

pub(super) struct FnWorkload<F> {
    items: u64,
    space: Space,
    tolerance: f64,
    /// The reference, once it is known.
    expected: Option<Vec<f64>>,
    /// Those of a guarded launch. Without one, no candidate is looked up while it is timed.
    plans: HashMap<Candidate, Plan>,
    launch: F,
}

impl<F: FnMut(&mut Trial<'_>) -> Measured<()>> FnWorkload<F> {
    pub(super) fn new(
        items: u64,
        space: Space,
        tolerance: f64,
        expected: Option<Vec<f64>>,
        launch: F,
    ) -> Self {
        Self { items, space, tolerance, expected, plans: HashMap::new(), launch }
    }

    fn call(&mut self, candidate: &Candidate, is_check: bool) -> Measured<Option<Vec<f64>>> {
        let plan = self.plans.get(candidate);
        let mut trial = Trial { candidate, items: self.items, plan, is_check, output: None };
        (self.launch)(&mut trial)?;
        Ok(trial.output)
    }

    fn output(&mut self, candidate: &Candidate) -> Measured<Vec<f64>> {
        let output = self.call(candidate, true)?.unwrap_or_default();
        if output.is_empty() {
            let message = "the function passed on no output: call Trial::output";
            return Err(MeasureFailure::new(FailureKind::Mismatch, message));
        }
        Ok(output)
    }

    /// The reference: the given one, or the output of the default, which must be the same twice.
    fn expect(&mut self) -> Measured<Vec<f64>> {
        if let Some(expected) = self.expected.take() {
            return Ok(expected);
        }
        let none = || MeasureFailure::new(FailureKind::Illegal, "there is no default");
        let default = self.space.default().cloned().ok_or_else(none)?;
        self.prepare(&default)?;
        let (first, second) = (self.output(&default)?, self.output(&default)?);
        compare(&second, &first, self.tolerance).map_err(|failure| {
            let message = format!(
                "the default's second run gave another output than its first: restore what it changes \
                 before each check; {failure}"
            );
            MeasureFailure::new(FailureKind::Mismatch, message)
        })?;
        Ok(first)
    }
}

impl<F: FnMut(&mut Trial<'_>) -> Measured<()>> Workload for FnWorkload<F> {
    fn prepare(&mut self, candidate: &Candidate) -> Measured<()> {
        if let Some(plan) = self.space.plan(candidate) {
            self.plans.insert(candidate.clone(), plan);
        }
        Ok(())
    }

    fn launch(&mut self, candidate: &Candidate, _: Portion) -> Measured<()> {
        self.call(candidate, false).map(drop)
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        let expected = self.expect()?;
        let output = self.output(candidate);
        let compared = output.and_then(|output| compare(&output, &expected, self.tolerance));
        self.expected = Some(expected);
        compared
    }
}
