//! Finds the elements of the one list in a file without understanding them.
//!
//! A file is `(schema: N, header fields, LIST: [element, ...])`. Each element is parsed by itself,
//! so that a bad one costs no other. Nothing here recurses, and every step moves on, so a hostile
//! file costs time in proportion to its length.

use super::error::{Fault, ProfileError};
use super::scanner::{Broken, Scanner};

/// How a file is laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// The field that holds the list, the last of the file.
    pub(super) list: &'static str,
    /// How a line begins that begins an element: where to go on after a broken one.
    pub(super) anchor: &'static str,
    /// The most elements.
    pub(super) max_elements: usize,
}

/// A file whose header was found.
#[derive(Debug)]
pub(super) struct Outline<'a> {
    layout: Layout,
    scanner: Scanner<'a>,
    /// Where the element that is being read begins.
    element: usize,
    /// What stands before the list, without the bracket that closes the file.
    pub(super) header: &'a str,
}

/// Elements and what was wrong with others.
#[derive(Debug)]
pub(super) struct Elements<T> {
    /// The good ones, each with the byte where it begins.
    pub(super) good: Vec<(usize, T)>,
    /// Where the bad ones begin, with faults whose positions are relative to that.
    pub(super) bad: Vec<(usize, Fault)>,
}

impl<'a> Outline<'a> {
    /// Reads as far as the list.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Schema`] where `schemas` does not take the number, whatever else the file
    /// holds; [`ProfileError::Header`] where there is no header.
    pub(super) fn open(
        text: &'a str,
        layout: Layout,
        schemas: impl Fn(u64) -> bool,
    ) -> Result<Self, ProfileError> {
        let mut scanner = Scanner::new(text);
        let broken = |broken: Broken| ProfileError::Header(place(text, broken));
        let schema = schema(&mut scanner).map_err(broken)?;
        if !schemas(schema) {
            return Err(ProfileError::Schema { found: schema });
        }
        let header = header(&mut scanner, layout).map_err(broken)?;
        let header = text.get(..header).unwrap_or_default();
        Ok(Self { layout, element: scanner.at(), scanner, header })
    }

    /// Reads the elements: with `fast` those that it takes, answering how many bytes, all others
    /// with `slow`, which says what is wrong.
    ///
    /// # Errors
    ///
    /// [`ProfileError::TooManyEntries`], and [`ProfileError::Structure`] where too many elements
    /// have no end.
    pub(super) fn elements<T>(
        mut self,
        fast: impl Fn(&str) -> Option<(T, usize)>,
        slow: impl Fn(&str) -> Result<T, Fault>,
    ) -> Result<Elements<T>, ProfileError> {
        let mut elements = Elements { good: Vec::new(), bad: Vec::new() };
        let mut recoveries = 0;
        loop {
            let broken = match self.step(&mut elements, &fast, &slow) {
                Ok(Step::Element) => None,
                Ok(Step::End) => return Ok(elements),
                Ok(Step::Swallowed) => {
                    Some(self.scanner.broken("an entry has swallowed the one behind it"))
                }
                Err(broken) => {
                    elements.bad.push((broken.at, first_character(broken.what.clone())));
                    Some(broken)
                }
            };
            if let Some(broken) = broken {
                recoveries += 1;
                if recoveries > MAX_RECOVERIES {
                    return Err(ProfileError::Structure(place(self.scanner.text(), broken)));
                }
                if !self.scanner.go_to_line(self.element, self.layout.anchor) {
                    return Ok(elements);
                }
            }
            if elements.good.len() + elements.bad.len() > self.layout.max_elements {
                return Err(ProfileError::TooManyEntries);
            }
        }
    }

    /// Reads one element and the comma after it, or the end of the file.
    fn step<T>(
        &mut self,
        elements: &mut Elements<T>,
        fast: impl Fn(&str) -> Option<(T, usize)>,
        slow: impl Fn(&str) -> Result<T, Fault>,
    ) -> Result<Step, Broken> {
        self.element = self.scanner.at();
        self.scanner.skip_trivia()?;
        self.element = self.scanner.at();
        if self.scanner.eat(b']') {
            return self.scanner.expect_end().map(|()| Step::End);
        }
        let start = self.element;
        if let Some((element, bytes)) = fast(self.scanner.rest()) {
            self.scanner.advance(bytes);
            self.scanner.skip_trivia()?;
            if self.scanner.eat(b',') || self.scanner.peek() == Some(b']') {
                elements.good.push((start, element));
                return Ok(Step::Element);
            }
            self.scanner.go_to(start);
        }
        let element = self.scanner.skip_value()?;
        let separated = self.scanner.eat(b',');
        if !separated && self.scanner.peek() != Some(b']') {
            return Err(self.scanner.broken("the list of entries is not closed here by `]`"));
        }
        match slow(element.trim_end()) {
            Ok(element) => elements.good.push((start, element)),
            Err(fault) => {
                elements.bad.push((start, fault));
                // A bracket or a comma that is missing is not the fault of what comes behind.
                let (end, anchor) = (self.scanner.at(), self.layout.anchor);
                let swallows = self.scanner.go_to_line(start, anchor) && self.scanner.at() < end;
                self.scanner.go_to(end);
                if swallows {
                    return Ok(Step::Swallowed);
                }
            }
        }
        Ok(Step::Element)
    }
}

