//! `gridguard explain RULE`: the page of a rule, of the guard or of frameworks.

use std::fmt;

use serde::Serialize;

use crate::error::{CommandError, Exit};
use crate::output::OutputArgs;
use crate::words::similar;

/// A section for each rule, under the rule's id.
const PAGES: &str = include_str!("rules.txt");

/// The section of a rule.
#[derive(Serialize)]
struct Page {
    rule: &'static str,
    text: String,
}

/// Prints the page of the rule that `text` names, also in the brackets that end a message. `None` if it names none.
pub(crate) fn explain(text: &str, output: OutputArgs) -> Option<Result<Exit, CommandError>> {
    let id = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let is_word = |c: char| c.is_ascii_lowercase() || c == '-';
    if id.starts_with('-') || !id.contains('-') || !id.chars().all(is_word) {
        return None;
    }
    if let Some(page) = Page::of(id) {
        return Some(output.print(&page, &page).map(|()| Exit::Yes));
    }
    let nearest = similar(id, Page::sections().map(|(rule, _)| rule), 1).pop()?;
    Some(Err(CommandError::invalid(format_args!("no rule {id:?}; did you mean {nearest}?"))))
}

impl Page {
    fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
        PAGES.split("\n## ").skip(1).filter_map(|section| section.split_once('\n'))
    }

    fn of(id: &str) -> Option<Self> {
        let (rule, text) = Self::sections().find(|(rule, _)| *rule == id)?;
        Some(Self { rule, text: without_links(text.trim()) })
    }
}

impl fmt::Display for Page {
    /// A paragraph, an item or a row is one line, which a terminal wraps.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule)?;
        let mut before = "";
        for line in self.text.lines() {
            let is_item =
                line.split_once(". ").is_some_and(|(number, _)| number.parse::<u8>().is_ok());
            let starts = line.is_empty() || before.is_empty() || is_item || line.starts_with('|');
            f.write_str(if starts { "\n" } else { " " })?;
            f.write_str(line.trim_start())?;
            before = line;
        }
        writeln!(f)
    }
}

/// `text` with the words of its links alone, because their targets are files.
fn without_links(text: &str) -> String {
    let mut parts = text.split('[');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let link = part.split_once("](");
        match link.and_then(|(words, after)| Some((words, after.split_once(')')?.1))) {
            Some((words, after)) => plain.extend([words, after]),
            None => plain.extend(["[", part]),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_page_and_every_page_a_rule() {
        let of_frameworks = ["grid-product"];
        let rules = gridguard::Rule::ALL.iter().map(|rule| rule.id()).chain(of_frameworks);
        for rule in rules.clone() {
            let page = Page::of(rule).unwrap_or_else(|| panic!("{rule} has no page"));
            assert!(page.text.len() > 20 && !page.text.contains("]("), "{rule}: {}", page.text);
        }
        assert_eq!(Page::sections().count(), rules.count());
    }

    #[test]
    fn only_what_looks_like_a_rule_is_one() {
        let output = OutputArgs { format: crate::output::Format::Text };
        for text in
            ["", "-", "700", "grid", "out-of-memory", "CUDA-ERROR", "grid-dim-y of 3", "-12"]
        {
            assert!(explain(text, output).is_none(), "{text}");
        }
        let Some(Err(error)) = explain("grid-dim-w", output) else { panic!("a misspelt rule") };
        assert!(
            error.to_string().contains("no rule \"grid-dim-w\"; did you mean grid-dim-"),
            "{error}"
        );
    }
}
