//! Patterns: literal words with typed holes, found anywhere in a line.
//!
//! The literals ignore ASCII case, and a run of white space is one blank. A pattern begins and ends at the borders
//! of words; `^` in front of it is the beginning of the line's message, `$` behind it the line's end. `{name:kind}`
//! captures, `{*}` skips text, `{=}` what is between a name and its value, `{{` and `}}` are braces.

use core::ops::Range;

use crate::value::{Kind, is_word};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// In lower case.
    Literal(String),
    Hole {
        name: String,
        kind: Kind,
    },
    Skip,
}

/// A pattern that is ready to be searched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) parts: Vec<Part>,
    /// It begins where the message does.
    begins: bool,
    /// It ends where the line does.
    ends: bool,
}

/// A captured text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capture {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// A line with single blanks, and the same in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    text: String,
    lower: String,
}

impl Line {
    pub(crate) fn new(line: &str) -> Self {
        let mut text = String::with_capacity(line.len());
        for word in line.split_whitespace() {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(word);
        }
        let lower = text.to_ascii_lowercase();
        Self { text, lower }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn lower(&self) -> &str {
        &self.lower
    }

    /// Whether a tag in front of the message, or Python's kind of warning, says that nothing failed.
    pub(crate) fn is_notice(&self) -> bool {
        const LEVELS: [&str; 8] = ["warning", "warn", "info", "debug", "notice", "w", "i", "d"];
        let tags = self.lower.get(..self.starts().pop().unwrap_or(0)).unwrap_or_default();
        // A path's drive, a thread or a host may be named like a level of one letter.
        let is_level = |word: &str| {
            let name = word.split(':').next().unwrap_or_default();
            LEVELS.contains(&name) && (name.len() > 1 || name == word)
        };
        let is_between = |c: char| c.is_whitespace() || "[](),|".contains(c);
        tags.split(is_between).any(is_level) || self.text.contains("Warning: ")
    }

    /// Where the message may begin: at the start, and behind each time stamp, level and bracket in front of it.
    pub(crate) fn starts(&self) -> Vec<usize> {
        let mut starts = vec![0];
        let mut at = 0;
        while let Some(length) = self.text.get(at..).and_then(tag) {
            at += length;
            starts.push(at);
        }
        starts
    }
}

/// The length of the tag that `text` begins with, with the blanks behind it: `[rank0]:`, `2026-01-31`, `ERROR`, `web-1 |`.
fn tag(text: &str) -> Option<usize> {
    const LONGEST_TAG: usize = 80;
    const LEVELS: [&str; 12] = [
        "critical", "debug", "e", "err", "error", "f", "fatal", "i", "info", "w", "warn", "warning",
    ];
    let end = text.char_indices().nth(LONGEST_TAG).map_or(text.len(), |(at, _)| at);
    let head = text.get(..end)?;
    let word = head.split(' ').next().unwrap_or_default();
    let plain = word.trim_end_matches(':').to_ascii_lowercase();
    let is_time = plain.starts_with(|c: char| c.is_ascii_digit() || "ewif".contains(c))
        && plain.bytes().skip(1).any(|it| it.is_ascii_digit())
        && plain.chars().skip(1).all(|c| c.is_ascii_digit() || "-:./,+tz".contains(c));
    let length = match head.as_bytes().first()? {
        b'[' => head.find(']')? + 1,
        b'(' => head.find(')')? + 1,
        _ if is_time || LEVELS.contains(&plain.as_str()) => word.len(),
        // The journal's host and process, and the name of a container.
        _ => match (head.find("]: "), head.find("| ")) {
            (Some(end), _) if !head.get(..end)?.contains(": ") => end + 1,
            (_, Some(end)) => end + 1,
            _ => return None,
        },
    };
    let rest = text.get(length..)?;
    Some(length + (rest.len() - rest.trim_start_matches([':', ' ']).len()))
}

impl Pattern {
    /// # Errors
    ///
    /// What is wrong with the text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let (begins, ends) = (text.starts_with('^'), text.ends_with('$'));
        let mut rest = text.strip_prefix('^').unwrap_or(text);
        rest = rest.strip_suffix('$').unwrap_or(rest);
        while let Some(place) = rest.find(['{', '}']) {
            let (before, found) = rest.split_at(place);
            literal.push_str(before);
            let doubled = ["{{", "}}"].into_iter().find(|it| found.starts_with(it));
            if let Some(doubled) = doubled {
                literal.push_str(&doubled[1..]);
                rest = &found[2..];
                continue;
            }
            let hole = found.strip_prefix('{').and_then(|it| it.split_once('}'));
            let (hole, after) =
                hole.ok_or_else(|| format!("a brace without its other: {found}"))?;
            push_literal(&mut parts, &mut literal);
            parts.push(match hole.split_once(':') {
                None if hole == "*" => Part::Skip,
                None if hole == "=" => Part::Hole { name: String::new(), kind: Kind::Sign },
                Some((name, kind)) if is_name(name) => {
                    let kind =
                        Kind::from_name(kind).ok_or_else(|| format!("no type of holes: {kind}"))?;
                    Part::Hole { name: name.to_owned(), kind }
                }
                _ => return Err(format!("no hole: {{{hole}}}")),
            });
            rest = after;
        }
        literal.push_str(rest);
        push_literal(&mut parts, &mut literal);
        if let Some(Part::Literal(first)) = parts.first_mut() {
            *first = first.trim_start().to_owned();
        }
        if let Some(Part::Literal(last)) = parts.last_mut() {
            *last = last.trim_end().to_owned();
        }
        if parts.windows(2).any(|pair| pair.iter().all(Part::is_open)) {
            return Err("two holes of text without a literal between them".into());
        }
        Ok(Self { parts, begins, ends })
    }

