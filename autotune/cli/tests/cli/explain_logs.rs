//! `gridguard explain` on logs: is the right cause first?

use serde_json::Value;

use crate::command::run_with_input;

const COLLECTED: &str = include_str!("../logs/collected.txt");
const HELD_OUT: &str = include_str!("../logs/held-out.txt");
const REPORTED: &str = include_str!("../logs/reported.txt");
const LOOKED_UP: &str = include_str!("../logs/looked-up.txt");
const WRITTEN: &str = include_str!("../logs/written.txt");

/// How many logs of each file must have the right cause first.
const EXPECTED: [(&str, usize); 5] =
    [(COLLECTED, 52), (HELD_OUT, 26), (REPORTED, 18), (LOOKED_UP, 60), (WRITTEN, 84)];

#[test]
fn the_right_cause_comes_first() {
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
    /// The lines of the header: `failure`, `cause` (the first, or a possible one, by id or by the beginning of its text), `says` and `lacks`
    /// (texts in the explanation).
    fields: Vec<(&'a str, &'a str)>,
    text: &'a str,
}

impl<'a> Log<'a> {
    fn parse(section: &'a str) -> Self {
        let (head, text) = section.split_once("\n\n").expect("a header and a log");
        let name = head.lines().next().expect("a name").trim_start_matches("=== ");
        let fields = head.lines().skip(1).map(|line| line.split_once(": ").expect("a field"));
        let fields: Vec<_> = fields.collect();
        for required in ["failure", "cause"] {
            assert!(fields.iter().any(|(field, _)| *field == required), "{name}: {required}");
        }
        Self { name, fields, text }
    }

    /// What is wrong with the explanation.
    fn miss(&self) -> Option<String> {
        let input = format!("{}\n", self.text);
        let ran = run_with_input("explain - --format json", input.as_bytes());
        let report: Value = serde_json::from_str(&ran.out).expect("one JSON document");
        let first = &report["failures"][0];
        let (id, cause) = (&first["id"], first["cause"].as_str().unwrap_or_default());
        // A code that does not say has its possible causes.
        let is_cause = |id: &Value, cause: &str, expected: &str| {
            *id == *expected || cause.to_lowercase().starts_with(&expected.to_lowercase())
        };
        let may = first["may"].as_array().into_iter().flatten();
        let is_possible = |expected: &str| {
            may.clone()
                .any(|it| is_cause(&it["id"], it["cause"].as_str().unwrap_or_default(), expected))
        };
        let all = first.to_string();
        let holds = |(field, expected): &&(&str, &str)| match *field {
            "failure" => first["title"] == *expected,
            "cause" => is_cause(id, cause, expected) || is_possible(expected),
            "says" => all.contains(expected),
            "lacks" => !all.contains(expected),
            "program" => true,
            "source" => expected.starts_with("https://"),
            other => panic!("{}: {other}", self.name),
        };
        let (field, expected) = self.fields.iter().find(|field| !holds(field))?;
        Some(format!("{}: not {field} {expected}: {all}", self.name))
    }
}
