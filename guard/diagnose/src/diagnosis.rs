//! Diagnoses: the meaning of a failure, its causes ranked by evidence, and commands to run next.

use core::fmt;

use super::codes::commands::{BLOCKING, CHECK, LIMITS, SANITIZER};
use super::evidence::{CudaVersion, Evidence, Verdict, ViolatedRule};
use super::failure::{Hint, KnownCause};
use super::failure_id::FailureId;

/// The meaning of a failure and its probable causes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Diagnosis {
    /// The failure.
    pub failure: FailureId,
    /// Its meaning.
    pub meaning: &'static str,
    /// Whether the context is lost: every later CUDA call in the process returns an error.
    pub sticky: bool,
    /// Whether an unrelated later call usually reports it, instead of the call that caused it.
    pub late: bool,
    /// Excluded explanations, each with the reason.
    pub not: Vec<String>,
    /// The driver's log about the failed call.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub driver_log: Vec<String>,
    /// Possible causes, the most likely first.
    pub causes: Vec<Cause>,
    /// Commands that give more information, the most useful first.
    pub commands: Vec<String>,
}

/// A possible cause and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Cause {
    /// A stable id if evidence can decide the cause, for example the id of the violated rule.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub id: Option<String>,
    /// The cause.
    pub what: String,
    /// The evidence for it, if any.
    pub why_likely: Option<String>,
    /// How to fix it.
    pub remedy: String,
}

/// Explains `failure`. Causes that `evidence` supports come first, and causes that it excludes are listed in
/// [`Diagnosis::not`].
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
    let rules = violated_rules(failure, evidence);
    let has_rules = !rules.is_empty();
    let is_rejected_launch = entry.known_causes().any(|known| known.hint == Some(Hint::LaunchSize));
    let case = evidence.case().filter(|_| is_rejected_launch);
    let case = case.map(|(case, why)| Cause::known(&case, Some(why)));
    let [mut likely, mut open, mut unlikely] = [const { Vec::new() }; 3];
    for known in entry.known_causes() {
        if matches!(known.hint, Some(Hint::LaunchSize | Hint::LaunchRule)) && has_rules {
            // The violated rules are more precise.
            continue;
        }
        match known.hint.and_then(|hint| evidence.weigh(hint)) {
            Some(Verdict::Likely(why)) => likely.push(Cause::known(known, Some(why))),
            Some(Verdict::Unlikely) => unlikely.push(Cause::known(known, None)),
            Some(Verdict::Excluded(why)) => not.push(why),
            None => open.push(Cause::known(known, None)),
        }
    }
    // A traceback that ends in a copy may contain a known kernel, too.
    let place = if evidence.host_call().is_some() { likely.len() } else { 0 };
    likely.splice(place..place, case);
    let causes = [rules, likely, open, unlikely].concat();
    Diagnosis {
        failure: *failure,
        meaning: entry.meaning,
        sticky: entry.sticky,
        late: entry.late,
        not,
        driver_log: evidence.driver_log.clone(),
        causes,
        commands: entry.commands.iter().map(|it| command(it, evidence)).collect(),
    }
}

/// `command` with the known values filled in.
fn command(command: &str, evidence: &Evidence) -> String {
    let Evidence { device_name, program, .. } = evidence;
    // A launch that violates no rule need not be checked again.
    let is_legal = evidence.violated_rules.as_ref().is_some_and(Vec::is_empty);
    let launch = evidence.launch.as_ref().filter(|_| !is_legal);
    let program = program.as_ref().map_or("PROGRAM".to_owned(), |it| format!("python {it}"));
    match (command, launch, device_name) {
        (CHECK, Some(launch), Some(name)) => format!("gridguard check --gpu '{name}' {launch}"),
        (CHECK, Some(launch), None) => format!("gridguard check --device 0 {launch}"),
        // Drivers of CUDA 12.9 and later log the sizes of the launch.
        (CHECK, None, _) if evidence.driver_cuda.is_some_and(|it| it < CudaVersion(12_090)) => {
            BLOCKING.replace("PROGRAM", &program)
        }
        (CHECK, None, _) => format!("CUDA_LOG_FILE=stderr {program}"),
        (LIMITS, _, Some(name)) => format!("gridguard limits --gpu '{name}'"),
        (BLOCKING | SANITIZER, ..) => command.replace("PROGRAM", &program),
        _ => command.to_owned(),
    }
}

impl Cause {
    fn known(known: &KnownCause, why_likely: Option<String>) -> Self {
        let id = known.hint.map(Hint::id);
        Self { id, what: known.what.into(), why_likely, remedy: known.remedy.into() }
    }

    fn violated(rule: &ViolatedRule) -> Self {
        let ViolatedRule { id, what, remedy, codes: _ } = rule;
        let why = format!("the launch violates rule {id}");
        let (id, what, remedy) = (Some(id.clone()), what.clone(), remedy.clone());
        Self { id, what, why_likely: Some(why), remedy }
    }
}

/// The violated rules that CUDA reports as this failure.
fn violated_rules(failure: &FailureId, evidence: &Evidence) -> Vec<Cause> {
    let Some(number) = failure.number().filter(|_| failure.is_cuda()) else {
        return Vec::new();
    };
    let rules = evidence.violated_rules.iter().flatten();
    rules.filter(|rule| rule.codes.contains(&number)).map(Cause::violated).collect()
}

impl fmt::Display for Diagnosis {
    /// Several lines: name, meaning, time of the report, excluded explanations, causes, commands. The last line
    /// is the most useful command.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failure, meaning, sticky, late, not, driver_log, causes, commands } = self;
        write!(f, "{failure}")?;
        if let Some(name) = failure.entry().runtime_name {
            write!(f, ", {name} in the runtime")?;
        }
        if let Some(message) = failure.entry().messages().first() {
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
        for line in driver_log {
            write!(f, "\n  driver log: {line}")?;
        }
        f.write_str("\npossible causes")?;
        for (place, Cause { id: _, what, why_likely, remedy }) in (1..).zip(causes) {
            write!(f, "\n  {place}. {what}")?;
            if let Some(why) = why_likely {
                write!(f, "\n     evidence: {why}")?;
            }
            write!(f, "\n     fix: {remedy}")?;
        }
        let Some((next, others)) = commands.split_first() else {
            return Ok(());
        };
        if !others.is_empty() {
            f.write_str("\nalso useful")?;
        }
        for command in others {
            write!(f, "\n  {command}")?;
        }
        write!(f, "\nnext step\n  {next}")
    }
}
