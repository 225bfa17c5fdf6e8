//! Lines of many programs, each with the failure that it reports: `messages.txt`.

use gridguard_diagnose::{LogScanner, known_failures};

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
fn messages_of_many_programs_are_recognized() {
    let mut wrong = Vec::new();
    for (expected, line) in messages() {
        let mut log = LogScanner::new();
        log.line(line);
        let found = log.findings().first().map(|finding| finding.failure.to_string());
        let found = found.unwrap_or_else(|| "nothing".into());
        if found != expected {
            wrong.push(format!("{found}, not {expected}: {line}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn every_current_failure_of_cuda_occurs_in_a_message() {
    for entry in known_failures().filter(|it| it.number.is_some() && !it.messages().is_empty()) {
        let is_entry = |(heading, _): (&str, &str)| heading.starts_with(entry.name);
        assert!(entry.retired || messages().any(is_entry), "{}", entry.name);
    }
}

#[test]
fn no_quoted_message_breaks_off() {
    const OPEN: &str = "a an the of from by to in on for with at and or is are not";
    for entry in known_failures() {
        let quoted = entry.messages().first().copied().unwrap_or_default();
        let last = quoted.rsplit(' ').next().unwrap_or_default();
        let is_open = OPEN.split(' ').any(|word| word == last) || quoted.ends_with([':', ',']);
        assert!(!is_open, "{}: {quoted}", entry.name);
    }
}
