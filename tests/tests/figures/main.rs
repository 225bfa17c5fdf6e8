//! Figures in the documents match the committed results.
//!
//! A figure stands between two comments, which Markdown does not show:
//!
//! ```text
//! takes <!--= nvidia-h200/launch.json empty_kernel/way=raw cuLaunchKernel/ratio_to_raw : .3 -->1.000<!--=--> times
//! ```
//!
//! The first comment names a file in `bench-data/results`, the place of the value in it, and its form. The tables of
//! figures are in `docs/figures.md`, which is made from `bench-data/figures.in` and has no such comments.
//! `UPDATE_FIGURES=1 cargo test -p gridguard-tests --test figures` writes the values into the documents.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod marker;
mod value;

use std::fs;
use std::path::Path;

use gridguard_tests::documents::documents;
use marker::fill;

#[test]
fn every_figure_of_the_documents_is_the_committed_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let results = root.join("bench-data/results");
    let update = std::env::var_os("UPDATE_FIGURES").is_some();
    let mut wrong = Vec::new();
    let mut figures = 0;
    for path in documents(&root).expect("the repository") {
        let text = fs::read_to_string(&path).expect("a document");
        let filled =
            fill(&text, &results).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        figures += filled.figures;
        if filled.text != text {
            if update {
                fs::write(&path, filled.text).expect("the document is written");
            }
            wrong.extend(
                filled.changes.iter().map(|change| format!("{}: {change}", path.display())),
            );
        }
    }
    let template = fs::read_to_string(root.join("bench-data/figures.in")).expect("the template");
    let page = root.join("docs/figures.md");
    let tables = fill(&template, &results).unwrap_or_else(|error| panic!("figures.in: {error}"));
    if fs::read_to_string(&page).unwrap_or_default() != tables.plain {
        match update {
            true => fs::write(&page, tables.plain).expect("the page is written"),
            false => wrong.push(format!("{}: made from figures.in", page.display())),
        }
    }
    assert!(figures > 10, "the documents have figures: {figures}");
    assert!(update || wrong.is_empty(), "UPDATE_FIGURES=1 writes these:\n{}", wrong.join("\n"));
}
