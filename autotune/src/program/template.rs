//! A command line with places for values.

use core::str::FromStr;
use std::collections::BTreeSet;

/// A program and its arguments, with places such as `{block}` for values.
///
/// Words are split and unquoted as by a POSIX shell, but no shell runs, so that `|`, `$` and `*` are
/// ordinary characters. Values are filled in afterwards and never split a word. `{{` and `}}` stand for
/// braces.
///
/// ```
/// use gridguard_autotune::CommandTemplate;
///
/// let command: CommandTemplate = "'./my bench' --block={block}".parse()?;
/// assert_eq!(command.fill(|name| (name == "block").then_some(64)), Ok(vec![
///     "./my bench".to_owned(),
///     "--block=64".to_owned(),
/// ]));
/// # Ok::<(), gridguard_autotune::TemplateError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandTemplate {
    /// At least one word.
    words: Vec<Vec<Piece>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Place(String),
}

/// Why a text is not a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// There is no word.
    #[error("the command is empty: give a program and its arguments")]
    Empty,
    /// A quote is not closed, or nothing follows a backslash.
    #[error("the command ends within a quotation or after a backslash: {command}")]
    Quotation {
        /// The command.
        command: String,
    },
    /// A brace is neither doubled nor around a name.
    #[error(
        "{word:?} has a brace that is not part of a place such as {{block}}: write {{{{ or }}}} for a \
         brace"
    )]
    Brace {
        /// The word of the command.
        word: String,
    },
    /// The program takes a value that is not known.
    #[error("the command has the place {{{name}}}, for which there is no value")]
    NoValue {
        /// The name of the place.
        name: String,
    },
}

impl CommandTemplate {
    /// The names of the places.
    #[must_use]
    pub fn places<'a>(&'a self) -> BTreeSet<&'a str> {
        let place = |piece: &'a Piece| match piece {
            Piece::Place(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        };
        self.words.iter().flatten().filter_map(place).collect()
    }

    /// The program and its arguments, with the value of each place.
    ///
    /// # Errors
    ///
    /// [`TemplateError::NoValue`] for the first place without a value.
    pub fn fill(&self, value: impl Fn(&str) -> Option<u64>) -> Result<Vec<String>, TemplateError> {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => Ok(text.clone()),
            Piece::Place(name) => match value(name) {
                Some(value) => Ok(value.to_string()),
                None => Err(TemplateError::NoValue { name: name.clone() }),
            },
        };
        self.words.iter().map(|word| word.iter().map(piece).collect()).collect()
    }
}

impl FromStr for CommandTemplate {
    type Err = TemplateError;

    fn from_str(command: &str) -> Result<Self, TemplateError> {
        let quotation = || TemplateError::Quotation { command: command.to_owned() };
        let words = shlex::split(command).ok_or_else(quotation)?;
        if words.is_empty() {
            return Err(TemplateError::Empty);
        }
        let words = words
            .iter()
            .map(|word| pieces(word).ok_or_else(|| TemplateError::Brace { word: word.clone() }));
        Ok(Self { words: words.collect::<Result<_, _>>()? })
    }
}

/// Whether a text can be the name of a place: a letter or `_`, then letters, digits and `_`.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The pieces of a word; `None` if a brace is out of place.
fn pieces(word: &str) -> Option<Vec<Piece>> {
    let (mut pieces, mut text, mut rest) = (Vec::new(), String::new(), word);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        if let Some((brace, after)) =
            ["{{", "}}"].into_iter().find_map(|pair| Some((pair, from.strip_prefix(pair)?)))
        {
            text.push_str(brace.get(..1)?);
            rest = after;
            continue;
        }
        let (name, after) = from.strip_prefix('{')?.split_once('}')?;
        if !is_name(name) {
            return None;
        }
        pieces.extend([Piece::Text(core::mem::take(&mut text)), Piece::Place(name.to_owned())]);
        rest = after;
    }
    text.push_str(rest);
    pieces.push(Piece::Text(text));
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(command: &str) -> Vec<String> {
        let command: CommandTemplate = command.parse().expect("a command");
        let value = |name: &str| match name {
            "a" => Some(1),
            "b_2" => Some(u64::MAX),
            _ => None,
        };
        command.fill(value).expect("values")
    }

    #[test]
    fn words_are_those_of_a_shell_and_values_do_not_split_them() {
        assert_eq!(filled("p {a} x{a}{b_2}y"), ["p", "1", "x118446744073709551615y"]);
        assert_eq!(filled("'my p' \"--n={a} \" a\\ b ''"), ["my p", "--n=1 ", "a b", ""]);
        assert_eq!(filled("p | sh $HOME *;{a}"), ["p", "|", "sh", "$HOME", "*;1"]);
        assert_eq!(filled("p '{{\"n\":{a}}}' {{a}} }}{{"), ["p", "{\"n\":1}", "{a}", "}{"]);
        assert_eq!(filled("{a}"), ["1"]);
    }

    #[test]
    fn places_are_listed_once_and_need_values() {
        let command: CommandTemplate = "p {b} {a}{b} {{c}}".parse().expect("a command");
        assert_eq!(command.places(), BTreeSet::from(["a", "b"]));
        let error = command.fill(|name| (name == "b").then_some(1)).expect_err("no a");
        assert_eq!(error, TemplateError::NoValue { name: "a".into() });
        assert_eq!(error.to_string(), "the command has the place {a}, for which there is no value");
    }

    #[test]
    fn commands_that_cannot_be_read_are_errors() {
        let error = |text: &str| text.parse::<CommandTemplate>().expect_err(text);
        for empty in ["", "  ", "\n"] {
            assert_eq!(error(empty), TemplateError::Empty);
        }
        for open in ["p 'a", "p \"a", "p \\"] {
            assert_eq!(error(open), TemplateError::Quotation { command: open.into() });
        }
        for word in
            ["{", "}", "{}", "{a", "a}", "{a b}", "{1}", "{{a}", "{a}}", "{\u{e9}}", "{a{b}}"]
        {
            let quoted = format!("p '{word}'");
            assert_eq!(error(&quoted), TemplateError::Brace { word: word.into() }, "{word}");
        }
        assert_eq!(
            error("p {").to_string(),
            "\"{\" has a brace that is not part of a place such as {block}: write {{ or }} for a brace"
        );
    }
}
