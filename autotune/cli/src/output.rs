//! Writes results to standard output, as text or as one JSON document, and diagnostics to standard error.

use std::fmt::{self, Display};
use std::io::{self, Write};

use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, presets};
use console::Term;
use gridguard::profile::Named;
use serde::Serialize;
use textwrap::{Options, WordSplitter};

use crate::error::CommandError;

/// The argument `--format`.
#[derive(Args, Clone, Copy)]
pub(crate) struct OutputArgs {
    /// Format of the result: text for people, or one JSON document for programs
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

impl OutputArgs {
    /// Writes `document` as one line of JSON, or `text`, wrapped to the width of the terminal.
    pub(crate) fn print(
        self,
        document: &impl Serialize,
        text: impl Display,
    ) -> Result<(), CommandError> {
        match self.format {
            Format::Text => print(text),
            Format::Json => write(&(json(document)? + "\n")),
        }
    }
}

/// A `Display` from a closure.
pub(crate) fn text<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result>(write: F) -> impl Display {
    struct Text<F>(F);
    impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> Display for Text<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0(f)
        }
    }
    Text(write)
}

/// Writes `text` to standard output. A terminal wraps long lines with a hanging indent.
pub(crate) fn print(text: impl Display) -> Result<(), CommandError> {
    let text = text.to_string();
    write(&terminal_width().map_or(text.clone(), |width| wrap_all(&text, width)))
}

/// Writes `text` to standard output, unwrapped.
pub(crate) fn write(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    CommandError::check_write(written, "writing the result")
}

/// Writes a line to standard error. Unlike `eprintln!`, it does not panic at a closed pipe or a full disk.
pub(crate) fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

pub(crate) fn json(value: &impl Serialize) -> Result<String, CommandError> {
    serde_json::to_string(value).map_err(|error| {
        CommandError::failed(format_args!("cannot write the result as JSON: {error}"))
    })
}

/// `1 entry`, `2 entries`.
pub(crate) fn count<N: Display + PartialEq + From<u8>>(
    number: N,
    one: &str,
    several: &str,
) -> String {
    let noun = if number == N::from(1) { one } else { several };
    format!("{number} {noun}")
}

/// `, 3 failed, 2 skipped`: the counts above zero.
pub(crate) fn counted(counts: &[(usize, &str)]) -> String {
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, what)| format!(", {count} {what}")).collect()
}

/// `driver 13.0, tuner 0.1.0`: all texts that are not empty.
pub(crate) fn known(texts: &[(&str, &String)]) -> String {
    let texts = texts.iter().filter(|(_, text)| !text.is_empty());
    let words = texts.map(|(what, text)| format!("{what} {text}").trim_start().to_owned());
    words.collect::<Vec<_>>().join(", ")
}

/// `32768x4096`.
pub(crate) fn joined_sizes(shape: &Named) -> String {
    let sizes: Vec<String> = shape.iter().map(|(_, size)| size.to_string()).collect();
    sizes.join("x")
}

/// Rows of cells under a header, aligned by spaces. Omits empty columns, and shows other empty cells as a dash.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with this header. A title that starts with `>` aligns its column to the right.
    pub(crate) fn new<'a>(header: impl IntoIterator<Item = &'a str>) -> Self {
        let titles: Vec<&str> = header.into_iter().collect();
        let right = titles.iter().map(|title| title.starts_with('>')).collect();
        let header = titles.iter().map(|title| title.trim_start_matches('>').to_owned()).collect();
        Self { rows: vec![header], right }
    }

    pub(crate) fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).add_rows(
            self.rows
                .iter()
                .map(|row| row.iter().map(|cell| if cell.is_empty() { "-" } else { cell })),
        );
        if let Some(width) = terminal_width() {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        for (index, right) in self.right.iter().enumerate() {
            let Some(column) = table.column_mut(index) else { continue };
            column.set_padding((0, 2));
            if *right {
                column.set_cell_alignment(CellAlignment::Right);
            }
            let mut cells = self.rows.iter().skip(1).filter_map(|row| row.get(index));
            if cells.all(String::is_empty) {
                column.set_constraint(ColumnConstraint::Hidden);
            }
        }
        writeln!(f, "{}", table.trim_fmt())
    }
}

fn terminal_width() -> Option<u16> {
    Term::stdout().size_checked().map(|(_, columns)| columns.max(NARROWEST))
}

