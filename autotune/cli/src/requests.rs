//! `gridguard check --requests`: checks JSON requests, one per line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use gridguard::DeviceLimits;
use gridguard::check::{CheckRequest, Verdict};
use serde_json::json;

use crate::error::{CommandError, Exit};
use crate::files::open;
use crate::output::{self, note};
use crate::words::WHOLE;

/// The longest line in bytes; a request needs less than 1,000.
const LINE_BYTES: u64 = 1 << 20;

/// Checks every line of `path`, or of standard input for `-`.
pub(crate) fn check_lines(
    path: &Path,
    limits: &DeviceLimits,
    opts_in: bool,
) -> Result<Exit, CommandError> {
    let name = path.display().to_string();
    let mut input: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(open(path)?))
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut worst = Exit::Yes;
    let (mut number, mut checked) = (0, 0_u64);
    while let Some(line) = read_line(&mut input).map_err(CommandError::io(&name))? {
        number += 1;
        if line.as_ref().is_ok_and(|text| text.trim().is_empty()) {
            continue;
        }
        checked += 1;
        let (exit, reply) = match line.and_then(|text| check(&text, limits, opts_in)) {
            Ok(verdict) => (verdict.legality.into(), output::json(&verdict)?),
            Err(error) => {
                note(format_args!("line {number}: {error}"));
                let reply = json!({ "line": number, "verdict": "error", "error": error });
                (Exit::InvalidInput, reply.to_string())
            }
        };
        worst = worst.max(exit);
        match writeln!(out, "{reply}") {
            // The reader has gone.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(worst),
            other => other.map_err(CommandError::io("writing the verdicts"))?,
        }
    }
    CommandError::check_write(out.flush(), "writing the verdicts")?;
    if checked == 0 {
        note(format_args!("{name} has no request: nothing was checked"));
    }
    Ok(worst)
}

fn check(text: &str, limits: &DeviceLimits, opts_in: bool) -> Result<Verdict, String> {
    let request: CheckRequest = serde_json::from_str(text.trim_end()).map_err(|error| {
        // The parser counts lines within the text, which is one line of the input.
        let position = format!(" at line {} column {}", error.line(), error.column());
        let message = error.to_string();
        let message = message.strip_suffix(&position).unwrap_or(&message);
        let message = message
            .replace("expected a tuple of size 3", "expected [x, y, z], such as [1, 76800, 1]");
        let message = message.replace("expected u64", &format!("expected {WHOLE}"));
        format!("column {}: {message}", error.column())
    })?;
    Ok(if opts_in { request.check_with_opt_in(limits) } else { request.check(limits) })
}

/// The next line, or why it is invalid; `None` at the end. Reads a long line in bounded memory.
fn read_line(input: &mut dyn BufRead) -> io::Result<Option<Result<String, String>>> {
    let mut bytes = Vec::new();
    if (&mut *input).take(LINE_BYTES).read_until(b'\n', &mut bytes)? == 0 {
        return Ok(None);
    }
    if bytes.last() != Some(&b'\n') && input.skip_until(b'\n')? > 0 {
        return Ok(Some(Err(format!("the line is longer than {LINE_BYTES} bytes"))));
    }
    let text = String::from_utf8(bytes);
    Ok(Some(text.map_err(|error| format!("the line is not UTF-8: {}", error.utf8_error()))))
}
