//! Compares the guard's verdict with the driver's result, and counts.

use std::collections::BTreeMap;

use gridguard::{LaunchRequest, Rule, Violations};
use serde::Serialize;

use super::kernel::KernelUnderTest;
use super::raw::LaunchCall;

/// Disagreements that are kept with all their details.
const DETAILED: usize = 50;

/// Launches that are kept of each wrong prediction.
const EXAMPLES: usize = 3;

/// Results and how often each occurred.
type ResultCounts = BTreeMap<i32, u64>;

/// The comparisons so far.
#[derive(Debug, Default, Serialize)]
pub struct Tally {
    /// Launches given to the driver.
    pub launches: u64,
    /// Launches that the driver accepted.
    pub accepted: u64,
    /// Requests that exceed the driver's 32 bits; the guard must reject them all.
    pub beyond_the_driver: u64,
    /// Launches that only one of guard and driver rejected.
    pub disagreements: u64,
    /// Predicted error codes of launches that break one rule.
    pub single: Predictions,
    /// Predicted error codes of launches that break several rules.
    pub several: Predictions,
    /// Rejected launches without a predicted error code.
    pub unpredicted: u64,
    /// Results of launches that break one rule, by that rule.
    pub answers: BTreeMap<String, ResultCounts>,
    /// Wrong predictions: broken rules and predicted code, by the driver's result.
    pub wrong_answers: BTreeMap<String, ResultCounts>,
    /// The first launches of each wrong prediction.
    pub wrong_examples: BTreeMap<String, Vec<Example>>,
    /// Disagreements by kernel and broken rules.
    pub kinds: BTreeMap<String, u64>,
    /// The first disagreements.
    pub details: Vec<Detail>,
}

/// Predictions of the driver's error code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Predictions {
    /// Predictions made.
    pub made: u64,
    /// Correct predictions.
    pub right: u64,
}

impl Predictions {
    fn add(&mut self, right: bool) {
        self.made += 1;
        self.right += u64::from(right);
    }

    /// Whether every prediction was correct.
    #[must_use]
    pub const fn all_correct(self) -> bool {
        self.made == self.right
    }
}

/// A launch whose result differs from the prediction.
#[derive(Debug, Serialize)]
pub struct Example {
    kernel: String,
    request: String,
    call: String,
}

/// Everything about one disagreement.
#[derive(Debug, Serialize)]
pub struct Detail {
    kernel: String,
    request: String,
    call: String,
    guard: String,
    driver: i32,
    residency: String,
    limits: String,
}

impl Tally {
    /// Counts the driver's `result` of `request`; `None` for a request that no driver call can carry.
    pub fn record(
        &mut self,
        kernel: &KernelUnderTest,
        request: &LaunchRequest,
        call: LaunchCall,
        result: Option<i32>,
    ) {
        let verdict = kernel.verdict(request);
        let Some(result) = result else {
            self.beyond_the_driver += 1;
            if verdict.is_ok() {
                self.disagree(kernel, request, call, &[], "legal", -1);
            }
            return;
        };
        self.launches += 1;
        self.accepted += u64::from(result == 0);
        match verdict {
            Ok(_) if result == 0 => {}
            Ok(_) => self.disagree(kernel, request, call, &[], "legal", result),
            Err(violations) if result == 0 => {
                let rules = rules(&violations);
                self.disagree(kernel, request, call, &rules, &violations.to_string(), result);
            }
            Err(violations) => self.predict(kernel, request, call, &violations, result),
        }
    }

