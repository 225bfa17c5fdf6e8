//! What a watched program is told, in the formats of log collectors and of GitHub.

use core::fmt::{self, Write};

use serde_json::{Map, Value, json};

use crate::frame::PythonFrame;
use crate::memory::RefusedAllocation;
use crate::process::RefusedLaunch;

/// A text for standard error, with what programs can read of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Message<'a> {
    /// The text, of one or more lines.
    pub text: &'a str,
    /// Whether something failed.
    pub is_error: bool,
    /// Where the program caused it.
    pub place: Option<&'a PythonFrame>,
    /// Names and values, for log collectors.
    pub attributes: Map<String, Value>,
}

impl<'a> Message<'a> {
    /// A note: nothing failed.
    pub fn note(text: &'a str) -> Self {
        Self { text, is_error: false, place: None, attributes: Map::new() }
    }

    /// A line of JSON with the fields of OpenTelemetry's log data model. `unix_nanos` is the time, `process` and
    /// `program` are the resource that logs.
    pub fn log_line(&self, unix_nanos: u128, process: u32, program: &str) -> String {
        let Self { text, is_error, place, attributes } = self;
        let mut attributes = attributes.clone();
        if let Some(PythonFrame { file, line, function }) = place {
            let code = [
                ("code.file.path", json!(file)),
                ("code.line.number", json!(line)),
                ("code.function.name", json!(function)),
            ];
            attributes.extend(code.map(|(name, value)| (name.to_owned(), value)));
        }
        let (severity, number) = if *is_error { ("ERROR", 17) } else { ("INFO", 9) };
        let record = json!({
            "Timestamp": unix_nanos.to_string(),
            "SeverityText": severity,
            "SeverityNumber": number,
            "Body": text.trim_end(),
            "Attributes": attributes,
            "Resource": {"process.pid": process, "process.executable.path": program},
        });
        format!("{record}\n")
    }

    /// A command of GitHub's workflows, which annotates the line of the source.
    pub fn annotation(&self) -> String {
        let Self { text, is_error, place, .. } = self;
        let mut line = format!("::{} ", if *is_error { "error" } else { "notice" });
        if let Some(PythonFrame { file, line: number, .. }) = place {
            // Writing to a string does not fail.
            let _ = write!(line, "file={},line={number},", Escaped(file, &PROPERTY));
        }
        let title = text.lines().next().unwrap_or_default();
        let _ = writeln!(
            line,
            "title={}::{}",
            Escaped(title, &PROPERTY),
            Escaped(text.trim_end(), &DATA)
        );
        line
    }
}

impl RefusedLaunch {
    /// The message of the refusal; `text` explains it.
    pub fn message<'a>(&'a self, text: &'a str) -> Message<'a> {
        let Self { kernel, code, request, violations, python, not_fixed, .. } = self;
        let attributes = json!({
            "cuda.kernel": kernel,
            "cuda.error": code,
            "cuda.grid": request.grid,
            "cuda.block": request.block,
            "cuda.dynamic_shared_bytes": request.dynamic_shared_bytes,
            "gridguard.rules": violations,
            "gridguard.not_fixed": not_fixed,
        });
        error(text, python, attributes)
    }
}

impl RefusedAllocation {
    /// The message of the refusal; `text` explains it.
    pub fn message<'a>(&'a self, text: &'a str) -> Message<'a> {
        let Self { function, code, requested_bytes, python, .. } = self;
        let attributes = json!({
            "cuda.function": function,
            "cuda.error": code,
            "cuda.requested_bytes": requested_bytes,
        });
        error(text, python, attributes)
    }
}

fn error<'a>(text: &'a str, python: &'a [PythonFrame], attributes: Value) -> Message<'a> {
    let Value::Object(attributes) = attributes else { return Message::note(text) };
    Message { text, is_error: true, place: PythonFrame::of_program(python), attributes }
}

/// A text with codes for the characters that end a part of a workflow's command.
struct Escaped<'a>(&'a str, &'a [(char, &'a str)]);

const DATA: [(char, &str); 3] = [('%', "%25"), ('\r', "%0D"), ('\n', "%0A")];
const PROPERTY: [(char, &str); 5] =
    [('%', "%25"), ('\r', "%0D"), ('\n', "%0A"), (':', "%3A"), (',', "%2C")];

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for one in self.0.chars() {
            match self.1.iter().find(|(special, _)| *special == one) {
                Some((_, code)) => f.write_str(code)?,
                None if one.is_control() => {}
                None => f.write_char(one)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_in_each_format() {
        let frame = PythonFrame { file: "a,b:%.py".into(), line: 4, function: "f".into() };
        let text = "gridguard: refused, 100 %\n  kernel  x::y\u{1b}[2J\n";
        let attributes = Map::from_iter([("cuda.kernel".to_owned(), json!("k\"\n"))]);
        let message = Message { text, is_error: true, place: Some(&frame), attributes };
        assert_eq!(
            message.annotation(),
            "::error file=a%2Cb%3A%25.py,line=4,title=gridguard%3A refused%2C 100 %25::gridguard: refused, \
             100 %25%0A  kernel  x::y[2J\n"
        );
        let line = message.log_line(12, 7, "/bin/p");
        assert_eq!(line.lines().count(), 1, "{line}");
        let record: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(record["Attributes"]["code.line.number"], 4);
        assert_eq!(record["Attributes"]["cuda.kernel"], "k\"\n");
        assert_eq!(record["Resource"]["process.pid"], 7);
        assert_eq!(record["Body"], text.trim_end());
        assert_eq!((&record["SeverityNumber"], &record["Timestamp"]), (&json!(17), &json!("12")));
        assert_eq!(Message::note("a").annotation(), "::notice title=a::a\n");
    }
}
