//! The examples at the end of each help text.

use clap::Command;
use clap::builder::StyledStr;
use console::{Term, colors_enabled};

use crate::error::{CommandError, Exit};
use crate::output::{columns, note, wrap_all, write};

/// Each subcommand, and below it its examples. Builds without the feature `fleet` pass over that feature's commands.
const EXAMPLES: &str = include_str!("help.txt");

/// The subcommands of [`EXAMPLES`], without the name of the command, each with its examples.
fn examples() -> impl Iterator<Item = (&'static str, &'static str)> {
    EXAMPLES.split("\ngridguard").map(|one| {
        let (path, examples) = one.split_once('\n').unwrap_or((one, ""));
        (path.trim_start_matches("gridguard").trim_start(), examples.trim_end())
    })
}

/// The columns of help texts: of the terminal, at most a width that reads well.
fn width() -> usize {
    columns(&Term::stdout()).map_or(USUAL, |columns| columns.min(WIDEST))
}

/// Writes a help text to standard output.
pub(crate) fn print(text: &StyledStr) -> Result<Exit, CommandError> {
    let text = if colors_enabled() { text.ansi().to_string() } else { text.to_string() };
    write(&wrap_all(&text, width())).map(|()| Exit::Yes)
}

/// Answers arguments that name no work: a help text, the version, or why they are invalid.
pub(crate) fn answer(error: &clap::Error) -> Result<Exit, CommandError> {
    if !error.use_stderr() {
        return print(&error.render());
    }
    note(error.render().to_string().trim_end());
    Ok(Exit::InvalidInput)
}

/// Adds the examples to the help texts of `command` and its subcommands.
pub(crate) fn with_examples(command: Command) -> Command {
    let command = command.next_line_help(width() < TWO_COLUMNS);
    examples().fold(command, |command, (path, examples)| {
        let title = style(&command);
        let text = format!("{title}Examples:{title:#}\n{examples}");
        add(command, path, &text)
    })
}

/// The style of a heading, which only a terminal shows.
fn style(command: &Command) -> clap::builder::styling::Style {
    *command.get_styles().get_header()
}

/// Adds `text` to the subcommand at `path`, if this machine has it.
fn add(command: Command, path: &str, text: &str) -> Command {
    let (name, rest) = path.split_once(' ').unwrap_or((path, ""));
    if name.is_empty() {
        let end =
            command.get_after_help().map_or_else(String::new, |end| format!("\n\n{}", end.ansi()));
        let long = command.get_after_long_help().map(|end| format!("{text}\n\n{}", end.ansi()));
        let command = command.after_help(format!("{text}{end}"));
        return match long {
            Some(long) => command.after_long_help(long),
            None => command,
        };
    }
    match shown(&command, name) {
        Some(_) => command.mut_subcommand(name, |subcommand| add(subcommand, rest, text)),
        None => command,
    }
}

/// The subcommand with this name, unless it is hidden.
fn shown<'c>(command: &'c Command, name: &str) -> Option<&'c Command> {
    command.get_subcommands().find(|one| one.get_name() == name && !one.is_hide_set())
}

/// Columns of a terminal that is not known.
const USUAL: usize = 80;
const WIDEST: usize = 100;
/// From this width on the explanation of an option is beside it.
const TWO_COLUMNS: usize = 72;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Command as Gridguard;

    #[test]
    fn every_subcommand_has_examples_which_it_accepts() {
        let (all, mut named) = (with_examples(Gridguard::command()), 0);
        let mut left: Vec<&Command> = vec![&all];
        while let Some(command) = left.pop() {
            left.extend(command.get_subcommands().filter(|one| !one.is_hide_set()));
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:\n  gridguard "), "{}", command.get_name());
            named += 1;
        }
        let here = |path: &str| {
            let mut names = path.split_whitespace();
            names.try_fold(&all, shown).is_some()
        };
        let (here, elsewhere): (Vec<_>, Vec<_>) = examples().partition(|(path, _)| here(path));
        assert_eq!(named, here.len());
        assert!(!cfg!(feature = "fleet") || elsewhere.is_empty(), "{elsewhere:?}");
        for example in here.iter().flat_map(|(_, examples)| examples.lines()) {
            let words = example.replace("'./bench {chunk}'", "./bench");
            if let Err(error) = all.clone().try_get_matches_from(words.split_whitespace()) {
                panic!("{example}: {error}");
            }
        }
    }

    #[test]
    fn a_short_help_fits_on_a_screen() {
        let mut left = vec![with_examples(Gridguard::command())];
        while let Some(mut command) = left.pop() {
            left.extend(command.get_subcommands().filter(|one| !one.is_hide_set()).cloned());
            let lines = command.render_help().to_string().lines().count();
            assert!(lines <= SCREEN, "{}: {lines} lines", command.get_name());
        }
    }

    /// Lines of an ordinary terminal.
    const SCREEN: usize = 32;
}
