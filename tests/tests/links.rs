//! Every relative link of the documents leads to a file, and to a heading of it if it has an anchor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use gridguard_tests::documents::{documents, files};

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let mut broken = Vec::new();
    let mut links = 0;
    for document in documents(&root).unwrap() {
        let text = without_code(&fs::read_to_string(&document).unwrap());
        for target in targets(&text)
            .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        {
            links += 1;
            if let Err(why) = check(&document, target) {
                broken.push(format!(
                    "{}: {target}: {why}",
                    document.strip_prefix(&root).unwrap().display()
                ));
            }
        }
    }
    assert!(links > 100, "the documents have links: {links}");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_rule_has_a_section_and_every_page_a_place_in_the_summary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sections = headings(&fs::read_to_string(root.join("docs/rules.md")).unwrap());
    for rule in gridguard::Rule::ALL {
        assert!(sections.contains(rule.id()), "docs/rules.md has no section {}", rule.id());
    }
    let summary = fs::read_to_string(root.join("docs/SUMMARY.md")).unwrap();
    let listed: BTreeSet<&str> = targets(&summary).collect();
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_page = name.ends_with(".md") && name != "SUMMARY.md";
        assert!(!is_page || listed.contains(name.as_str()), "{name} is not in docs/SUMMARY.md");
    }
}

/// Nothing is published yet: what is written elsewhere works today.
#[test]
fn one_line_of_the_readme_says_what_a_release_will_add() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap();
    let published =
        ["pip install gridguard", "cargo binstall", "cargo install gridguard", "gridguard = \"0"];
    let mut named = Vec::new();
    for path in files(&root, &["md", "rs", "py", "txt", "ron"]).unwrap() {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        if ["docs/releasing.md", "tests/tests/links.rs"].contains(&&*name) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| published.iter().any(|words| line.contains(words)));
        named.extend(lines.map(|line| format!("{name}: {line}")));
    }
    assert!(
        named.len() == 1 && named[0].starts_with("README.md: Not published yet: "),
        "{named:#?}"
    );
}

fn check(document: &Path, target: &str) -> Result<(), &'static str> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path: PathBuf = match file {
        "" => document.to_owned(),
        _ => document.parent().ok_or("no folder")?.join(file),
    };
    if !path.exists() {
        return Err("no such file");
    }
    if anchor.is_empty() {
        return Ok(());
    }
    let text = fs::read_to_string(&path).map_err(|_| "no text")?;
    headings(&text).contains(anchor).then_some(()).ok_or("no such heading")
}

/// The targets of the inline links of `text`.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The anchors of the headings, as GitHub and mdBook make them.
fn headings(text: &str) -> BTreeSet<String> {
    let outside = text.split("```").step_by(2).collect::<Vec<_>>().join("\n");
    let titles = outside
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#'));
    titles
        .map(|title| {
            let kept =
                title.trim().chars().filter(|sign| sign.is_alphanumeric() || " -_".contains(*sign));
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        })
        .collect()
}

/// Without blocks and spans of code, which have brackets of their own.
fn without_code(text: &str) -> String {
    let outside = text.split("```").step_by(2).collect::<Vec<_>>().join("\n");
    outside.lines().map(|line| line.split('`').step_by(2).collect::<String>() + "\n").collect()
}
