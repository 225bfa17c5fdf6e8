//! Links the ids of rules to their pages, on terminals.

use gridguard::Rule;

/// The page with a section for each rule.
pub(crate) const PAGE: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/rules.md");

/// `text`, with the id of a rule at the end of a line, as in `[grid-dim-y]`, as a link (OSC 8).
pub(crate) fn linked(text: &str) -> String {
    text.lines().map(|line| linked_line(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

fn linked_line(line: &str) -> Option<String> {
    let unbracketed = line.strip_suffix(']').unwrap_or(line);
    let id = unbracketed.rsplit([' ', '[']).next()?;
    let rule = Rule::ALL.iter().find(|rule| rule.id() == id)?;
    let (before, _) = unbracketed.split_at(unbracketed.len().checked_sub(id.len())?);
    let (_, after) = line.split_at(unbracketed.len());
    Some(format!("{before}\x1b]8;;{PAGE}#{rule}\x1b\\{id}\x1b]8;;\x1b\\{after}", rule = rule.id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_rule_at_the_end_of_a_line_is_a_link_to_its_section() {
        let link = format!("\x1b]8;;{PAGE}#grid-dim-y\x1b\\grid-dim-y\x1b]8;;\x1b\\");
        for (before, after) in [("the launch violates rule ", ""), ("the limit is 65535 [", "]")] {
            let line = format!("{before}grid-dim-y{after}\n");
            assert_eq!(linked(&line), format!("{before}{link}{after}\n"));
        }
        for line in ["grid-dim-y: 65536 blocks\n", "an id: grid-dim\n", "\n", "next step\n  -y\n"] {
            assert_eq!(linked(line), line);
        }
        assert!(PAGE.starts_with("https://"));
    }
}