/// Wraps `text` to `width` columns. Keeps the indented commands below their headings in one piece, to be copied.
fn wrap_all(text: &str, width: u16) -> String {
    let mut is_command = false;
    let wrapped = text.lines().map(|line| {
        is_command &= line.starts_with("  ");
        let wrapped = if is_command { line.to_owned() } else { wrap(line, width) };
        is_command |= COMMAND_HEADINGS.contains(&line);
        wrapped + "\n"
    });
    wrapped.collect()
}

/// Wraps `line` to `width` columns between words.
fn wrap(line: &str, width: u16) -> String {
    // A command stays in one piece, if necessary on its own line.
    let (text, command) = line.split_at(line.find(COMMAND).unwrap_or(line.len()));
    let indent = " ".repeat(hanging_indent(line));
    // Paths and options stay in one piece.
    let options = Options::new(width.into())
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation)
        .subsequent_indent(indent.as_str());
    if command.is_empty() || textwrap::core::display_width(line) <= width.into() {
        return textwrap::fill(line, options.clone());
    }
    format!("{}\n{indent}{command}", textwrap::fill(text.trim_end(), options))
}

/// The column of the text: after the indent, and after `1. `, `-> ` or a first column.
fn hanging_indent(line: &str) -> usize {
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    let mark = match text.split_once(' ') {
        Some((first, rest)) if rest.starts_with(' ') => {
            first.len() + 1 + (rest.len() - rest.trim_start_matches(' ').len())
        }
        Some((first, _)) if first == "->" || first.ends_with('.') && first.len() < 4 => {
            first.len() + 1
        }
        _ => 0,
    };
    indent + mark
}

/// The least width that lines are wrapped to.
const NARROWEST: u16 = 60;
/// Lines that precede commands.
const COMMAND_HEADINGS: [&str; 2] = ["also useful", "next step"];
/// Starts a command at the end of a line.
const COMMAND: &str = "pip install --";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_fits_is_unchanged() {
        for line in ["", "  a", "good     driver: works", "x  y   z"] {
            assert_eq!(wrap(line, 80), line);
        }
    }

    #[test]
    fn a_long_line_continues_below_its_own_text() {
        let words = ["word"; 20].join(" ");
        for (start, indent) in
            [("", 0), ("  ", 2), ("  1. ", 5), ("bad      ", 9), ("         -> ", 12)]
        {
            let wrapped = wrap(&format!("{start}{words}"), 72);
            let lines: Vec<&str> = wrapped.lines().collect();
            assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= 72), "{wrapped}");
            assert!(lines[0].starts_with(start));
            for line in &lines[1..] {
                assert_eq!(line.find('w'), Some(indent), "{wrapped}");
            }
            let joined: Vec<&str> = wrapped.split_whitespace().collect();
            assert!(joined.join(" ").ends_with(&words));
        }
    }

    #[test]
    fn a_command_stays_in_one_piece() {
        let command =
            "pip install --force-reinstall torch --index-url https://download.pytorch.org/x";
        let line = format!("         -> update the driver, or {command}");
        let wrapped = format!("         -> update the driver, or\n            {command}");
        assert_eq!(wrap(&line, 72), wrapped);
        assert_eq!(wrap(&line, 200), line);
    }

    #[test]
    fn commands_below_a_heading_stay_in_one_piece() {
        let words = ["word"; 20].join(" ");
        let text = format!("also useful\n  {words}\nnext step\n  {words}\n");
        assert_eq!(wrap_all(&text, 60), text);
        assert!(wrap_all(&format!("next step\n  {words}\n\n  {words}\n"), 60).lines().count() > 4);
    }

    #[test]
    fn a_word_longer_than_the_line_is_not_broken() {
        for path in ["/".repeat(100), "/opt/cuda-12.8".repeat(5)] {
            assert_eq!(
                wrap(&format!("good     nvrtc: {path}"), 72),
                format!("good     nvrtc:\n         {path}")
            );
        }
    }

    #[test]
    fn a_column_without_content_is_left_out_and_an_empty_cell_is_a_dash() {
        let mut table = Table::new(["name", "nothing", ">size"]);
        table.push(["long name".into(), String::new(), "5".into()]);
        table.push(["b".into(), String::new(), String::new()]);
        assert_eq!(table.to_string(), "name       size\nlong name     5\nb             -\n");
    }
}
