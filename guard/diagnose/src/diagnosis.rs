//! What a log says, as plain data and as text for a terminal.

use core::fmt::{self, Write as _};
use std::collections::BTreeMap;

use crate::input::shortened;
use crate::kinds::{Confidence, Fault, Memory, Platform};
use crate::known::ViolatedRule;

/// What a log says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Diagnosis {
    /// The platform that wrote the log.
    pub platform: Platform,
    /// The number of lines.
    pub lines: u64,
    /// The failures, the deciding one first.
    pub failures: Vec<Failure>,
}

/// A failure that the log reports, and its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Failure {
    /// The stable id of the cause.
    pub id: String,
    /// The failure's name, or nothing.
    pub title: &'static str,
    /// Its number.
    pub code: Option<i64>,
    /// The library, program or tool whose message it is.
    pub owner: &'static str,
    /// The platform of the message.
    pub platform: Platform,
    /// How much the line tells. From [`Confidence::Generic`] on, the log does not say what the cause is.
    pub confidence: Confidence,
    /// Whose fault it is.
    pub fault: Fault,
    /// The memory that ran out.
    pub memory: Option<Memory>,
    /// Whether the context is lost: every later call returns an error.
    pub is_sticky: bool,
    /// Whether a later call may have reported it.
    pub is_late: bool,
    /// The cause, or the meaning of a code that has many causes.
    pub cause: String,
    /// What helps.
    pub remedy: String,
    /// The possible causes, if the log does not say.
    pub may: Vec<Cause>,
    /// A command that tells more.
    pub command: Option<String>,
    /// The lines that say so, the deciding one first.
    pub evidence: Vec<Line>,
    /// The number of lines that report it.
    pub times: u64,
    /// What these lines say.
    pub captures: BTreeMap<String, String>,
    /// The launch that the log states beside it.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub launch: Option<StatedLaunch>,
    /// Failures that are consequences of this one.
    pub consequences: Vec<Consequence>,
    /// Where the meaning is documented.
    pub source: &'static str,
}

/// A line of the log, or another remark.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Line {
    /// Its number, from 1; 0 if it is not of the log.
    pub line: u64,
    /// Its text, at most 400 bytes.
    pub text: String,
}

/// A failure that another one explains.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Consequence {
    /// The stable id of the cause.
    pub id: String,
    /// The failure's name, or nothing.
    pub title: &'static str,
    /// The first line that reports it.
    pub line: u64,
    /// Its text.
    pub text: String,
}

/// A possible cause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Cause {
    /// Its stable id.
    pub id: &'static str,
    /// The cause.
    pub cause: String,
    /// What helps.
    pub remedy: String,
    /// Whose fault it is.
    pub fault: Fault,
}

/// The sizes of a launch beside a failure. Each may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatedLaunch {
    /// Blocks on x, y and z.
    pub grid: Option<[u64; 3]>,
    /// Threads on x, y and z.
    pub block: Option<[u64; 3]>,
    /// Dynamic shared memory of a block.
    pub shared_bytes: Option<u64>,
    /// Threads a block that the kernel allows.
    pub kernel_threads: Option<u64>,
    /// The kernel.
    pub kernel: Option<String>,
}

