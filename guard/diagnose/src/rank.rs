//! Ranks what a log says by the kind of its evidence, and groups consequences below their cause.

use core::cmp::Reverse;
use std::collections::BTreeMap;

use crate::answer::{Answer, Cause, Consequence, Finding};
use crate::kinds::{Confidence, Platform};
use crate::pattern::Capture;
use crate::relation::{Relation, evaluate};
use crate::rows::{ROWS, Row, place_of};
use crate::scan::{Found, Hit, Scanner};
use crate::template::{fill, fill_all};
use crate::value::Value;

/// Facts that belong to one launch: lines away from a failure, they are another launch's.
const OF_LAUNCH: [&str; 7] =
    ["grid", "block", "cluster", "shared", "registers", "threads", "kernel"];
/// Lines between a launch's facts and its failure.
const LAUNCH_LINES: u64 = 40;

/// A row whose conditions hold.
struct Holding<'a> {
    place: usize,
    row: &'static Row,
    hit: &'a Hit,
    found: &'a Found,
    /// Captures of the line and of its context.
    captures: Vec<Capture>,
}

impl Scanner {
    /// What the log says, the deciding failure first.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let holding: Vec<Holding<'_>> =
            self.hits.iter().filter_map(|(place, hit)| self.holding(*place, hit)).collect();
        let platform = self.platform(&holding);
        let harmless: Vec<u64> = holding
            .iter()
            .filter(|it| it.row.confidence == Confidence::Harmless)
            .flat_map(|it| it.hit.found.iter().map(|found| found.line))
            .collect();
        let mut failures: Vec<Holding<'_>> = holding
            .into_iter()
            .filter(|it| {
                it.row.confidence < Confidence::Unknown && !harmless.contains(&it.found.line)
            })
            .collect();
        let is_of_other = |row: &Row| {
            matches!(
                (platform, row.platform),
                (Platform::Hip, Platform::Cuda) | (Platform::Cuda, Platform::Hip)
            )
        };
        failures.sort_by_key(|it| {
            (is_of_other(it.row), it.row.confidence, Reverse(it.found.words), it.found.line)
        });
        let mut findings: Vec<Finding> = Vec::new();
        let mut grouped = vec![false; failures.len()];
        for (at, it) in failures.iter().enumerate() {
            if grouped.get(at).copied().unwrap_or(false) {
                continue;
            }
            let mut finding = self.finding(it);
            let explained = explained_by(it.place);
            for (other, of) in failures.iter().enumerate().skip(at + 1) {
                let is_free = grouped.get(other).is_some_and(|it| !it);
                let is_code = of.row.confidence >= Confidence::Generic
                    && it.row.confidence < Confidence::Generic;
                let is_same_line = of.found.line == it.found.line;
                if is_free && (explained.contains(&of.place) || is_code || is_same_line) {
                    if let Some(slot) = grouped.get_mut(other) {
                        *slot = true;
                    }
                    if !is_same_line {
                        finding.consequences.push(Consequence {
                            id: of.row.id,
                            line: of.found.line,
                            text: of.found.text.clone(),
                        });
                    }
                }
            }
            findings.push(finding);
        }
        Answer { platform, lines: self.lines, findings }
    }

    /// The rows that the log has, whatever their conditions, for a person who writes rows.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64, bool)> {
        self.hits.iter().filter_map(|(place, hit)| {
            let line = hit.found.first()?.line;
            Some((ROWS.get(*place)?.id, line, self.holding(*place, hit).is_some()))
        })
    }

    /// What a row captures, for its test.
    #[must_use]
    pub fn captured(&self, id: &str) -> BTreeMap<String, String> {
        let holding = place_of(id).and_then(|place| self.holding(place, self.hits.get(&place)?));
        let captures = holding.into_iter().flat_map(|it| it.captures.into_iter().rev());
        captures.map(|it| (it.name, it.text)).collect()
    }

    /// The facts of the log by name, with their lines.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        self.facts.iter().map(|it| (it.capture.name.as_str(), it.capture.text.as_str(), it.line))
    }

    fn holding<'a>(&self, place: usize, hit: &'a Hit) -> Option<Holding<'a>> {
        let row = ROWS.get(place)?;
        let is_seen = |place: &usize| self.contexts.contains_key(place);
        if row.without.iter().any(is_seen) || !row.near.iter().all(|any| any.iter().any(is_seen)) {
            return None;
        }
        let relations: Vec<Relation> =
            row.when.iter().filter_map(|text| Relation::parse(text).ok()).collect();
        hit.found.iter().find_map(|found| {
            let near =
                row.near.iter().copied().flatten().filter_map(|place| self.contexts.get(place));
            let captures: Vec<Capture> =
                found.captures.iter().chain(near.flatten()).cloned().collect();
            let known = |name: &str| self.value(&captures, found.line, name);
            let holds = relations.iter().all(|relation| relation.holds(&known));
            holds.then_some(Holding { place, row, hit, found, captures })
        })
    }

    /// The platform that wrote the log: what its facts name, and else what its failures do.
    fn platform(&self, holding: &[Holding<'_>]) -> Platform {
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

    /// A capture, or the fact that is stated last before the line, or first behind it.
    fn known<'a>(&'a self, captures: &'a [Capture], line: u64, name: &str) -> Option<&'a Capture> {
        if let Some(own) = captures.iter().find(|it| it.name == name) {
            return Some(own);
        }
        let of_launch = OF_LAUNCH.contains(&name);
        let facts = self.facts.iter().filter(|it| it.capture.name == name);
        let mut facts =
            facts.filter(|it| !of_launch || it.line.abs_diff(line) <= LAUNCH_LINES).peekable();
        let first = facts.peek().map(|it| &it.capture);
        facts.take_while(|it| it.line <= line).last().map(|it| &it.capture).or(first)
    }

    fn value(&self, captures: &[Capture], line: u64, name: &str) -> Option<Value> {
        self.known(captures, line, name).map(|it| it.kind.value(&it.text))
    }

    fn finding(&self, it: &Holding<'_>) -> Finding {
        let Holding { row, found, hit, captures, .. } = it;
        let text = |name: &str| {
            let known = self.known(captures, found.line, name).map(|it| it.text.clone());
            known.or_else(|| {
                let is_expression = name.contains(['*', '/', '+', '(', '.', '-']);
                let value = |name: &str| self.value(captures, found.line, name);
                is_expression.then(|| evaluate(name, &value)).flatten().map(|it| it.to_string())
            })
        };
        let possible = row.may.iter().filter_map(|place| ROWS.get(*place));
        Finding {
            id: row.id,
            title: row.title,
            owner: row.owner,
            platform: row.platform,
            confidence: row.confidence,
            fault: row.fault,
            memory: row.memory,
            is_sticky: row.is_sticky,
            is_late: row.is_late,
            cause: fill(row.cause, &text),
            remedy: fill(row.remedy, &text),
            command: fill_all(row.command, &text).filter(|it| !it.is_empty()),
            line: found.line,
            text: found.text.clone(),
            times: hit.times,
            captures: captures.iter().map(|it| (it.name.clone(), it.text.clone())).collect(),
            consequences: Vec::new(),
            may: possible
                .map(|row| Cause {
                    id: row.id,
                    cause: fill(row.cause, &text),
                    remedy: fill(row.remedy, &text),
                })
                .collect(),
            source: row.source,
        }
    }
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
