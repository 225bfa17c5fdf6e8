//! The prose of the repository: counts habits that make a sentence hard to read, for each thousand sentences.
//!
//! `rules.rs` has the habits and the remedies. `sentences.rs` finds sentences in Markdown, comments and messages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod rules;
mod sentences;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use rules::{LONG, Phrases, REMEDY_OF_LONG, words};
use sentences::{Sentence, sentences_of};

/// The most places in a thousand sentences. Rewrite sentences instead of raising it.
const MOST_PER_THOUSAND: usize = 25;

/// Sentences that are plain although a rule matches: a part of each.
const PLAIN: [&str; 2] = ["published package", "published to the"];

/// A match of a rule.
struct Place {
    path: String,
    line: usize,
    rule: &'static str,
    remedy: &'static str,
    text: String,
}

#[test]
fn sentences_are_plain() {
    let (phrases, mut places, mut read) = (Phrases::new(), Vec::new(), 0);
    for path in tracked() {
        let text = fs::read_to_string(root().join(&path)).unwrap_or_default();
        for sentence in sentences_of(&path, &text) {
            read += 1;
            places.extend(places_in(&phrases, &path, &sentence));
        }
    }
    assert!(read > 10_000, "only {read} sentences were found");
    let most = read * MOST_PER_THOUSAND / 1000;
    assert!(places.len() <= most, "{}", report(&places, read));
}

fn places_in(phrases: &Phrases, path: &str, sentence: &Sentence) -> Vec<Place> {
    if PLAIN.iter().any(|plain| sentence.text.contains(plain)) {
        return Vec::new();
    }
    let words = words(&sentence.text);
    let place = |rule, remedy| Place {
        path: path.to_owned(),
        line: sentence.line,
        rule,
        remedy,
        text: sentence.text.clone(),
    };
    let found = phrases.found_in(&words).into_iter();
    let mut places: Vec<Place> = found.map(|rule| place(rule.name, rule.remedy)).collect();
    let count = sentence.text.split_whitespace().count();
    if count > LONG {
        places.push(place("long sentence", REMEDY_OF_LONG));
    }
    places
}

/// The files with the most places, then examples of each rule.
fn report(places: &[Place], read: usize) -> String {
    let mut text = format!(
        "{} places in {read} sentences are more than {MOST_PER_THOUSAND} in a thousand\n\nfiles with the most places:\n",
        places.len()
    );
    let (mut files, mut by_rule) = (BTreeMap::new(), BTreeMap::<_, Vec<&Place>>::new());
    for place in places {
        *files.entry(&place.path).or_insert(0_usize) += 1;
        by_rule.entry((place.rule, place.remedy)).or_default().push(place);
    }
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by_key(|(path, count)| (usize::MAX - count, *path));
    for (path, count) in files.iter().take(SHOWN_FILES) {
        writeln!(text, "{count:5}  {path}").unwrap();
    }
    for ((rule, remedy), places) in by_rule {
        writeln!(text, "\n{:5}  {rule}: {remedy}", places.len()).unwrap();
        for place in places.iter().step_by(places.len().div_ceil(SHOWN_PLACES)) {
            let shown: String = place.text.chars().take(SHOWN_CHARS).collect();
            writeln!(text, "       {}:{}: {shown}", place.path, place.line).unwrap();
        }
    }
    text
}

/// The tracked files with prose that people wrote.
fn tracked() -> Vec<String> {
    let output = Command::new("git").arg("ls-files").current_dir(root()).output();
    let output = output.expect("git lists the files of a clone");
    let files = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let is_prose = |path: &&str| {
        ["md", "rs", "py", "cu", "cuh", "h", "hpp"]
            .iter()
            .any(|kind| path.ends_with(&format!(".{kind}")))
            && !["/golden/", "/results/"].iter().any(|folder| path.contains(folder))
    };
    files.lines().filter(is_prose).map(str::to_owned).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

const SHOWN_FILES: usize = 15;
const SHOWN_PLACES: usize = 6;
const SHOWN_CHARS: usize = 140;

/// The rules that match a sentence.
fn rules_in(text: &str) -> Vec<&'static str> {
    let sentence = Sentence { line: 1, text: text.to_owned() };
    places_in(&Phrases::new(), "file.md", &sentence).into_iter().map(|place| place.rule).collect()
}

#[test]
fn each_rule_finds_a_sentence_that_has_to_be_read_twice() {
    for (text, rule) in [
        ("The driver waits for so many bytes.", "number without a name"),
        ("The result is that of the other kernel.", "noun left out"),
        ("Of a rewritten kernel the driver compiles three entries.", "object first"),
        ("The stream on which it runs ends.", "preposition before which"),
        ("The text says what is wrong.", "pronoun for a noun"),
        ("The wrapper has the two functions run twice.", "have for make"),
        ("The memory lies on the device.", "everyday word"),
        ("The slower kernel runs in its place.", "idiom"),
    ] {
        assert_eq!(rules_in(text), [rule], "{text}");
    }
    let long = "word ".repeat(LONG + 1);
    assert_eq!(rules_in(&long), ["long sentence"]);
}

#[test]
fn plain_sentences_are_not_found() {
    for text in [
        "Legal launches run the original kernel, unmodified.",
        "A rewritten kernel costs three compiled entries.",
        "The guard validates that, of course, before each launch.",
        "So many kernels need this that it has an option.",
    ] {
        assert_eq!(rules_in(text), [""; 0], "{text}");
    }
    assert_eq!(rules_in(&"word ".repeat(LONG)), [""; 0]);
    assert_eq!(rules_in(&format!("Every {} has a licence.", PLAIN[0])), [""; 0]);
}
