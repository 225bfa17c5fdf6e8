//! Writes results to standard output, as text or as one JSON document, and diagnostics to standard error.

use std::env;
use std::fmt::{self, Display, Write as _};
use std::io::{self, Write};

use clap::{Args, ValueEnum};
use console::{Style, Term, colors_enabled};
use gridguard::Rule;
use gridguard::profile::Named;
use serde::Serialize;
use textwrap::core::display_width;
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

/// Writes `text` to standard output. A terminal wraps long lines with a hanging indent, and shows colours.
pub(crate) fn print(text: impl Display) -> Result<(), CommandError> {
    let text = text.to_string();
    let text = columns(&Term::stdout()).map_or(text.clone(), |columns| wrap_all(&text, columns));
    write(&if colors_enabled() { painted(&text) } else { text })
}

/// Writes `text` to standard output, unwrapped.
pub(crate) fn write(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    CommandError::check_write(written, "writing the result")
}

/// Writes a line to standard error. Unlike `eprintln!`, it does not panic at a closed pipe or a full disk.
pub(crate) fn note(line: impl Display) {
    let line = line.to_string() + "\n";
    let line = columns(&Term::stderr()).map_or(line.clone(), |columns| wrap_all(&line, columns));
    let _ = io::stderr().write_all(line.as_bytes());
}

pub(crate) fn json(value: &impl Serialize) -> Result<String, CommandError> {
    serde_json::to_string(value).map_err(|error| {
        CommandError::failed(format_args!("cannot write the result as JSON: {error}"))
    })
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
    /// A list, a paragraph for each row, where the terminal is too narrow.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((titles, rows)) = self.rows.split_first() else { return Ok(()) };
        let cell = |row: &[String], column| row.get(column).cloned().unwrap_or_default();
        let has_content = |column: &usize| rows.iter().any(|row| !cell(row, *column).is_empty());
        let shown: Vec<usize> = (0..titles.len()).filter(has_content).collect();
        let width = |column: &usize| {
            self.rows.iter().map(|row| display_width(&cell(row, *column))).max().unwrap_or(0)
        };
        let widths: Vec<usize> = shown.iter().map(width).collect();
        let needed = widths.iter().sum::<usize>() + 2 * shown.len().saturating_sub(1);
        if columns(&Term::stdout()).is_some_and(|columns| needed > columns) {
            let label = shown.iter().skip(1).map(|column| display_width(&cell(titles, *column)));
            let label = label.max().unwrap_or(0);
            for row in rows {
                writeln!(f, "{}", cell(row, 0))?;
                for column in shown.iter().skip(1).filter(|column| !cell(row, **column).is_empty())
                {
                    let (title, cell) = (cell(titles, *column), cell(row, *column));
                    writeln!(f, "  {title:label$}  {}", cell.trim_start())?;
                }
            }
            return Ok(());
        }
        for (place, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, width) in shown.iter().zip(&widths) {
                let cell = Some(cell(row, *column)).filter(|cell| place == 0 || !cell.is_empty());
                let cell = cell.unwrap_or_else(|| "-".to_owned());
                let blanks = " ".repeat(width - display_width(&cell));
                let is_right = self.right.get(*column).is_some_and(|right| *right);
                line += &if is_right { blanks + &cell } else { cell + &blanks };
                line += "  ";
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The columns of a terminal, or else of the variable `COLUMNS`; `None` without either, where lines stay whole.
pub(crate) fn columns(term: &Term) -> Option<usize> {
    let stated = || env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    let columns = term.size_checked().map(|(_, columns)| columns).or_else(stated)?;
    Some(usize::from(columns.max(NARROWEST)))
}

/// Wraps `text` to `width` columns. Commands below their headings can be copied: their lines end with a backslash.
pub(crate) fn wrap_all(text: &str, width: usize) -> String {
    let mut is_command = false;
    let wrapped = text.lines().map(|line| {
        is_command &= line.starts_with("  ");
        let wrapped = match line.trim_start() {
            command if is_command => continued(command, &line[..line.len() - command.len()], width),
            _ => wrap(line, width),
        };
        is_command |=
            !line.starts_with(' ') && COMMAND_HEADINGS.iter().any(|one| line.contains(one));
        wrapped + "\n"
    });
    wrapped.collect()
}

/// Wraps `line` to `width` columns between words.
fn wrap(line: &str, width: usize) -> String {
    let (text, command) = line.split_at(line.find(COMMAND).unwrap_or(line.len()));
    let indent = " ".repeat(hanging_indent(line, width));
    if command.is_empty() || display_width(line) <= width {
        return textwrap::fill(line, options(width).subsequent_indent(&indent));
    }
    let text = textwrap::fill(text.trim_end(), options(width).subsequent_indent(&indent));
    format!("{text}\n{}", continued(command, &indent, width))
}

/// A command in lines of which all but the last end with a backslash.
fn continued(command: &str, indent: &str, width: usize) -> String {
    if display_width(command) + indent.len() <= width {
        return format!("{indent}{command}");
    }
    let further = format!("{indent}  ");
    let options = options(width.saturating_sub(2)).initial_indent(indent);
    // Between quotes, a backslash at the end of a line would belong to the word.
    let quoted = |(part, text): (usize, &str)| match part % 2 {
        0 => text.to_owned(),
        _ => text.replace(' ', "\u{a0}"),
    };
    let words: Vec<String> = command.split('\'').enumerate().map(quoted).collect();
    let lines = textwrap::wrap(&words.join("'"), options.subsequent_indent(&further)).join(" \\\n");
    lines.replace('\u{a0}', " ")
}

/// Paths and options stay in one piece.
fn options(width: usize) -> Options<'static> {
    Options::new(width).break_words(false).word_splitter(WordSplitter::NoHyphenation)
}

/// The column of the text: after the indent, and after `1. `, `-> ` or a first column.
fn hanging_indent(line: &str, width: usize) -> usize {
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    let mark = match (text.split_once("  "), text.split_once(' ')) {
        (Some((first, rest)), _) => {
            display_width(first) + 2 + (rest.len() - rest.trim_start_matches(' ').len())
        }
        (None, Some((first, _)))
            if ["->", "-"].contains(&first) || first.ends_with('.') && first.len() < 4 =>
        {
            first.len() + 1
        }
        _ => 0,
    };
    match indent + mark {
        column if column > width / 2 => (indent + 2).min(width / 2),
        column => column,
    }
}

/// Colours headings, ids of rules, and limits.
fn painted(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = String::new();
    for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
        let is_heading = !line.starts_with(' ') && next.starts_with("  ");
        let mut before = ["", ""];
        for part in line.split_inclusive(' ') {
            let word = part.trim_matches(|sign: char| !sign.is_alphanumeric() && sign != '-');
            let style = match word {
                _ if Rule::ALL.iter().any(|rule| rule.id() == word) => Style::new().cyan(),
                _ if before == ["limit", "is"] => Style::new().yellow(),
                _ if is_heading || ["fix:", "run:"].contains(&part.trim()) => Style::new().bold(),
                _ => Style::new(),
            };
            let (start, end) = part.split_once(word).unwrap_or((part, ""));
            let _ = write!(out, "{start}{}{end}", style.apply_to(word));
            if !word.is_empty() {
                before = [before[1], word];
            }
        }
        out.push('\n');
    }
    out
}

