//! Ranks what a log says by the kind of its evidence, and groups consequences below their cause.

use core::cmp::Reverse;
use std::collections::BTreeMap;

use crate::diagnosis::{Cause, Consequence, Diagnosis, Failure, Line, StatedLaunch};
use crate::kinds::{Confidence, Fault, Platform};
use crate::known::{Known, ViolatedRule};
use crate::pattern::Capture;
use crate::relation::{Relation, evaluate};
use crate::rows::{self, DERIVED, ROWS, Row, place_of};
use crate::scan::{Fact, Found, Hit, LogScanner, OF_LAUNCH};
use crate::template::{fill, fill_all};
use crate::value::Value;

/// Lines between a launch's facts and its failure.
const LAUNCH_LINES: u64 = 40;

/// Programs of commands that nobody can run under Windows.
const OF_UNIX: [&str; 16] = [
    "cat",
    "df",
    "dmesg",
    "env",
    "export",
    "free",
    "grep",
    "ip",
    "journalctl",
    "ldconfig",
    "ls",
    "lsmod",
    "lspci",
    "sudo",
    "systemctl",
    "ulimit",
];

/// The `within` of recovering rows that state a fallback: what failed there is no failure beside another one.
const FALLBACK_LINES: u64 = 1;

/// A row whose conditions hold.
struct Holding<'a> {
    place: usize,
    row: &'static Row,
    hit: &'a Hit,
    found: &'a Found,
    /// Captures of the line and of its context.
    captures: Vec<Capture>,
    /// Literal words that matched in both.
    words: u64,
}

/// What is known of a log: its own facts and others.
struct Facts<'a> {
    log: &'a LogScanner,
    known: &'a Known,
}

