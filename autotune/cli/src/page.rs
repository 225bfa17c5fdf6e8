//! Text that fits the terminal, where it goes to one.

use std::io::{self, Write};

use console::Term;

/// Lines are not made narrower than this, however narrow the terminal is.
const NARROWEST: usize = 60;
/// The beginning of a command at the end of a line.
const COMMAND: &str = "pip install --";

/// Writes `text` to standard output; longer lines than the terminal's go on below their own text.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let width = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    let mut out = io::stdout().lock();
    match width {
        Some(width) => {
            text.lines().try_for_each(|line| out.write_all(fold(line, width).as_bytes()))
        }
        None => out.write_all(text.as_bytes()),
    }?;
    out.flush()
}

/// Writes to standard error, where somebody reads it.
pub(crate) fn note(text: &str) {
    // Whoever closed it does not want to know.
    let _ = writeln!(io::stderr(), "{text}");
}

/// `line` in lines of at most `width` characters, where its words allow it.
fn fold(line: &str, width: usize) -> String {
    let width = width.max(NARROWEST);
    let hang = hang(line);
    let mut folded = String::with_capacity(line.len() + 1);
    let mut column = 0;
    // What is there to be copied stays in one piece.
    let (text, command) = line.split_at(line.find(COMMAND).unwrap_or(line.len()));
    let command = Some(command).filter(|command| !command.is_empty());
    let text = text.strip_suffix(' ').unwrap_or(text);
    for (place, word) in text.split(' ').chain(command).enumerate() {
        let length = word.chars().count();
        if place > 0 && !word.is_empty() && column > hang && column + 1 + length > width {
            folded.push('\n');
            folded.extend(std::iter::repeat_n(' ', hang));
            column = hang;
        } else if place > 0 {
            folded.push(' ');
            column += 1;
        }
        folded.push_str(word);
        column += length;
    }
    folded.push('\n');
    folded
}

/// Where the text of a line begins: behind its indent, and behind `1. `, `-> ` or a word in a column.
fn hang(line: &str) -> usize {
    let text = line.trim_start_matches(' ');
    let indent = line.len() - text.len();
    let mark = match text.split_once(' ') {
        Some((word, rest)) if rest.starts_with(' ') => {
            word.len() + 1 + (rest.len() - rest.trim_start_matches(' ').len())
        }
        Some((word, _)) if word == "->" || word.ends_with('.') && word.len() < 4 => word.len() + 1,
        _ => 0,
    };
    indent + mark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_stays_as_it_is() {
        for line in ["", "  a", "good     driver: well", "x  y   z"] {
            assert_eq!(fold(line, 80), format!("{line}\n"));
        }
    }

    #[test]
    fn a_long_line_goes_on_below_its_own_text() {
        let words = ["word"; 20].join(" ");
        for (start, hang) in
            [("", 0), ("  ", 2), ("  1. ", 5), ("bad      ", 9), ("         -> ", 12)]
        {
            let folded = fold(&format!("{start}{words}"), 72);
            let lines: Vec<&str> = folded.lines().collect();
            assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= 72), "{folded}");
            assert!(lines[0].starts_with(start));
            for line in &lines[1..] {
                assert_eq!(line.find('w'), Some(hang), "{folded}");
            }
            let joined: Vec<&str> = folded.split_whitespace().collect();
            assert!(joined.join(" ").ends_with(&words));
        }
    }

    #[test]
    fn a_command_stays_in_one_piece() {
        let command =
            "pip install --force-reinstall torch --index-url https://download.pytorch.org/x";
        let line = format!("         -> update the driver, or {command}");
        let folded = format!("         -> update the driver, or\n            {command}\n");
        assert_eq!(fold(&line, 72), folded);
        assert_eq!(fold(&line, 200), line + "\n");
    }

    #[test]
    fn a_word_longer_than_the_line_stays_whole() {
        let path = "/".repeat(100);
        assert_eq!(
            fold(&format!("good     nvrtc: {path}"), 72),
            format!("good     nvrtc:\n         {path}\n")
        );
    }
}