/// The least width that lines are wrapped to.
const NARROWEST: u16 = 20;
/// Lines that precede commands.
const COMMAND_HEADINGS: [&str; 3] = ["also useful", "next step", "Examples:"];
/// Starts a command at the end of a line.
const COMMAND: &str = "pip install --";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_continues_with_a_backslash_to_be_copied() {
        let command = "pip install --force-reinstall torch --index-url https://x.org";
        let line = format!("         -> update the driver, or {command}");
        let first = "         -> update the driver, or\n            ";
        assert_eq!(wrap(&line, 200), line);
        assert_eq!(wrap(&line, 80), format!("{first}{command}"));
        let (start, end) = command.split_at(48);
        let continued = format!("{first}{} \\\n              {end}", start.trim_end());
        assert_eq!(wrap(&line, 64), continued);
        let text = "next step\n  abc def ghi\n\n  abc def ghi\n";
        let wrapped = "next step\n  abc def \\\n    ghi\n\n  abc def\n  ghi\n";
        assert_eq!(wrap_all(text, 12), wrapped);
    }

    #[test]
    fn a_column_without_content_is_left_out_and_an_empty_cell_is_a_dash() {
        let mut table = Table::new(["name", "nothing", ">size"]);
        table.push(["long name".into(), String::new(), "5".into()]);
        table.push(["b".into(), String::new(), String::new()]);
        assert_eq!(table.to_string(), "name       size\nlong name     5\nb             -\n");
    }
}