impl LogScanner {
    /// What the log says, the deciding failure first.
    #[must_use]
    pub fn diagnosis(&self, known: &Known) -> Diagnosis {
        if !self.wrapped.0.is_empty() {
            let mut log = self.clone();
            log.end_message();
            return log.diagnosis(known);
        }
        let facts = Facts { log: self, known };
        let is_recovery = |place: &usize| ROWS.get(*place).is_some_and(|row| row.recovers);
        let recoveries: Vec<(u64, u64)> = self
            .hits
            .iter()
            .filter(|(place, _)| is_recovery(place))
            .filter_map(|(place, hit)| Some((facts.holding(*place, hit, &[])?.row.within, hit)))
            .flat_map(|(within, hit)| hit.found.iter().map(move |it| (it.line, within)))
            .filter(|it| it.1 == FALLBACK_LINES || !self.ends_behind(*it))
            .collect();
        let survive = |recoveries: &[(u64, u64)]| -> Vec<Holding<'_>> {
            let rows = self.hits.iter();
            rows.filter_map(|(place, hit)| facts.holding(*place, hit, recoveries)).collect()
        };
        let mut holding = survive(&recoveries);
        let least = holding.iter().map(|it| it.row.confidence).min();
        if least.is_none_or(|it| it > Confidence::Generic) {
            // Nothing else failed, so that what a program fell back from is the answer.
            let is_no_fallback = |it: &(u64, u64)| it.1 != FALLBACK_LINES;
            let recoveries: Vec<_> = recoveries.into_iter().filter(is_no_fallback).collect();
            let all = survive(&recoveries);
            // A bare code tells no more than an exception that ended the program.
            if least != Some(Confidence::Unknown)
                || all.iter().any(|it| it.row.confidence < Confidence::Generic)
            {
                holding = all;
            }
        }
        let platform = platform(&holding);
        let harmless: Vec<u64> = holding
            .iter()
            .filter(|it| it.row.confidence == Confidence::Harmless && !it.row.recovers)
            .flat_map(|it| it.hit.found.iter().map(|found| found.line))
            .collect();
        let is_failure = |it: &Holding<'_>| {
            it.row.confidence == Confidence::Constraint
                || it.row.confidence < Confidence::Unknown && !harmless.contains(&it.found.line)
        };
        let is_unknown = |it: &Holding<'_>| {
            it.row.confidence == Confidence::Unknown && !harmless.contains(&it.found.line)
        };
        if holding.iter().any(is_failure) {
            holding.retain(is_failure);
        } else if holding.iter().any(is_unknown) {
            // It failed, but no row says why.
            holding.retain(is_unknown);
        } else {
            // Nothing failed; the lines may have frightened somebody. A recovery is from something.
            holding.retain(|it| {
                it.row.confidence == Confidence::Harmless
                    && !it.row.cause.is_empty()
                    && (!it.row.recovers || self.count() > 0)
            });
        }
        // Sizes of a launch prove nothing about a copy that failed on the same line.
        let is_other_call = |it: &&Holding<'_>| {
            it.row.confidence == Confidence::Call
                && it.row.fault == Fault::Program
                && !DERIVED.contains(&it.place)
        };
        let calls = holding.iter().filter(is_other_call).map(|it| (it.found.line, it.row.explains));
        let calls: Vec<_> = calls.collect();
        holding.retain(|it| {
            let explained = |codes: &[usize]| it.row.explains.iter().any(|of| codes.contains(of));
            let decides =
                |(line, codes): &(u64, &[usize])| *line == it.found.line && explained(codes);
            !(DERIVED.contains(&it.place) && calls.iter().any(decides))
        });
        let is_of_other = |row: &Row| {
            matches!(
                (platform, row.platform),
                (Platform::Hip, Platform::Cuda) | (Platform::Cuda, Platform::Hip)
            )
        };
        holding.sort_by_key(|it| {
            let words = if it.row.confidence == Confidence::Unknown { 0 } else { it.words };
            let other = is_of_other(it.row);
            (other, !it.row.recovers, it.row.confidence, Reverse(words), it.found.line)
        });
        let mut failures: Vec<Failure> = Vec::new();
        let mut rest = holding;
        while !rest.is_empty() {
            // A row that explains the strongest one is a better cause, if it is no mere code.
            let strongest = rest.first().map_or(0, |it| it.place);
            let explains = |it: &Holding<'_>| {
                (it.row.confidence < Confidence::Generic
                    || it.row.confidence == Confidence::Unknown)
                    && explained_by(it.place).contains(&strongest)
            };
            let first = rest.remove(rest.iter().position(explains).unwrap_or(0));
            let explained = explained_by(first.place);
            let (of_first, others) = rest.into_iter().partition(|it| {
                let is_code = it.row.confidence >= Confidence::Generic;
                explained.contains(&it.place)
                    || first.row.confidence == Confidence::Unknown
                    || is_code && first.row.confidence < Confidence::Generic
                    || is_code && first.row.is_sticky && it.found.line >= first.found.line
                    || it.found.line == first.found.line
            });
            rest = others;
            failures.push(facts.failure(&first, &of_first));
        }
        let mut diagnosis = Diagnosis { platform, lines: self.lines, failures };
        if let Some((rules, first)) = known.rules.as_ref().zip(diagnosis.failures.first()) {
            let code = first.code;
            let of_code =
                |rule: &&ViolatedRule| rule.codes.iter().any(|it| Some(i64::from(*it)) == code);
            let of_code: Vec<_> = rules.iter().filter(of_code).cloned().collect();
            let is_launch =
                place_of(&first.id).and_then(|it| ROWS.get(it)).is_some_and(|it| it.is_launch);
            if rules.is_empty() && is_launch || !of_code.is_empty() {
                diagnosis.judge_launch(0, &of_code, None);
            }
        }
        if let Some(first) = diagnosis.failures.first_mut() {
            let remarks = known.remarks.iter().map(|text| Line { line: 0, text: text.clone() });
            first.evidence.extend(remarks);
        }
        diagnosis
    }

    /// Whether the program stops so soon behind a recovery that it went on in vain.
    fn ends_behind(&self, (line, within): (u64, u64)) -> bool {
        let stops = |place: &usize| {
            ROWS.get(*place).is_some_and(|row| row.confidence == Confidence::Unknown)
        };
        let of_stops = self.hits.iter().filter(|(place, _)| stops(place));
        let mut found = of_stops.flat_map(|(_, hit)| &hit.found);
        within != u64::MAX && found.any(|it| (1..=within).contains(&it.line.saturating_sub(line)))
    }

    /// The rows that the log has, whatever their conditions, for a person who writes rows.
    #[doc(hidden)]
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64, bool)> {
        self.hits.iter().filter_map(|(place, hit)| {
            let line = hit.found.first()?.line;
            let facts = Facts { log: self, known: &Known::default() };
            Some((ROWS.get(*place)?.id, line, facts.holding(*place, hit, &[]).is_some()))
        })
    }

    /// What a row captures, for its test.
    #[doc(hidden)]
    #[must_use]
    pub fn captured(&self, id: &str) -> BTreeMap<String, String> {
        let facts = Facts { log: self, known: &Known::default() };
        let holding =
            place_of(id).and_then(|place| facts.holding(place, self.hits.get(&place)?, &[]));
        let captures = holding.into_iter().flat_map(|it| it.captures.into_iter().rev());
        captures.map(|it| (it.name, it.text)).collect()
    }

    /// The facts of the log by name, with their lines.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        self.facts.iter().map(|it| (it.capture.name.as_str(), it.capture.text.as_str(), it.line))
    }
}

