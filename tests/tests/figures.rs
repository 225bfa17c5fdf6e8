//! Counts in the documents equal the committed results of runs on a device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;

use serde::Deserialize;

const CONFORMANCE: &str = include_str!("../../bench-data/results/nvidia-h200/conformance.json");
const FACTS: &str = include_str!("../../bench-data/results/nvidia-h200/facts.json");
const SUMMARY: &str = include_str!("../../bench-data/results/nvidia-h200/summary.txt");
const RULES: &str = include_str!("../../guard/RULES.md");
const README: &str = include_str!("../../README.md");
const DECISION: &str =
    include_str!("../../docs/decisions/0023-the-guard-is-compared-with-the-driver.md");

/// What the documents state of `conformance.json`.
#[derive(Deserialize)]
struct Conformance {
    device: String,
    driver: String,
    launches: u64,
    accepted: u64,
    disagreements: u64,
    single: Predictions,
    several: Predictions,
    unpredicted: u64,
}

#[derive(Deserialize)]
struct Predictions {
    made: u64,
    right: u64,
}

fn conformance() -> Conformance {
    serde_json::from_str(CONFORMANCE).expect("the results of the conformance test")
}

#[test]
fn the_counts_of_the_rules_are_those_of_the_committed_conformance_run() {
    let run = conformance();
    let launches = grouped(run.launches);
    let made = grouped(run.single.made + run.several.made);
    let right = grouped(run.single.right + run.several.right);
    states(
        RULES,
        &format!(
            "an {} with driver {}. On {} it was given {launches} launches and accepted {}; its verdict \
             differed from the guard's on {} of them",
            run.device,
            run.driver,
            date_of("conformance"),
            grouped(run.accepted),
            run.disagreements,
        ),
    );
    states(
        RULES,
        &format!(
            "In the run above, {right} of {made} predictions were correct; for {} rejected launches \
             nothing was predicted",
            grouped(run.unpredicted),
        ),
    );
    states(README, &format!("of {launches} random launches"));
    states(DECISION, &format!("On an H200, {launches} launches had no disagreement."));
    assert_eq!(run.disagreements, 0, "the README and the decision say that there are none");
}

#[test]
fn the_cooperative_grids_of_the_rules_are_those_of_the_committed_facts() {
    let facts: BTreeMap<String, String> = serde_json::from_str(FACTS).expect("the facts");
    let most = |threads: u64, cluster: u64| {
        let what = format!("cooperative, {threads} threads, 0 bytes, cluster of {cluster}");
        let measured = facts[&what].strip_prefix("accepted up to ").expect("a count");
        let blocks = measured.split_whitespace().next().expect("a count");
        grouped(blocks.parse().expect("a number"))
    };
    let [two, three, four, five, seven, eight] = [2, 3, 4, 5, 7, 8].map(|size| most(1024, size));
    states(RULES, &format!("({} of 32 threads, {} of 1,024)", most(32, 0), most(1024, 0)));
    states(
        RULES,
        &format!(
            "({} blocks of 32 threads in clusters of 1; of 1,024 threads {two}, {three}, {four}, \
             {five}, {seven} and {eight} in clusters of 2, 3, 4, 5, 7 and 8)",
            most(32, 1),
        ),
    );
}

/// Asserts that `document` has `sentence`, however its lines are broken.
#[track_caller]
fn states(document: &str, sentence: &str) {
    let words = document.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(sentence), "the committed run says:\n{sentence}");
}

/// The date of a step's committed run.
fn date_of(step: &str) -> &'static str {
    let mut rows = SUMMARY.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&step)).expect("a row of the step");
    row.into_iter().find(|word| word.starts_with("20") && word.contains('-')).expect("a date")
}

/// With commas between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
