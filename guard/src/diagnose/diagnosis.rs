//! A failure's true name, its causes by rank, and what to run.

use core::fmt;

use super::codes::CHECK;
use super::evidence::{Evidence, Judgement, answers};
use super::failure::{Hint, UsualCause};
use super::subject::Subject;
use crate::launch::request::LaunchRequest;
use crate::launch::violation::Violation;

/// What a failure means and where it probably comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Diagnosis {
    /// The failure.
    pub subject: Subject,
    /// What it means.
    pub meaning: &'static str,
    /// Whether the context is lost: every later call answers with an error.
    pub sticky: bool,
    /// Whether it is reported by whatever call comes next, long after the one at fault.
    pub late: bool,
    /// What it is not, and why.
    pub not: Vec<String>,
    /// The causes, the likeliest first.
    pub causes: Vec<Cause>,
    /// Commands that tell more.
    pub commands: Vec<String>,
}

/// A cause and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Cause {
    /// The cause.
    pub what: String,
    /// The evidence for it, where there is some.
    pub why_likely: Option<String>,
    /// The way out.
    pub remedy: String,
}

/// Explains `subject` in the light of `evidence`: causes that it speaks for come first, those that
/// it excludes are named as what the failure is not.
///
/// ```
/// use gridguard::diagnose::{Evidence, Subject, diagnose};
///
/// let evidence = Evidence { visible_devices: Some(0), ..Evidence::default() };
/// let diagnosis = diagnose(&Subject::of_code(100), &evidence);
/// assert_eq!(diagnosis.causes[0].why_likely.as_deref(), Some("the driver shows 0 devices"));
/// ```
#[must_use]
pub fn diagnose(subject: &Subject, evidence: &Evidence) -> Diagnosis {
    let failure = subject.failure();
    let mut not: Vec<String> = failure.mistaken_for.into_iter().map(String::from).collect();
    let mut likely = broken_rules(subject, evidence);
    let rules_found = !likely.is_empty();
    let mut open = Vec::new();
    for usual in failure.usual_causes {
        if matches!(usual.hint, Some(Hint::Sizes | Hint::Rules)) && rules_found {
            // The very rules stand there instead.
            continue;
        }
        match usual.hint.map_or(Judgement::Open, |hint| evidence.judge(hint)) {
            Judgement::Likely(why) => likely.push(Cause::usual(usual, Some(why))),
            Judgement::Open => open.push(Cause::usual(usual, None)),
            Judgement::Excluded(why) => not.push(why),
        }
    }
    likely.append(&mut open);
    let command = |command: &&str| match (*command, &evidence.request) {
        (CHECK, Some(request)) => check_command(request, evidence),
        (other, _) => other.to_owned(),
    };
    Diagnosis {
        subject: *subject,
        meaning: failure.meaning,
        sticky: failure.sticky,
        late: failure.late,
        not,
        causes: likely,
        commands: failure.commands.iter().map(command).collect(),
    }
}

impl Cause {
    fn usual(usual: &UsualCause, why_likely: Option<String>) -> Self {
        Self { what: usual.what.into(), why_likely, remedy: usual.remedy.into() }
    }

    fn violation(violation: &Violation) -> Self {
        let remedy = violation.remedy.to_string();
        let text = violation.to_string();
        let what = text.strip_suffix(&format!(": {remedy}")).unwrap_or(&text).to_owned();
        let why = format!("the launch breaks the rule {}", violation.rule);
        Self { what, why_likely: Some(why), remedy }
    }
}

/// The rules that the launch breaks and that CUDA answers with this very failure.
fn broken_rules(subject: &Subject, evidence: &Evidence) -> Vec<Cause> {
    let Some(number) = subject.number().filter(|_| subject.is_cuda()) else {
        return Vec::new();
    };
    let violations = evidence.violations.iter().flatten();
    violations
        .filter(|violation| answers(violation.rule).contains(&number))
        .map(Cause::violation)
        .collect()
}

fn check_command(request: &LaunchRequest, evidence: &Evidence) -> String {
    let LaunchRequest {
        grid,
        block,
        dynamic_shared_bytes,
        cluster,
        cooperative,
        parameter_bytes,
        // No rule is about it.
        priority: _,
        dependent,
    } = request;
    let whose = match &evidence.device {
        Some(device) => format!("--gpu '{}'", device.name),
        None => "--device 0".into(),
    };
    let mut command = format!(
        "gridguard check {whose} --grid {},{},{} --block {},{},{}",
        grid.x, grid.y, grid.z, block.x, block.y, block.z
    );
    if *dynamic_shared_bytes > 0 {
        command.push_str(&format!(" --shared-mem {dynamic_shared_bytes}"));
    }
    if let Some(cluster) = cluster {
        command.push_str(&format!(" --cluster {},{},{}", cluster.x, cluster.y, cluster.z));
    }
    if *cooperative {
        command.push_str(" --cooperative");
    }
    if *dependent {
        command.push_str(" --dependent");
    }
    if *parameter_bytes > 0 {
        command.push_str(&format!(" --param-bytes {parameter_bytes}"));
    }
    command
}

impl fmt::Display for Diagnosis {
    /// Several lines: name, meaning, when it is reported, what it is not, causes, commands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, meaning, sticky, late, not, causes, commands } = self;
        write!(f, "{subject}")?;
        if let Some(name) = subject.failure().runtime_name {
            write!(f, ", in the runtime {name}")?;
        }
        if let Some(words) = subject.failure().wordings.first() {
            write!(f, ": \"{words}\"")?;
        }
        write!(f, "\n  {meaning}")?;
        if let Some(when) = when(*sticky, *late) {
            write!(f, "\n  {when}")?;
        }
        for other in not {
            write!(f, "\n  not {other}")?;
        }
        f.write_str("\ncauses")?;
        for (place, Cause { what, why_likely, remedy }) in (1..).zip(causes) {
            write!(f, "\n  {place}. {what}")?;
            if let Some(why) = why_likely {
                write!(f, "\n     seen: {why}")?;
            }
            write!(f, "\n     way out: {remedy}")?;
        }
        if !commands.is_empty() {
            f.write_str("\nto learn more")?;
        }
        for command in commands {
            write!(f, "\n  {command}")?;
        }
        Ok(())
    }
}

const fn when(sticky: bool, late: bool) -> Option<&'static str> {
    match (late, sticky) {
        (true, true) => Some(
            "reported late, often by a call that did nothing wrong; the context is lost, and every \
             later call fails until the process starts anew",
        ),
        (true, false) => Some("reported late, often by a call that did nothing wrong"),
        (false, true) => {
            Some("the context is lost, and every later call fails until the process starts anew")
        }
        (false, false) => None,
    }
}