/// The platform that wrote the log: what its facts name, and else what its failures do.
fn platform(holding: &[Holding<'_>]) -> Platform {
    let mut votes: Vec<(Platform, (u64, u64))> = Vec::new();
    for it in holding.iter().filter(|it| it.row.platform != Platform::Any) {
        let (facts, failures) = match it.row.confidence {
            Confidence::Fact => (1, 0),
            Confidence::Harmless | Confidence::Unknown => (0, 0),
            Confidence::Word => (0, 1),
            Confidence::Generic => (0, 2),
            _ => (0, 4),
        };
        match votes.iter_mut().find(|(platform, _)| *platform == it.row.platform) {
            Some((_, votes)) => *votes = (votes.0 + facts, votes.1 + failures),
            None => votes.push((it.row.platform, (facts, failures))),
        }
    }
    votes
        .into_iter()
        .max_by_key(|(_, votes)| *votes)
        .map_or(Platform::Any, |(platform, _)| platform)
}

impl Facts<'_> {
    /// The first line of the row whose conditions hold, and that the program did not recover from.
    fn holding<'a>(
        &self,
        place: usize,
        hit: &'a Hit,
        recoveries: &[(u64, u64)],
    ) -> Option<Holding<'a>> {
        let row = ROWS.get(place)?;
        let is_survived = |found: &Found| {
            row.confidence <= Confidence::Unknown
                && recoveries.iter().any(|(line, within)| {
                    line.checked_sub(found.last).is_some_and(|lines| lines <= *within)
                })
        };
        hit.found.iter().filter(|it| !is_survived(it)).find_map(|found| {
            let captures = self.conditions(row, found)?;
            let near = row.near.iter().filter_map(|any| {
                let words =
                    any.iter().filter_map(|place| self.log.contexts.get(place)).map(|it| it.words);
                words.max().map(u64::from)
            });
            let words = u64::from(found.words).saturating_add(near.sum());
            Some(Holding { place, row, hit, found, captures, words })
        })
    }

    /// The captures of a line and its context, if all conditions of the row hold.
    fn conditions(&self, row: &Row, found: &Found) -> Option<Vec<Capture>> {
        let is_seen = |place: &usize| self.log.contexts.contains_key(place);
        let is_near = |place: &usize| {
            self.log.contexts.get(place).is_some_and(|it| {
                let ends = [
                    (it.line, found.line),
                    (it.line, found.last),
                    (it.last, found.line),
                    (it.last, found.last),
                ];
                ends.iter().any(|(a, b)| a.abs_diff(*b) <= row.within)
            })
        };
        if row.without.iter().any(is_seen) || !row.near.iter().all(|any| any.iter().any(is_near)) {
            return None;
        }
        let near =
            row.near.iter().copied().flatten().filter_map(|place| self.log.contexts.get(place));
        let near = near.flat_map(|it| it.captures.iter());
        let mut captures: Vec<Capture> = found.captures.iter().chain(near).cloned().collect();
        let own = captures.len();
        let relations: Vec<_> =
            row.when.iter().filter_map(|text| Relation::parse(text).ok()).collect();
        let known = |name: &str| self.value(&captures, found.line, name);
        if relations.iter().all(|relation| relation.holds(&known)) {
            return Some(captures);
        }
        if row.confidence > Confidence::Constraint {
            return None;
        }
        // Sizes that break a limit decide, also if the log states others behind them. Those of one launch are on one
        // line.
        let earlier = OF_LAUNCH.iter().flat_map(|name| self.stated(name, found.line));
        let mut lines: Vec<u64> =
            earlier.map(|it| it.line).filter(|line| *line <= found.line).collect();
        lines.sort_unstable();
        lines.dedup();
        lines.into_iter().rev().find_map(|line| {
            captures.truncate(own);
            let facts = self.log.facts.iter().filter(|it| it.line == line);
            let facts = facts.filter(|it| OF_LAUNCH.contains(&it.capture.name.as_str()));
            captures.extend(facts.map(|it| it.capture.clone()));
            let known = |name: &str| {
                let is_other =
                    OF_LAUNCH.contains(&name) && captures.iter().all(|it| it.name != name);
                (!is_other).then(|| self.value(&captures, found.line, name)).flatten()
            };
            relations.iter().all(|relation| relation.holds(&known)).then(|| captures.clone())
        })
    }

    /// The facts of this name that may serve the line.
    fn stated<'a>(&'a self, name: &str, line: u64) -> impl Iterator<Item = &'a Fact> {
        let of_launch = OF_LAUNCH.contains(&name);
        let facts = self.log.facts.iter().filter(move |it| it.capture.name == name);
        facts.filter(move |it| !of_launch || it.line.abs_diff(line) <= LAUNCH_LINES)
    }

    /// A capture, or the fact that is stated last before the line, or first behind it, or not in the log.
    fn known<'a>(&'a self, captures: &'a [Capture], line: u64, name: &str) -> Option<&'a Capture> {
        if let Some(own) = captures.iter().find(|it| it.name == name) {
            return Some(own);
        }
        let mut facts = self.stated(name, line).peekable();
        let first = facts.peek().map(|it| &it.capture);
        let last = facts.take_while(|it| it.line <= line).last().map(|it| &it.capture);
        last.or(first).or_else(|| self.known.facts.iter().find(|it| it.name == name))
    }

    fn value(&self, captures: &[Capture], line: u64, name: &str) -> Option<Value> {
        self.known(captures, line, name).map(|it| it.kind.value(&it.text))
    }

    fn text(&self, captures: &[Capture], line: u64, name: &str) -> Option<String> {
        if let Some(known) = self.known(captures, line, name) {
            return Some(known.text.clone());
        }
        if name == "program" {
            return Some(self.log.program().unwrap_or("PROGRAM").to_owned());
        }
        let value = |name: &str| self.value(captures, line, name);
        let is_expression = name.contains(['*', '/', '+', '(', '.', '-']);
        is_expression.then(|| evaluate(name, &value)).flatten().map(|it| it.to_string())
    }

    fn failure(&self, it: &Holding<'_>, explained: &[Holding<'_>]) -> Failure {
        let Holding { row, found, hit, captures, .. } = it;
        let text = |name: &str| match name {
            "outside" => (!names_gpu(&found.text)).then(|| "CUDA".to_owned()),
            _ => self.text(captures, found.line, name),
        };
        let own = Line { line: found.line, text: found.text.clone() };
        let near =
            row.near.iter().copied().flatten().filter_map(|place| self.log.contexts.get(place));
        let near = near.map(|it| Line { line: it.line, text: it.text.clone() });
        let mut evidence: Vec<Line> = core::iter::once(own).chain(near).collect();
        evidence.dedup_by_key(|it| it.line);
        // Causes whose own conditions hold come first.
        let mut may: Vec<&Row> = row.may.iter().filter_map(|place| ROWS.get(*place)).collect();
        may.sort_by_key(|row| {
            row.near.is_empty() && row.when.is_empty() || self.conditions(row, found).is_none()
        });
        let cause = |row: &&Row| Cause {
            id: row.id,
            cause: fill(row.cause, &text),
            remedy: fill(row.remedy, &text),
            fault: row.fault,
        };
        let os = self.known(captures, found.line, "os");
        let can_run = |command: &str| {
            let program = command.split(' ').next().unwrap_or_default();
            !(os.is_some_and(|it| it.text == "Windows") && OF_UNIX.contains(&program))
        };
        let is_launch = row.is_launch || explained.iter().any(|it| it.row.is_launch);
        // A cause has the name of the failure that it explains, best of one on its own line.
        let own_line = explained.iter().filter(|it| it.found.line == found.line);
        let mut named = core::iter::once(row).chain(own_line.chain(explained).map(|it| &it.row));
        let named = named.find(|row| !row.title.is_empty()).unwrap_or(row);
        // A cause may name a code that the log does not state.
        let mut codes = row.explains.iter().filter_map(|place| ROWS.get(*place));
        let named = codes
            .find(|it| rows::code_of(it).is_some() && it.title == named.title)
            .unwrap_or(named);
        Failure {
            id: row.id.to_owned(),
            title: named.title,
            code: rows::code_of(named),
            owner: row.owner,
            platform: row.platform,
            confidence: row.confidence,
            fault: row.fault,
            memory: row.memory,
            is_sticky: row.is_sticky || named.is_sticky,
            is_late: row.is_late || named.is_late,
            cause: fill(row.cause, &text),
            remedy: fill(row.remedy, &text),
            may: may.iter().map(cause).collect(),
            command: fill_all(row.command, &text).filter(|it| !it.is_empty() && can_run(it)),
            evidence,
            times: hit.times,
            captures: captures.iter().map(|it| (it.name.clone(), it.text.clone())).collect(),
            launch: is_launch.then(|| self.launch(captures, found.line)).flatten(),
            consequences: explained
                .iter()
                .filter(|it| it.found.line != found.line)
                .map(|it| Consequence {
                    id: it.row.id.to_owned(),
                    title: it.row.title,
                    line: it.found.line,
                    text: it.found.text.clone(),
                })
                .collect(),
            source: row.source,
        }
    }

    /// The launch that is stated near the line.
    fn launch(&self, captures: &[Capture], line: u64) -> Option<StatedLaunch> {
        let dims = |name| {
            let numbers = match self.value(captures, line, name)? {
                Value::Dims(dims) => dims,
                Value::Number(number) => vec![number],
                _ => return None,
            };
            let mut sizes = [1; 3];
            for (size, number) in sizes.iter_mut().zip(numbers) {
                *size = whole(number)?;
            }
            Some(sizes)
        };
        let number = |name| match self.value(captures, line, name)? {
            Value::Number(number) => whole(number),
            _ => None,
        };
        let launch = StatedLaunch {
            grid: dims("grid"),
            block: dims("block"),
            shared_bytes: number("shared"),
            kernel_threads: number("kernel_threads"),
            kernel: self.known(captures, line, "kernel").map(|it| it.text.clone()),
        };
        let is_stated =
            launch.grid.is_some() || launch.block.is_some() || launch.shared_bytes.is_some();
        is_stated.then_some(launch)
    }
}

/// Whether a line names a GPU or its software.
fn names_gpu(line: &str) -> bool {
    const WORDS: [&str; 18] = [
        "cuda",
        "gpu",
        "device",
        "nvidia",
        "nccl",
        "nvcc",
        "cublas",
        "cudnn",
        "rocm",
        "hip",
        "vulkan",
        ".cu",
        "thrust",
        "cub::",
        "cutlass",
        "triton",
        "shared memory",
        "threads per",
    ];
    let line = line.to_ascii_lowercase();
    WORDS.iter().any(|it| line.contains(it))
}

/// A whole number that a log states.
#[allow(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked"
)]
fn whole(number: f64) -> Option<u64> {
    (0.0..9e15).contains(&number).then_some(number as u64)
}

/// The rows that a row explains, and those that these explain.
fn explained_by(place: usize) -> Vec<usize> {
    let mut all = vec![place];
    let mut at = 0;
    while let Some(row) = all.get(at).and_then(|place| ROWS.get(*place)) {
        for other in row.explains {
            if !all.contains(other) {
                all.push(*other);
            }
        }
        at += 1;
    }
    all.remove(0);
    all
}
