//! Holds the guard's verdict against the driver's answer and keeps count.

use std::collections::BTreeMap;

use gridguard::{LaunchRequest, Rule, Violations};
use serde::Serialize;

use super::raw::Way;
use super::subject::Subject;

/// Disagreements that are kept with all their details.
const DETAILED: usize = 50;

/// Launches that are kept of each wrong prediction.
const EXAMPLES: usize = 3;

/// How often each answer came.
type Answers = BTreeMap<i32, u64>;

/// What came of all launches so far.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Tally {
    /// Launches that the driver was given.
    pub(crate) launches: u64,
    /// Of these, those that it took.
    pub(crate) accepted: u64,
    /// Requests that no driver call can carry, all to be rejected by the guard.
    pub(crate) beyond_the_driver: u64,
    /// Where only one of guard and driver refused.
    pub(crate) disagreements: u64,
    /// The code predicted where one rule is broken.
    pub(crate) single: Predictions,
    /// The code predicted where several rules are.
    pub(crate) several: Predictions,
    /// Refused launches to which no answer was predicted.
    pub(crate) unpredicted: u64,
    /// Launches that break this one rule, by the driver's answer.
    pub(crate) answers: BTreeMap<String, Answers>,
    /// Broken rules and the predicted answer, by the driver's answer where it is another.
    pub(crate) wrong_answers: BTreeMap<String, Answers>,
    /// The first launches of each of these, by the driver's answer too.
    pub(crate) wrong_examples: BTreeMap<String, Vec<Example>>,
    /// Disagreements by kernel and broken rules.
    pub(crate) kinds: BTreeMap<String, u64>,
    /// The first disagreements.
    pub(crate) details: Vec<Detail>,
}

/// Predictions of the driver's code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Predictions {
    pub(crate) made: u64,
    pub(crate) right: u64,
}

impl Predictions {
    fn add(&mut self, right: bool) {
        self.made += 1;
        self.right += u64::from(right);
    }

    pub(crate) const fn all_right(self) -> bool {
        self.made == self.right
    }
}

/// A launch whose answer was another than predicted.
#[derive(Debug, Serialize)]
pub(crate) struct Example {
    kernel: String,
    request: String,
    call: String,
}

/// All about one disagreement.
#[derive(Debug, Serialize)]
pub(crate) struct Detail {
    kernel: String,
    request: String,
    call: String,
    guard: String,
    driver: i32,
    residency: String,
    limits: String,
}

impl Tally {
    /// Counts the driver's `answer` to `request`, and nothing for one that it cannot be given.
    pub(crate) fn judge(
        &mut self,
        subject: &Subject,
        request: &LaunchRequest,
        way: Way,
        answer: Option<i32>,
    ) {
        let verdict = subject.verdict(request);
        let Some(answer) = answer else {
            self.beyond_the_driver += 1;
            if verdict.is_ok() {
                self.disagree(subject, request, way, &[], "legal", -1);
            }
            return;
        };
        self.launches += 1;
        self.accepted += u64::from(answer == 0);
        match verdict {
            Ok(_) if answer == 0 => {}
            Ok(_) => self.disagree(subject, request, way, &[], "legal", answer),
            Err(violations) if answer == 0 => {
                let rules = rules(&violations);
                self.disagree(subject, request, way, &rules, &violations.to_string(), answer);
            }
            Err(violations) => self.predict(subject, request, way, &violations, answer),
        }
    }

    fn predict(
        &mut self,
        subject: &Subject,
        request: &LaunchRequest,
        way: Way,
        violations: &Violations,
        answer: i32,
    ) {
        let rules = rules(violations);
        let Some(predicted) = violations.driver_code(request) else {
            self.unpredicted += 1;
            return;
        };
        let right = predicted == answer;
        if let Some(cause) = cause(&rules) {
            self.single.add(right);
            let answers = self.answers.entry(cause.id().to_owned()).or_default();
            *answers.entry(answer).or_default() += 1;
        } else {
            self.several.add(right);
        }
        if !right {
            let key = format!("{} as {predicted}", names(&rules));
            let examples = self.wrong_examples.entry(format!("{key}: {answer}")).or_default();
            if examples.len() < EXAMPLES {
                let (kernel, call) = (subject.name.clone(), format!("{way:?}"));
                examples.push(Example { kernel, request: format!("{request:?}"), call });
            }
            *self.wrong_answers.entry(key).or_default().entry(answer).or_default() += 1;
        }
    }

    fn disagree(
        &mut self,
        subject: &Subject,
        request: &LaunchRequest,
        way: Way,
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
            subject.name,
            names(rules)
        );
        *self.kinds.entry(kind).or_default() += 1;
        if self.details.len() < DETAILED {
            self.details.push(Detail {
                kernel: subject.name.clone(),
                request: format!("{request:?}"),
                call: format!("{way:?}"),
                guard: guard.to_owned(),
                driver,
                residency: format!("{:?}", subject.occupancy(request)),
                limits: format!("{:?}", subject.limits.kernel()),
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

/// The one broken rule that brings all the others with it, where there is one.
pub(crate) fn cause(rules: &[Rule]) -> Option<Rule> {
    const BLOCK: Rule = Rule::ThreadsPerBlock;
    const KERNEL: Rule = Rule::KernelThreadsPerBlock;
    let brings = |rule: Rule| match rule {
        Rule::BlockDimX | Rule::BlockDimY => [BLOCK, KERNEL].as_slice(),
        // The driver takes both into what it says of a kernel's threads.
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
