//! Finds the rows' patterns in a log, line by line, in bounded memory.

use core::cmp::Reverse;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufRead};

use crate::input;
use crate::kinds::{Confidence, Platform};
use crate::pattern::{Capture, Line, Pattern};
use crate::rows::{self, DERIVED, PATTERNS, ROWS, Row, Use};
use crate::template::fill_all;
use crate::traceback::Traceback;
use crate::value::{Kind, number_of};
use crate::words;

/// Facts that belong to one launch: lines away from a failure, they are another launch's.
pub(crate) const OF_LAUNCH: [&str; 7] =
    ["grid", "block", "dim3", "cluster", "shared", "registers", "kernel"];

/// Bytes of a line that a finding keeps.
const SHOWN_BYTES: usize = 400;
/// Bytes of a wrapped message, so that its lines are joined in linear time.
const WRAPPED_BYTES: usize = 2000;
/// The steps that searching a line may take for each of its bytes: an honest line needs a tenth.
const STEPS: usize = 64;
/// Patterns that a line is searched for. An honest line has the words of fewer.
const CANDIDATES: usize = 512;
/// Occurrences of a row with different captures that are kept.
const KEPT_FOUND: usize = 4;
/// Values of a fact that are kept.
const KEPT_VALUES: usize = 16;
/// Harmless lines whose conditions are open until the end.
const KEPT_HARMLESS: usize = 64;

/// Collects what a log says: the rows whose lines it has, and facts.
#[derive(Clone, Debug, Default)]
pub struct LogScanner {
    pub(crate) lines: u64,
    pub(crate) hits: BTreeMap<usize, Hit>,
    /// Patterns of rows' contexts, with what they captured first.
    pub(crate) contexts: BTreeMap<usize, Found>,
    pub(crate) facts: Vec<Fact>,
    /// The patterns that were searched for, by their places.
    compiled: Vec<Option<Box<Pattern>>>,
    candidates: Vec<u16>,
    traceback: Traceback,
    /// A message of CMake's so far, which it wraps over indented lines, and the number of its line.
    pub(crate) wrapped: (String, u64),
    is_question: bool,
}

/// A row that the log has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hit {
    pub(crate) times: u64,
    pub(crate) found: Vec<Found>,
}

/// One line of a row.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) line: u64,
    /// The last line that says the same.
    pub(crate) last: u64,
    pub(crate) text: String,
    pub(crate) captures: Vec<Capture>,
    /// Literal words that matched.
    pub(crate) words: u16,
}

/// A fact in the log.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    pub(crate) line: u64,
    pub(crate) capture: Capture,
}

impl LogScanner {
    /// A scanner for logs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A scanner for text from a question. Bare numbers count, and words that other programs also use.
    #[must_use]
    pub fn for_question() -> Self {
        Self { is_question: true, ..Self::default() }
    }

    pub(crate) fn program(&self) -> Option<&str> {
        self.traceback.program.as_deref()
    }

    /// The number of failures so far, before they are ranked.
    #[must_use]
    pub fn count(&self) -> usize {
        let is_failure = |place: &&usize| {
            ROWS.get(**place).is_some_and(|row| row.confidence <= Confidence::Unknown)
        };
        self.hits.keys().filter(is_failure).count()
    }

    /// The number of lines so far.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// Scans the next line.
    pub fn line(&mut self, line: &str) {
        self.piece(line, true);
    }

    /// Scans all lines of `input`, in UTF-8, or in UTF-16 that begins with a byte order mark;
    /// invalid bytes are replaced.
    ///
    /// # Errors
    ///
    /// The error of reading `input`; the lines before it are scanned.
    pub fn read(&mut self, input: impl BufRead) -> io::Result<()> {
        input::read(input, |piece, ends_line| self.piece(piece, ends_line))?;
        self.end_message();
        Ok(())
    }

    fn piece(&mut self, piece: &str, ends_line: bool) {
        let number = self.lines.saturating_add(1);
        // Compilers quote names with characters that begin with this byte.
        let is_plain = !piece.bytes().any(|it| it.is_ascii_control() && it != b'\t' || it == 0xe2);
        let text = if is_plain { Cow::from(piece) } else { input::plain(piece).into() };
        if let Some((call, line)) = self.traceback.line(&text, number) {
            self.scan(&format!("failing call: {call}"), line);
        }
        self.join(&text, number);
        if let Some(captures) = self.traceback.exception(&text, number)
            && let Some(place) = rows::place_of("unknown-exception")
        {
            self.keep(place, 0, captures, &Line::new(&text), number);
        }
        match self.bare_number(&text) {
            Some(place) => {
                let title = ROWS.get(place).map_or("", |row| row.title);
                self.keep(place, 0, Vec::new(), &Line::new(title), number);
                self.scan(title, number);
            }
            None => {
                self.scan(&text, number);
                if let Some(place) = self.title(&text) {
                    self.keep(place, 0, Vec::new(), &Line::new(&text), number);
                }
            }
        }
        if ends_line {
            self.lines = number;
        }
    }

