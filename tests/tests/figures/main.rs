//! Figures in the documents are those of the committed results.
//!
//! A figure stands between two comments, which Markdown does not show:
//!
//! ```text
//! takes <!--= nvidia-h200/launch.json empty_kernel/way=raw cuLaunchKernel/ratio_to_raw | .3 -->1.000<!--=--> times
//! ```
//!
//! The first comment names a file in `bench-data/results`, the place of the value in it, and its form.
//! `UPDATE_FIGURES=1 cargo test -p gridguard-tests --test figures` writes the values into the documents.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod marker;
mod value;

use std::fs;
use std::path::{Path, PathBuf};

use marker::fill;

#[test]
fn every_figure_of_the_documents_is_the_committed_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let results = root.join("bench-data/results");
    let update = std::env::var_os("UPDATE_FIGURES").is_some();
    let mut wrong = Vec::new();
    let mut figures = 0;
    for path in documents(&root) {
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
    assert!(figures > 10, "the documents have figures: {figures}");
    assert!(update || wrong.is_empty(), "UPDATE_FIGURES=1 writes these:\n{}", wrong.join("\n"));
}

/// The Markdown files of the repository, without build output and hidden folders.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let (path, name) = (entry.path(), entry.file_name());
        let hidden = name.to_string_lossy().starts_with('.');
        if path.is_dir() && !hidden && name != "target" {
            found.extend(documents(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}
