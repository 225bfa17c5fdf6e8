//! `gridguard explain` on logs of real failures: is the right cause first?

use serde_json::Value;

use crate::command::run_with_input;

const COLLECTED: &str = include_str!("../logs/collected.txt");
const HELD_OUT: &str = include_str!("../logs/held-out.txt");
const REPORTED: &str = include_str!("../logs/reported.txt");
const LOOKED_UP: &str = include_str!("../logs/looked-up.txt");

/// How many logs of each file must have the right cause first.
const EXPECTED: [(&str, usize); 4] =
    [(COLLECTED, 51), (HELD_OUT, 24), (REPORTED, 18), (LOOKED_UP, 60)];

#[test]
fn the_right_cause_of_real_failures_comes_first() {
    for (logs, expected) in EXPECTED {
        let logs: Vec<Log<'_>> = logs.split("\n=== ").map(Log::parse).collect();
        let missed: Vec<String> = logs.iter().filter_map(Log::miss).collect();
        let right = logs.len() - missed.len();
        println!("{right} of {}; missed:\n{}", logs.len(), missed.join("\n"));
        assert!(right >= expected, "{right} of {}:\n{}", logs.len(), missed.join("\n"));
    }
}

/// A log and its expected explanation.
struct Log<'a> {
    name: &'a str,
    failure: &'a str,
    /// The id of the first cause, or the beginning of its text.
    cause: &'a str,
    /// What the explanation must contain besides, or nothing.
    says: &'a str,
    text: &'a str,
}

impl<'a> Log<'a> {
    fn parse(section: &'a str) -> Self {
        let (head, text) = section.split_once("\n\n").expect("a header and a log");
        let name = head.lines().next().expect("a name").trim_start_matches("=== ");
        let field = |name: &str| {
            let mut fields = head.lines().filter_map(|line| line.split_once(": "));
            fields.find(|(field, _)| *field == name).map(|(_, value)| value)
        };
        let every = |name: &str| field(name).expect("every field");
        assert!(every("source").starts_with("https://"), "{name}");
        let says = field("says").unwrap_or_default();
        Self { name, failure: every("failure"), cause: every("cause"), says, text }
    }

    /// What is wrong with the explanation.
    fn miss(&self) -> Option<String> {
        let Self { name, failure, cause, says, text } = self;
        let ran = run_with_input(&["explain", "-", "--format", "json"], text.as_bytes());
        let report: Value = serde_json::from_str(&ran.out).expect("one JSON document");
        let first = &report["findings"][0]["diagnosis"];
        let likeliest = &first["causes"][0];
        let [found, id, what] = [&first["failure"]["name"], &likeliest["id"], &likeliest["what"]]
            .map(|value| value.as_str().unwrap_or("nothing"));
        let is_right = found == *failure && (id == *cause || what.starts_with(cause));
        let is_right = is_right && first.to_string().contains(says);
        (!is_right)
            .then(|| format!("{name}: {found}, {id} ({what}), not {failure}, {cause}, {says}"))
    }
}