    fn predict(
        &mut self,
        kernel: &KernelUnderTest,
        request: &LaunchRequest,
        call: LaunchCall,
        violations: &Violations,
        result: i32,
    ) {
        let rules = rules(violations);
        let Some(predicted) = violations.driver_code() else {
            self.unpredicted += 1;
            return;
        };
        let right = predicted == result;
        if let Some(cause) = cause(&rules) {
            self.single.add(right);
            let results = self.answers.entry(cause.id().to_owned()).or_default();
            *results.entry(result).or_default() += 1;
        } else {
            self.several.add(right);
        }
        if !right {
            let key = format!("{} as {predicted}", names(&rules));
            let examples = self.wrong_examples.entry(format!("{key}: {result}")).or_default();
            if examples.len() < EXAMPLES {
                let (kernel, call) = (kernel.name.clone(), format!("{call:?}"));
                examples.push(Example { kernel, request: format!("{request:?}"), call });
            }
            *self.wrong_answers.entry(key).or_default().entry(result).or_default() += 1;
        }
    }

    fn disagree(
        &mut self,
        kernel: &KernelUnderTest,
        request: &LaunchRequest,
        call: LaunchCall,
        rules: &[Rule],
        guard: &str,
        driver: i32,
    ) {
        self.disagreements += 1;
        let cluster = if request.cluster.is_some() { ", cluster" } else { "" };
        let cooperative = if request.cooperative { ", cooperative" } else { "" };
        let dependent = if request.dependent { ", dependent" } else { "" };
        let priority = if request.priority.is_some() { ", priority" } else { "" };
        let kind = format!(
            "{}{cluster}{cooperative}{dependent}{priority}: guard [{}], driver {driver}",
            kernel.name,
            names(rules)
        );
        *self.kinds.entry(kind).or_default() += 1;
        if self.details.len() < DETAILED {
            self.details.push(Detail {
                kernel: kernel.name.clone(),
                request: format!("{request:?}"),
                call: format!("{call:?}"),
                guard: guard.to_owned(),
                driver,
                residency: format!("{:?}", kernel.occupancy(request)),
                limits: format!("{:?}", kernel.limits.kernel()),
            });
        }
    }
}

fn rules(violations: &Violations) -> Vec<Rule> {
    let mut rules: Vec<Rule> = violations.iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

fn names(rules: &[Rule]) -> String {
    rules.iter().map(|rule| rule.id()).collect::<Vec<_>>().join("+")
}

/// The broken rule that implies all the other broken ones, if there is one.
pub fn cause(rules: &[Rule]) -> Option<Rule> {
    const BLOCK: Rule = Rule::ThreadsPerBlock;
    const KERNEL: Rule = Rule::KernelThreadsPerBlock;
    let brings = |rule: Rule| match rule {
        Rule::BlockDimX | Rule::BlockDimY => [BLOCK, KERNEL].as_slice(),
        // The driver derives the threads of a kernel from both.
        Rule::ThreadsPerBlock | Rule::RegistersPerBlock => &[KERNEL],
        _ => &[],
    };
    let brought = |rule: &Rule| rules.iter().any(|other| brings(*other).contains(rule));
    let mut causes = rules.iter().filter(|rule| !brought(rule));
    let first = causes.next().copied();
    if causes.next().is_some() { None } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_come_with_another_one_are_no_cause_of_their_own() {
        use Rule::{
            BlockDimX, GridDimY, GridDimZ, KernelThreadsPerBlock, RegistersPerBlock,
            ThreadsPerBlock,
        };
        assert_eq!(cause(&[]), None);
        assert_eq!(cause(&[GridDimY]), Some(GridDimY));
        assert_eq!(cause(&[GridDimY, GridDimZ]), None);
        let threads = [ThreadsPerBlock, KernelThreadsPerBlock];
        assert_eq!(cause(&threads), Some(ThreadsPerBlock));
        assert_eq!(cause(&[BlockDimX, ThreadsPerBlock, KernelThreadsPerBlock]), Some(BlockDimX));
        let registers = [KernelThreadsPerBlock, RegistersPerBlock];
        assert_eq!(cause(&registers), Some(RegistersPerBlock));
        assert_eq!(cause(&[ThreadsPerBlock, KernelThreadsPerBlock, RegistersPerBlock]), None);
    }
}
