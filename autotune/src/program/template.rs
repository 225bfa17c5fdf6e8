//! A command line with placeholders for values.

use std::collections::BTreeSet;

use crate::error::Error;
use crate::ranges::is_name;

/// A program and its arguments, with placeholders such as `{block}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    /// At least one word.
    words: Vec<Vec<Piece>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Placeholder(String),
}

impl Template {
    /// Splits and unquotes the words as a POSIX shell does. `{{` and `}}` stand for braces.
    pub(super) fn parse(command: &str) -> Result<Self, Error> {
        let quotation = || {
            Error::input(format!(
                "the command ends within a quotation or after a backslash: {command}"
            ))
        };
        let words = shlex::split(command).ok_or_else(quotation)?;
        if words.is_empty() {
            return Err(Error::input("the command is empty: give a program and its arguments"));
        }
        let parsed = |word: &String| {
            pieces(word).ok_or_else(|| {
                Error::input(format!(
                    "{word:?} has a brace outside a placeholder such as {{block}}: write {{{{ or \
                     }}}} for a brace"
                ))
            })
        };
        Ok(Self { words: words.iter().map(parsed).collect::<Result<_, _>>()? })
    }

    pub(super) fn placeholders(&self) -> BTreeSet<&str> {
        let pieces = self.words.iter().flatten();
        let names = pieces.filter_map(|piece| match piece {
            Piece::Placeholder(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        });
        names.collect()
    }

    /// The program and its arguments, with `value` of each placeholder.
    pub(super) fn fill(&self, value: impl Fn(&str) -> u64) -> Vec<String> {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Placeholder(name) => value(name).to_string(),
        };
        self.words.iter().map(|word| word.iter().map(piece).collect()).collect()
    }
}

/// The pieces of a word; `None` for a brace that is neither doubled nor around a name.
fn pieces(word: &str) -> Option<Vec<Piece>> {
    let (mut pieces, mut text, mut rest) = (Vec::new(), String::new(), word);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        if let Some(after) = from.strip_prefix("{{").or_else(|| from.strip_prefix("}}")) {
            text.push_str(from.get(..1)?);
            rest = after;
            continue;
        }
        let (name, after) = from.strip_prefix('{')?.split_once('}')?;
        if !is_name(name) {
            return None;
        }
        pieces
            .extend([Piece::Text(core::mem::take(&mut text)), Piece::Placeholder(name.to_owned())]);
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
        let value = |name: &str| match name {
            "a" => 1,
            _ => u64::MAX,
        };
        Template::parse(command).expect("a command").fill(value)
    }

    #[test]
    fn words_are_split_like_a_shell_and_values_do_not_split_them() {
        assert_eq!(filled("p {a} x{a}{b_2}y"), ["p", "1", "x118446744073709551615y"]);
        assert_eq!(filled("'my p' \"--n={a} \" a\\ b ''"), ["my p", "--n=1 ", "a b", ""]);
        assert_eq!(filled("p | sh $HOME *;{a}"), ["p", "|", "sh", "$HOME", "*;1"]);
        assert_eq!(filled("p '{{\"n\":{a}}}' {{a}} }}{{"), ["p", "{\"n\":1}", "{a}", "}{"]);
        assert_eq!(filled("{a}"), ["1"]);
    }

    #[test]
    fn placeholders_are_listed_once() {
        let command = Template::parse("p {b} {a}{b} {{c}}").expect("a command");
        assert_eq!(command.placeholders(), BTreeSet::from(["a", "b"]));
    }

    #[test]
    fn malformed_commands_are_errors() {
        let error = |text: &str| Template::parse(text).expect_err(text).to_string();
        for empty in ["", "  ", "\n"] {
            assert_eq!(error(empty), "the command is empty: give a program and its arguments");
        }
        for open in ["p 'a", "p \"a", "p \\"] {
            assert_eq!(
                error(open),
                format!("the command ends within a quotation or after a backslash: {open}")
            );
        }
        for word in
            ["{", "}", "{}", "{a", "a}", "{a b}", "{1}", "{{a}", "{a}}", "{\u{e9}}", "{a{b}}"]
        {
            let quoted = format!("p '{word}'");
            let brace = format!("{word:?} has a brace outside a placeholder");
            assert!(error(&quoted).starts_with(&brace), "{word}");
        }
        assert_eq!(
            error("p {"),
            "\"{\" has a brace outside a placeholder such as {block}: write {{ or }} for a brace"
        );
    }
}