impl Diagnosis {
    /// Whether the log says what the cause is.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.failures.first().is_some_and(|first| first.confidence < Confidence::Generic)
    }

    /// States what the guard says about the launch of failure `place`: the rules that it violates, which then are the
    /// cause, or that it is legal.
    pub fn judge_launch(&mut self, place: usize, rules: &[ViolatedRule], command: Option<&str>) {
        if place >= self.failures.len() {
            return;
        }
        let mut failure = self.failures.remove(place);
        let Some(rule) = rules.first() else {
            let text = "the launch configuration was checked: it violates no rule".to_owned();
            failure.evidence.push(Line { line: 0, text });
            failure.may.retain(|it| it.fault != Fault::Launch);
            return self.failures.insert(place, failure);
        };
        let others = rules
            .iter()
            .skip(1)
            .map(|rule| Line { line: 0, text: format!("{}: {}", rule.id, rule.what) });
        failure.evidence.extend(others);
        failure.id.clone_from(&rule.id);
        failure.cause = format!("{} [{}]", rule.what, rule.id);
        failure.remedy.clone_from(&rule.remedy);
        failure.command = command.map(str::to_owned).or(failure.command);
        failure.may.clear();
        (failure.confidence, failure.fault) = (Confidence::Constraint, Fault::Launch);
        let is_stronger = |it: &Failure| it.confidence == Confidence::Constraint;
        let first =
            self.failures.iter().take(place).position(|it| !is_stronger(it)).unwrap_or(place);
        self.failures.insert(first, failure);
    }

    /// Writes all failures, or the first one, in lines of at most `columns`. [`Display`](fmt::Display) writes the first
    /// one in 80.
    #[must_use]
    pub fn text(&self, columns: usize, all: bool) -> String {
        let text = |failure: &Failure, most| failure.text(self.lines, most, columns);
        if all {
            let texts = self.failures.iter().map(|failure| text(failure, usize::MAX));
            return texts.collect::<Vec<_>>().join("\n");
        }
        let Some(first) = self.failures.first() else { return String::new() };
        // As much text in narrow lines.
        let most = (LINES * COLUMNS).div_ceil(columns.clamp(1, COLUMNS));
        match self.failures.len() - 1 {
            0 => text(first, most),
            1 => text(first, most - 1) + "1 more failure: --all\n",
            others => text(first, most - 1) + &format!("{others} more failures: --all\n"),
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(COLUMNS, false))
    }
}

/// Lines of a failure, of 80 columns.
const LINES: usize = 14;
const COLUMNS: usize = 80;

impl Failure {
    /// In at most `most` lines of `columns`.
    fn text(&self, lines: u64, most: usize, columns: usize) -> String {
        let is_decided = self.confidence < Confidence::Generic;
        let mut head = Vec::new();
        for (place, it) in self.evidence.iter().enumerate() {
            let times = if self.times > 1 && place == 0 {
                format!(", {} times", self.times)
            } else {
                String::new()
            };
            match it.line {
                0 => head.push(shortened(&format!("also: {}", it.text), columns)),
                _ if lines == 1 => {}
                line => head.push(shortened(&format!("line {line}{times}: {}", it.text), columns)),
            }
        }
        if most != usize::MAX {
            head.truncate(3);
        }
        let mut title = self.title.to_owned();
        if let Some(code) =
            self.code.filter(|code| !title.is_empty() && !title.ends_with(&code.to_string()))
        {
            let _ = write!(title, " ({code})");
        }
        if title.is_empty() {
            title = self.owner.to_owned();
        }
        if self.is_sticky {
            title += "; the context is lost";
        }
        if self.is_late {
            title += "; reported late";
        }
        head.push(shortened(&title, columns));
        let mut tail = Vec::new();
        if let Some(command) = &self.command {
            tail.push(format!("  run: {command}"));
        }
        if !self.consequences.is_empty() {
            let mut numbers: Vec<u64> = self.consequences.iter().map(|it| it.line).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let shown: Vec<String> = numbers.iter().take(8).map(u64::to_string).collect();
            let rest = numbers.len().saturating_sub(8);
            let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
            tail.push(format!("  consequences: line {}{more}", shown.join(", ")));
        }
        let mut body = Vec::new();
        let mut add = |label: &str, text: &str| {
            if !text.is_empty() {
                wrap(&mut body, label, text, columns);
            }
        };
        add("", &self.cause);
        add("fix: ", &self.remedy);
        if !is_decided && !self.may.is_empty() {
            add("", "The log does not say which:");
        }
        for cause in &self.may {
            add("- ", &format!("{} {}", cause.cause, cause.remedy));
        }
        let free = most.saturating_sub(head.len() + tail.len());
        if body.len() > free {
            body.truncate(free);
            if let Some(last) = body.last_mut() {
                *last = shortened(&format!("{last} \u{2026}"), columns);
            }
        }
        let all: Vec<String> = head.into_iter().chain(body).chain(tail).collect();
        all.join("\n") + "\n"
    }
}

/// Appends `text` in lines of `columns`.
fn wrap(lines: &mut Vec<String>, label: &str, text: &str, columns: usize) {
    let mut line = format!("  {label}");
    let mut is_begun = false;
    for word in text.split(' ') {
        if is_begun && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(core::mem::replace(&mut line, format!("  {}", " ".repeat(label.len()))));
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    lines.push(line);
}