/// What was read.
enum Step {
    /// An element, good or bad.
    Element,
    /// A bad element that has a line within which begins another one.
    Swallowed,
    /// The end of the file.
    End,
}

/// Turns relative positions into those of the file, in the file's order.
pub(super) fn locate(text: &str, mut bad: Vec<(usize, Fault)>) -> Vec<Fault> {
    bad.sort_by_key(|(start, fault)| (*start, fault.line, fault.column));
    let (mut line, mut column, mut at) = (1, 1, 0);
    let mut faults = Vec::with_capacity(bad.len());
    for (start, fault) in bad {
        for character in text.get(at..start).unwrap_or_default().chars() {
            (line, column) = if character == '\n' { (line + 1, 1) } else { (line, column + 1) };
        }
        at = start;
        let first = fault.line <= 1;
        faults.push(Fault {
            line: line + fault.line.saturating_sub(1),
            column: if first { column + fault.column.saturating_sub(1) } else { fault.column },
            message: fault.message,
        });
    }
    // What is wrong with an entry may be told behind the beginning of the next one.
    faults.sort_by_key(|fault| (fault.line, fault.column));
    faults
}

/// A fault at the first character.
pub(super) fn first_character(message: impl Into<String>) -> Fault {
    Fault { line: 1, column: 1, message: message.into() }
}

/// What RON's own parser says, as a fault with relative positions.
pub(super) fn from_ron(error: &ron::error::SpannedError) -> Fault {
    let start = error.span.start;
    Fault { line: start.line, column: start.col, message: error.code.to_string() }
}

fn place(text: &str, broken: Broken) -> Fault {
    let fault = first_character(broken.what);
    locate(text, vec![(broken.at, fault.clone())]).pop().unwrap_or(fault)
}

/// Reads `(schema: N`.
fn schema(scanner: &mut Scanner<'_>) -> Result<u64, Broken> {
    scanner.skip_trivia()?;
    if !scanner.eat(b'(') {
        return Err(scanner.broken("a file begins with `(schema: 1,`"));
    }
    scanner.skip_trivia()?;
    if scanner.word() != "schema" {
        return Err(scanner.broken("a file begins with `(schema: 1,`"));
    }
    colon(scanner)?;
    let number = scanner.word().parse();
    number.map_err(|_| scanner.broken("the schema is a number, such as 1"))
}

/// Reads the other fields, up to the bracket that opens the list. The answer is where its name
/// begins.
fn header(scanner: &mut Scanner<'_>, layout: Layout) -> Result<usize, Broken> {
    for _ in 0..MAX_HEADER_FIELDS {
        scanner.skip_trivia()?;
        if !scanner.eat(b',') {
            return Err(scanner.broken("a comma is missing"));
        }
        scanner.skip_trivia()?;
        let start = scanner.at();
        if start > MAX_HEADER_BYTES {
            return Err(scanner.broken("the header is longer than 65536 bytes"));
        }
        let list = scanner.word() == layout.list;
        colon(scanner)?;
        if !list {
            scanner.skip_value()?;
        } else if scanner.eat(b'[') {
            return Ok(start);
        } else {
            return Err(scanner.broken("a list in `[` and `]` is missing"));
        }
    }
    Err(scanner.broken("the header has more than 32 fields"))
}

fn colon(scanner: &mut Scanner<'_>) -> Result<(), Broken> {
    scanner.skip_trivia()?;
    if !scanner.eat(b':') {
        return Err(scanner.broken("a name and a colon are missing"));
    }
    scanner.skip_trivia()
}

/// Elements without an end after which a file is given up: a bound on scanning the same twice.
const MAX_RECOVERIES: usize = 100;
const MAX_HEADER_BYTES: usize = 65_536;
const MAX_HEADER_FIELDS: usize = 32;
