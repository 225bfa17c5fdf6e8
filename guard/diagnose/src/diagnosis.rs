//! Diagnoses: what a failure means, its causes ranked by evidence, and commands to run next.

use core::fmt;

use super::codes::commands::CHECK;
use super::evidence::{Evidence, Verdict, ViolatedRule};
use super::failure::{Hint, KnownCause};
use super::failure_id::FailureId;

/// What a failure means and what probably caused it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Diagnosis {
    /// The failure.
    pub failure: FailureId,
    /// What it means.
    pub meaning: &'static str,
    /// Whether the context is lost: every later CUDA call in the process returns an error.
    pub sticky: bool,
    /// Whether an unrelated later call usually reports it, not the one that caused it.
    pub late: bool,
    /// What the failure is not, and why.
    pub not: Vec<String>,
    /// Possible causes, the likeliest first.
    pub causes: Vec<Cause>,
    /// Commands that reveal more.
    pub commands: Vec<String>,
}

/// A possible cause and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Cause {
    /// The cause.
    pub what: String,
    /// The evidence for it, where there is some.
    pub why_likely: Option<String>,
    /// How to fix it.
    pub remedy: String,
}

/// Explains `failure`: causes that `evidence` supports come first, and those that it excludes are
/// listed as what the failure is not.
///
/// ```
/// use gridguard_diagnose::{Evidence, FailureId, diagnose};
///
/// let evidence = Evidence { visible_devices: Some(0), ..Evidence::default() };
/// let diagnosis = diagnose(&FailureId::from_code(100), &evidence);
/// assert_eq!(diagnosis.causes[0].why_likely.as_deref(), Some("the driver reports 0 devices"));
/// ```
#[must_use]
pub fn diagnose(failure: &FailureId, evidence: &Evidence) -> Diagnosis {
    let entry = failure.entry();
    let mut not: Vec<String> = entry.mistaken_for.into_iter().map(String::from).collect();
    let mut likely = violated_rules(failure, evidence);
    let has_rules = !likely.is_empty();
    let mut open = Vec::new();
    for known in entry.known_causes() {
        if matches!(known.hint, Some(Hint::Sizes | Hint::Rules)) && has_rules {
            // The violated rules say it precisely.
            continue;
        }
        match known.hint.and_then(|hint| evidence.weigh(hint)) {
            Some(Verdict::Likely(why)) => likely.push(Cause::known(known, Some(why))),
            Some(Verdict::Excluded(why)) => not.push(why),
            None => open.push(Cause::known(known, None)),
        }
    }
    likely.append(&mut open);
    let command = |command: &&str| match (*command, &evidence.launch, &evidence.device_name) {
        (CHECK, Some(launch), Some(name)) => format!("gridguard check --gpu '{name}' {launch}"),
        (CHECK, Some(launch), None) => format!("gridguard check --device 0 {launch}"),
        (other, ..) => other.to_owned(),
    };
    Diagnosis {
        failure: *failure,
        meaning: entry.meaning,
        sticky: entry.sticky,
        late: entry.late,
        not,
        causes: likely,
        commands: entry.commands.iter().map(command).collect(),
    }
}

impl Cause {
    fn known(known: &KnownCause, why_likely: Option<String>) -> Self {
        Self { what: known.what.into(), why_likely, remedy: known.remedy.into() }
    }

    fn violated(rule: &ViolatedRule) -> Self {
        let ViolatedRule { id, what, remedy, codes: _ } = rule;
        let why = format!("the launch violates rule {id}");
        Self { what: what.clone(), why_likely: Some(why), remedy: remedy.clone() }
    }
}

/// The violated rules that CUDA reports as this very failure.
fn violated_rules(failure: &FailureId, evidence: &Evidence) -> Vec<Cause> {
    let Some(number) = failure.number().filter(|_| failure.is_cuda()) else {
        return Vec::new();
    };
    let rules = evidence.violated_rules.iter().flatten();
    rules.filter(|rule| rule.codes.contains(&number)).map(Cause::violated).collect()
}

impl fmt::Display for Diagnosis {
    /// Several lines: name, meaning, when it is reported, what it is not, causes, commands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failure, meaning, sticky, late, not, causes, commands } = self;
        write!(f, "{failure}")?;
        if let Some(name) = failure.entry().runtime_name {
            write!(f, ", {name} in the runtime")?;
        }
        if let Some(message) = failure.entry().messages.first() {
            write!(f, ": \"{message}\"")?;
        }
        write!(f, "\n  {meaning}")?;
        if *late {
            f.write_str("\n  reported late, often by a call that is not at fault")?;
        }
        if *sticky {
            f.write_str(
                "\n  the context is lost: every CUDA call fails until the process restarts",
            )?;
        }
        for other in not {
            write!(f, "\n  not {other}")?;
        }
        f.write_str("\npossible causes")?;
        for (place, Cause { what, why_likely, remedy }) in (1..).zip(causes) {
            write!(f, "\n  {place}. {what}")?;
            if let Some(why) = why_likely {
                write!(f, "\n     evidence: {why}")?;
            }
            write!(f, "\n     fix: {remedy}")?;
        }
        if !commands.is_empty() {
            f.write_str("\nnext steps")?;
        }
        for command in commands {
            write!(f, "\n  {command}")?;
        }
        Ok(())
    }
}
