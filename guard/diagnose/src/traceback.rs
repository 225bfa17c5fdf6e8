//! The failing call of a traceback, its exception, and the program.

use crate::input::truncated;
use crate::pattern::{Capture, Line};
use crate::value::Kind;

/// Bytes of a line that are kept.
const KEPT_BYTES: usize = 400;
/// Lines between a frame and its exception: source of several lines, and notes on repeated frames.
const EXCEPTION_LINES: u64 = 12;
/// Where an exception without a traceback may be.
const BARE: [&str; 2] = ["Error: ", "Exception: "];

/// Follows the tracebacks of Python.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traceback {
    /// The innermost line of source so far, and its number.
    call: Option<(String, u64)>,
    /// Whether the next line may be source.
    is_source: bool,
    /// The innermost file that is not Python's own, and the number of its line.
    file: Option<(String, u64)>,
    /// The first program that a traceback names.
    pub(crate) program: Option<String>,
}

impl Traceback {
    /// Reads a line. The line behind a traceback returns the failing call.
    pub(crate) fn line(&mut self, text: &str, number: u64) -> Option<(String, u64)> {
        if !self.is_source && self.call.is_none() && !text.contains("File \"") {
            return None;
        }
        if let Some((_, frame)) = text.split_once("File \"")
            && frame.contains("\", line ")
        {
            self.is_source = true;
            self.read_frame(frame, number);
            return None;
        }
        let source = message(text);
        let is_mark = |c: char| matches!(c, '^' | '~' | ' ' | '-' | '|');
        if source.chars().all(is_mark) {
            return None;
        }
        if core::mem::take(&mut self.is_source) && exception(&source).is_none() {
            // Below a launch that states its grid are frames of the library alone.
            if !self.call.as_ref().is_some_and(|(call, _)| is_launch(call)) {
                self.call = Some((truncated(source.trim(), KEPT_BYTES).to_owned(), number));
            }
            return None;
        }
        self.call.take()
    }

    /// What the line says of the exception that ends the traceback: its kind and message, the file and its library.
    /// Without a traceback, the kind has to name its module: `pkg.errors.PkgError: text`.
    pub(crate) fn exception(&mut self, text: &str, number: u64) -> Option<Vec<Capture>> {
        self.file.take_if(|(_, since)| number.abs_diff(*since) > EXCEPTION_LINES);
        if self.file.is_none() && !BARE.iter().any(|end| text.contains(end)) {
            return None;
        }
        let message = message(text);
        // A loader's worker wraps its exception, whose own traceback follows.
        let (kind, what) = exception(&message).filter(|(kind, what)| {
            let names_module =
                kind.contains('.') && (kind.ends_with("Error") || kind.ends_with("Exception"));
            (self.file.is_some() || names_module)
                && what
                    .is_none_or(|it| !(it.starts_with("Caught ") && it.contains("worker process")))
        })?;
        let file = self.file.take().map(|(file, _)| file);
        let library = match &file {
            Some(file) => ["site-packages", "dist-packages"]
                .iter()
                .find_map(|folder| file.split_once(folder))
                .and_then(|(_, rest)| rest.split(['/', '\\']).find(|it| !it.is_empty())),
            None => kind.split('.').next(),
        };
        let name = file.as_ref().and_then(|it| it.rsplit(['/', '\\']).next());
        let said = [
            ("kind", Some(kind)),
            ("what", what.or(Some("no message"))),
            ("component", library.or(name)),
            ("library", library),
            ("file", file.as_deref()),
        ];
        let captures = said.into_iter().filter_map(|(name, text)| {
            let text = truncated(text?, KEPT_BYTES).to_owned();
            Some(Capture { name: name.to_owned(), kind: Kind::Text, text })
        });
        Some(captures.collect())
    }

    fn read_frame(&mut self, frame: &str, number: u64) {
        let Some((name, rest)) = frame.split_once('"') else { return };
        let name = truncated(name, KEPT_BYTES);
        let is_python_s =
            name.starts_with('<') || name.contains("lib/python") && !name.contains("-packages");
        if !is_python_s || self.file.is_none() {
            self.file = Some((name.to_owned(), number));
        } else if let Some((_, since)) = &mut self.file {
            *since = number;
        }
        // The outermost function is the program's own. The name becomes part of a command that is pasted.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if self.program.is_none()
            && rest.trim_end().ends_with("in <module>")
            && name.chars().all(is_plain)
            && !name.starts_with('-')
        {
            self.program = Some(format!("python {name}"));
        }
    }
}

/// Whether a line of source has sizes in brackets: `kernel[(1, 8), 256](x)`.
fn is_launch(call: &str) -> bool {
    let grid = call.split_once("](").and_then(|(before, _)| before.rsplit_once('['));
    grid.is_some_and(|(_, grid)| {
        grid.contains(',') && grid.starts_with(|c: char| c == '(' || c.is_ascii_digit())
    })
}

/// The line without the tags in front of it.
fn message(text: &str) -> String {
    let line = Line::new(text);
    let start = line.starts().pop().unwrap_or(0);
    line.text().get(start..).unwrap_or_default().to_owned()
}

/// The kind of an exception, and what it says: `torch.OutOfMemoryError: CUDA out of memory`.
fn exception(message: &str) -> Option<(&str, Option<&str>)> {
    const ENDS: [&str; 6] = ["Error", "Exception", "Exit", "Interrupt", "Failure", "Warning"];
    let (kind, what) = match message.split_once(": ") {
        Some((kind, what)) => (kind, Some(what.trim())),
        None => (message.trim_end_matches(':').trim_end(), None),
    };
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let last = kind.rsplit('.').next().unwrap_or(kind);
    let is_kind = kind.split('.').all(is_name)
        && (ENDS.iter().any(|end| last.ends_with(end)) || kind.contains('.') && what.is_some());
    is_kind.then_some((kind, what.filter(|it| !it.is_empty())))
}
