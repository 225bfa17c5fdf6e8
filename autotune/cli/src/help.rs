//! The examples at the end of each help text.

use clap::Command;

/// Each subcommand, and below it its examples. Builds without the feature `fleet` pass over that feature's commands.
const EXAMPLES: &str = include_str!("help.txt");

/// The subcommands of [`EXAMPLES`], without the name of the command, each with its examples.
fn examples() -> impl Iterator<Item = (&'static str, &'static str)> {
    EXAMPLES.split("\ngridguard").map(|one| {
        let (path, examples) = one.split_once('\n').unwrap_or((one, ""));
        (path.trim_start_matches("gridguard").trim_start(), examples.trim_end())
    })
}

/// Adds the examples to the help texts of `command` and its subcommands.
pub(crate) fn with_examples(command: Command) -> Command {
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
        return command.after_help(format!("{text}{end}"));
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
