//! Lines of many programs, each with the failure that it tells of: `messages.txt`.

use super::line::{Context, recognise};
use crate::diagnose::codes::failures;

const MESSAGES: &str = include_str!("messages.txt");

/// Each line with the heading above it.
fn messages() -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut heading = "";
    let lines = MESSAGES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(move |line| {
        match line.strip_prefix("== ") {
            Some(name) => heading = name,
            None => return Some((heading, line)),
        }
        None
    })
}

#[test]
fn messages_of_many_programs_get_their_true_name() {
    let mut wrong = Vec::new();
    for (expected, line) in messages() {
        let told = recognise(line, Context::Log).map(|told| told.subject.to_string());
        let told = told.unwrap_or_else(|| "nothing".into());
        if told != expected {
            wrong.push(format!("{told}, not {expected}: {line}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn every_failure_of_cuda_that_is_not_retired_is_met_in_a_message() {
    for row in failures().filter(|row| row.number.is_some() && !row.wordings.is_empty()) {
        let is_row = |(heading, _): (&str, &str)| heading.starts_with(row.name);
        assert!(row.retired || messages().any(is_row), "{}", row.name);
    }
}
