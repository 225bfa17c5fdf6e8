//! Finds the figures of a document and replaces those that differ from their source.

use std::path::Path;

use super::value;

const BEGIN: &str = "<!--= ";
const CLOSE: &str = " -->";
const END: &str = "<!--=-->";

/// A document with all figures replaced by the committed ones.
pub(crate) struct Filled {
    pub(crate) text: String,
    /// The same without the comments.
    pub(crate) plain: String,
    /// How many figures the document has.
    pub(crate) figures: usize,
    /// "OLD is NEW (SOURCE)" for each figure that differed.
    pub(crate) changes: Vec<String>,
}

/// Replaces each figure of `text` by its value in the folder `results`.
pub(crate) fn fill(text: &str, results: &Path) -> Result<Filled, String> {
    let mut filled =
        Filled { text: String::new(), plain: String::new(), figures: 0, changes: Vec::new() };
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (source, after) = after.split_once(CLOSE).ok_or("a figure's source has no end")?;
        let (old, after) =
            after.split_once(END).ok_or_else(|| format!("no end of the figure {source}"))?;
        if before.rsplit_once('\n').is_some_and(|(_, line)| line.trim().is_empty()) {
            return Err(format!(
                "Markdown ends a paragraph at a comment that begins a line: {source}"
            ));
        }
        let new = value::read(source, results).map_err(|error| format!("{source}: {error}"))?;
        if old != new {
            filled.changes.push(format!("{old} is {new} ({source})"));
        }
        filled.text.extend([before, BEGIN, source, CLOSE, new.as_str(), END]);
        filled.plain.extend([before, new.as_str()]);
        filled.figures += 1;
        rest = after;
    }
    filled.text.push_str(rest);
    filled.plain.push_str(rest);
    Ok(filled)
}

#[test]
fn a_figure_that_differs_is_replaced_and_one_at_the_start_of_a_line_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.json"), r#"{"x": 1.25}"#).unwrap();
    let filled = fill("a <!--= a.json x : .1 -->9<!--=--> b", folder.path()).unwrap();
    assert_eq!(filled.text, "a <!--= a.json x : .1 -->1.2<!--=--> b");
    assert_eq!(filled.plain, "a 1.2 b");
    assert_eq!((filled.figures, filled.changes.len()), (1, 1));
    assert!(fill("a\n  <!--= a.json x : .1 -->1.2<!--=-->", folder.path()).is_err());
    assert!(fill("a <!--= a.json x : .1 -->1.2", folder.path()).is_err());
}
