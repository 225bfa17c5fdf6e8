//! The failing call of a traceback, and the program.

/// Bytes of a line that are kept.
const KEPT_BYTES: usize = 400;

/// Follows the tracebacks of Python.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traceback {
    /// The innermost line of source so far, and its number.
    call: Option<(String, u64)>,
    /// Whether the next line may be source.
    is_source: bool,
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
            self.read_program(frame);
            return None;
        }
        let source = text.rsplit("]: ").next().unwrap_or(text);
        let is_mark = |c: char| matches!(c, '^' | '~' | ' ' | '-' | '|');
        if source.chars().all(is_mark) {
            return None;
        }
        if core::mem::take(&mut self.is_source) {
            let source = crate::input::truncated(source.trim(), KEPT_BYTES);
            self.call = Some((source.to_owned(), number));
            return None;
        }
        self.call.take()
    }

    /// The outermost function is the program's own.
    fn read_program(&mut self, frame: &str) {
        let Some((name, rest)) = frame.split_once('"') else { return };
        // The name becomes part of a command that is pasted.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if self.program.is_none()
            && rest.trim_end().ends_with("in <module>")
            && name.len() <= KEPT_BYTES
            && name.chars().all(is_plain)
            && !name.starts_with('-')
        {
            self.program = Some(format!("python {name}"));
        }
    }
}