    /// Joins the lines of a wrapped message, and scans it when another line comes.
    fn join(&mut self, text: &str, number: u64) {
        let message = &mut self.wrapped.0;
        let is_more = !message.is_empty() && message.len() < WRAPPED_BYTES;
        if is_more && (text.starts_with("  ") || text.trim().is_empty()) {
            message.push_str(input::truncated(text, WRAPPED_BYTES));
            return;
        }
        self.end_message();
        if text.contains("CMake Error") {
            self.wrapped = (input::truncated(text, WRAPPED_BYTES).to_owned(), number);
        }
    }

    /// Scans the wrapped message.
    pub(crate) fn end_message(&mut self) {
        let (message, line) = core::mem::take(&mut self.wrapped);
        if !message.is_empty() {
            self.scan(&message, line);
        }
    }

    /// The row of a number that is asked for.
    fn bare_number(&self, text: &str) -> Option<usize> {
        let code = self.is_question.then(|| text.trim().parse().ok()).flatten()?;
        rows::row_of_code(rows::family("cuda")?, code)
    }

    /// The row whose title is asked for, if no line is known for it.
    fn title(&self, text: &str) -> Option<usize> {
        let is_asked = self.is_question && self.hits.is_empty();
        let is_title =
            |row: &Row| !row.title.is_empty() && row.title.eq_ignore_ascii_case(text.trim());
        is_asked.then(|| ROWS.iter().position(is_title)).flatten()
    }

    fn scan(&mut self, text: &str, number: u64) {
        let mut candidates = core::mem::take(&mut self.candidates);
        candidates.clear();
        let mut bits = 0;
        words::hashes(text.as_bytes(), |hash| {
            bits |= words::bit(hash);
            candidates.extend_from_slice(rows::found_by(hash));
        });
        candidates.retain(|place| {
            let entry = PATTERNS.get(usize::from(*place));
            entry.is_some_and(|entry| entry.bits & !bits == 0)
        });
        if !candidates.is_empty() {
            candidates.sort_unstable();
            candidates.dedup();
            candidates.truncate(CANDIDATES);
            self.matches(&Line::new(text), number, &candidates);
        }
        self.candidates = candidates;
    }

    fn matches(&mut self, line: &Line, number: u64, candidates: &[u16]) {
        let mut found: Vec<(usize, u16, Vec<Capture>)> = Vec::new();
        let mut numbers = Vec::new();
        let mut steps = STEPS * (line.text().len() + STEPS);
        let mut contexts = Vec::new();
        for place in candidates.iter().copied().map(usize::from) {
            let Some(entry) = PATTERNS.get(place) else { continue };
            let Some(captures) = self.find(place, line, &mut steps) else { continue };
            match entry.of {
                Use::Line(row) => found.push((row, entry.words, captures)),
                Use::Words(row) => {
                    let Some(words) = ROWS.get(row) else { continue };
                    let is_asked = self.is_question && words.platform == Platform::Cuda;
                    if is_asked || words.here.iter().any(|it| line.lower().contains(it)) {
                        found.push((row, entry.words, captures));
                    }
                }
                Use::Number(family) => {
                    let code = captures.iter().find(|it| it.name == "code");
                    let row = code.and_then(|it| rows::row_of_code(family, code_of(&it.text)?));
                    numbers.extend(row.map(|row| (family, row, captures)));
                }
                Use::Context => contexts.push((place, captures)),
            }
        }
        for (family, row, captures) in numbers {
            // A name or a message tells more than a number, which older versions counted otherwise.
            if !found.iter().any(|(row, ..)| rows::is_of_family(*row, family)) {
                found.push((row, 0, captures));
            }
        }
        let is_harmless = |row: &Row| {
            row.confidence == Confidence::Harmless
                && !row.recovers
                && row.near.is_empty()
                && row.without.is_empty()
                && row.when.is_empty()
        };
        let harmless = found.iter().filter(|(row, ..)| ROWS.get(*row).is_some_and(is_harmless));
        if let Some(harmless) = harmless.map(|(_, words, _)| *words).max() {
            // A line that names need and limit, or sizes of a launch, in more words is no harmless one.
            found.retain(|(row, words, captures)| {
                ROWS.get(*row).is_some_and(|row| match row.confidence {
                    Confidence::Harmless => true,
                    Confidence::Constraint => *words > harmless,
                    Confidence::Fact => {
                        let names = row.facts.iter().map(|(name, _)| *name);
                        let mut names = names.chain(captures.iter().map(|it| it.name.as_str()));
                        *words > harmless || !names.any(|it| OF_LAUNCH.contains(&it))
                    }
                    _ => false,
                })
            });
            contexts.clear();
        }
        // Of a row's patterns in the line, the one with the most words counts.
        found.sort_by_key(|(row, words, _)| (*row, Reverse(*words)));
        found.dedup_by_key(|(row, ..)| *row);
        let derived = DERIVED.iter().filter_map(|place| {
            let row = ROWS.get(*place)?;
            let of = found.iter().find(|(explained, ..)| row.explains.contains(explained))?;
            Some((*place, of.1, of.2.clone()))
        });
        let derived: Vec<_> = derived.collect();
        found.extend(derived);
        for (place, captures) in contexts {
            let found = self.contexts.entry(place).or_insert_with(|| Found {
                line: number,
                last: number,
                text: input::shortened(line.text(), SHOWN_BYTES),
                captures,
                words: PATTERNS.get(place).map_or(0, |it| it.words),
            });
            found.last = number;
        }
        for (row, words, captures) in found {
            self.keep(row, words, captures, line, number);
        }
    }