    /// What it captures in `line`, if it is there. Takes from `steps`, and gives up without any.
    pub(crate) fn find(&self, line: &Line, steps: &mut usize) -> Option<Vec<Capture>> {
        let mut search = Search { line, steps, captures: Vec::new(), end: None };
        let mut at = 0;
        let mut place = 0;
        let mut open: Option<&Part> = None;
        loop {
            let rest = self.parts.get(place..).unwrap_or_default();
            let length = rest.iter().position(Part::is_open).unwrap_or(rest.len());
            let (segment, after) = rest.split_at(length);
            // A text has at least one character.
            let is_text = matches!(open, Some(Part::Hole { .. }));
            let first = line.text.get(at..)?.chars().next().filter(|_| is_text);
            let from = at + first.map_or(0, char::len_utf8);
            let (start, end) = match (segment.is_empty(), after.is_empty()) {
                (true, true) => (line.text.len(), line.text.len()),
                (true, false) => (at, at),
                _ => {
                    search.end = (self.ends && after.is_empty()).then_some(line.text.len());
                    match self.begins && place == 0 {
                        true => {
                            let mut starts = line.starts().into_iter();
                            starts.find_map(|at| Some((at, search.sequence(segment, at)?)))?
                        }
                        false => search.segment(segment, from)?,
                    }
                }
            };
            if let Some(part @ Part::Hole { .. }) = open {
                let text = line.text.get(at..start)?;
                let begin = at + (text.len() - text.trim_start().len());
                let finish = begin + text.trim().len();
                if begin == finish {
                    return None;
                }
                search.captures.push((part, begin..finish));
            }
            let Some(next) = after.first() else { break };
            open = Some(next);
            at = end;
            place += length + 1;
        }
        let capture = |(part, range): (&Part, Range<usize>)| match part {
            Part::Hole { name, kind } if !name.is_empty() => {
                let text = line.text.get(range)?.to_owned();
                Some(Capture { name: name.clone(), kind: *kind, text })
            }
            _ => None,
        };
        Some(search.captures.into_iter().filter_map(capture).collect())
    }
}

impl Part {
    /// Whether it takes any text.
    const fn is_open(&self) -> bool {
        matches!(self, Self::Skip | Self::Hole { kind: Kind::Text, .. })
    }
}

struct Search<'a, 's> {
    line: &'a Line,
    steps: &'s mut usize,
    captures: Vec<(&'a Part, Range<usize>)>,
    /// Where the segment has to end.
    end: Option<usize>,
}

impl<'a> Search<'a, '_> {
    /// The first place from `from` on where all of `parts` match, one behind the other.
    fn segment(&mut self, parts: &'a [Part], from: usize) -> Option<(usize, usize)> {
        let (text, lower) = (&self.line.text, &self.line.lower);
        let mut from = from;
        loop {
            let start = match parts.first()? {
                Part::Literal(literal) => from + lower.get(from..)?.find(literal.as_str())?,
                // A hole begins at the border of a word.
                _ => {
                    let bytes = text.as_bytes().iter().enumerate().skip(from);
                    let begins = |(at, byte): &(usize, &u8)| {
                        **byte != b' ' && text.is_char_boundary(*at) && is_border(text, *at)
                    };
                    bytes.into_iter().find(begins)?.0
                }
            };
            *self.steps = self.steps.checked_sub(1)?;
            if is_border(text, start) {
                let kept = self.captures.len();
                if let Some(end) = self.sequence(parts, start) {
                    return Some((start, end));
                }
                self.captures.truncate(kept);
            }
            from = start + text.get(start..)?.chars().next()?.len_utf8();
        }
    }

    /// The end of `parts`, which begin at `at`.
    fn sequence(&mut self, parts: &'a [Part], at: usize) -> Option<usize> {
        *self.steps = self.steps.checked_sub(1)?;
        let Some((first, rest)) = parts.split_first() else {
            let is_end = self.end.is_none_or(|end| end == at);
            return (is_end && is_border(&self.line.text, at)).then_some(at);
        };
        match first {
            Part::Literal(literal) => {
                let found = self.line.lower.get(at..)?.starts_with(literal.as_str());
                found.then(|| self.sequence(rest, at + literal.len())).flatten()
            }
            Part::Hole { kind, .. } => {
                for end in kind.ends(&self.line.text, at, rest.is_empty()) {
                    let kept = self.captures.len();
                    self.captures.push((first, at..end));
                    if let Some(end) = self.sequence(rest, end) {
                        return Some(end);
                    }
                    self.captures.truncate(kept);
                }
                None
            }
            Part::Skip => None,
        }
    }
}

/// Whether no word continues across `at`.
fn is_border(text: &str, at: usize) -> bool {
    let is_inside = |at: Option<usize>| {
        at.and_then(|at| text.as_bytes().get(at)).is_some_and(|it| is_word(*it))
    };
    !(is_inside(at.checked_sub(1)) && is_inside(Some(at)))
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Appends the literal with single blanks.
fn push_literal(parts: &mut Vec<Part>, literal: &mut String) {
    if literal.is_empty() {
        return;
    }
    let mut text = String::new();
    for c in literal.drain(..) {
        if !(c.is_whitespace() && text.ends_with(' ')) {
            text.push(if c.is_whitespace() { ' ' } else { c.to_ascii_lowercase() });
        }
    }
    parts.push(Part::Literal(text));
}