    /// What the pattern captures in the line.
    fn find(&mut self, place: usize, line: &Line, steps: &mut usize) -> Option<Vec<Capture>> {
        let text = PATTERNS.get(place)?.text;
        if self.compiled.is_empty() {
            self.compiled.resize(PATTERNS.len(), None);
        }
        let compiled = self.compiled.get_mut(place)?;
        if compiled.is_none() {
            *compiled = Some(Box::new(Pattern::parse(text).ok()?));
        }
        compiled.as_ref()?.find(line, steps)
    }

    fn keep(&mut self, place: usize, words: u16, captures: Vec<Capture>, line: &Line, number: u64) {
        let Some(row) = ROWS.get(place) else { return };
        if row.confidence == Confidence::Unknown && line.is_notice() {
            return;
        }
        let text =
            |name: &str| captures.iter().find(|it| it.name == name).map(|it| it.text.clone());
        let stated = row.facts.iter().filter_map(|(name, value)| {
            let (name, kind) = ((*name).to_owned(), kind_of(value));
            Some(Capture { name, kind, text: fill_all(value, &text)? })
        });
        let captured = captures.iter().filter(|_| row.confidence == Confidence::Fact).cloned();
        let facts: Vec<Capture> = stated.chain(captured).collect();
        for capture in facts {
            let same = self.facts.iter().filter(|it| it.capture.name == capture.name);
            if same.clone().count() < KEPT_VALUES && same.clone().all(|it| it.capture != capture) {
                self.facts.push(Fact { line: number, capture });
            }
        }
        let hit = self.hits.entry(place).or_default();
        hit.times = hit.times.saturating_add(1);
        let kept = if row.confidence == Confidence::Harmless { KEPT_HARMLESS } else { KEPT_FOUND };
        let same = hit
            .found
            .iter_mut()
            .find(|it| it.captures == captures && row.confidence != Confidence::Harmless);
        if let Some(same) = same {
            same.words = same.words.max(words);
            same.last = number;
        } else if hit.found.len() < kept {
            let text = input::shortened(line.text(), SHOWN_BYTES);
            hit.found.push(Found { line: number, last: number, text, captures, words });
        } else if let Some(last) = hit.found.last_mut().filter(|_| row.recovers) {
            // Of a program that goes on again and again, the last time counts.
            (last.line, last.last) = (number, number);
        }
    }
}

fn code_of(text: &str) -> Option<i64> {
    #[allow(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        reason = "codes have 32 bits"
    )]
    number_of(text).map(|it| it as i64)
}

/// The kind of a fact that a row states in words.
fn kind_of(value: &str) -> Kind {
    match value.find(|c: char| !(c.is_ascii_digit() || c == '.')) {
        Some(0) if value.starts_with('(') => Kind::Dims,
        None if value.contains('.') => Kind::Version,
        None if !value.is_empty() => Kind::Int,
        _ => Kind::Text,
    }
}
