//! The program that evaluates the tuner: its problems on the host, the counts that it reports, and the
//! exhaustive search on a simulated device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod exhaustive;
#[path = "../../benches/evaluate/main.rs"]
mod program;
mod untuned;

use std::fs;
use std::io::Write;
use std::path::Path;

use clap::Parser;
use program::{Options, Outcome};
use serde_json::{Value, json};

/// The smallest evaluation that has a result.
const LEAST: [&str; 9] =
    ["evaluate", "--device", "host", "--policy", "hot-eager", "--samples", "3", "--pairs", "3"];

/// Runs the program, and reads the document that it wrote.
fn evaluate(more: &[&str], out: &mut dyn Write) -> (Outcome<bool>, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("e.json");
    let output = ["--output", path.to_str().expect("a name")];
    let options = Options::parse_from([&LEAST[..], more, &output].concat());
    let ended = options.run(out);
    (ended, read(&path))
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("written");
    serde_json::from_str(&text).expect("JSON")
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no count: {value}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

#[test]
fn each_search_and_each_distinct_choice_is_counted() {
    let more = ["--kernel", "layer_norm", "--runs", "2", "--starts", "3"];
    let mut out = Vec::new();
    let (ended, document) = evaluate(&more, &mut out);
    assert!(ended.expect("results"));
    let out = String::from_utf8(out).expect("text");
    assert!(out.contains("untuned_defaults"), "{out}");
    assert_eq!((&document["left"], &document["failed"]), (&json!(0), &json!([])));
    assert_eq!(list(&document["problems"]).len(), 1);
    for set in ["untuned_defaults", "tuned_defaults"] {
        let problems = list(&document["problems"]).iter().filter(|problem| problem["set"] == set);
        let summary = &document["summary"][set];
        let named = |name: &str| count(&summary[name]);
        assert_eq!(named("problems"), u64::try_from(problems.clone().count()).expect("few"));
        let choices: Vec<&Value> =
            problems.clone().flat_map(|problem| list(&problem["choices"])).collect();
        let of_best = |choice: &&&Value| choice["against_best"].is_null();
        let best: Vec<&&Value> = choices.iter().filter(of_best).collect();
        let [choices, best] =
            [choices.len(), best.len()].map(|few| u64::try_from(few).expect("few"));
        assert_eq!((named("distinct_choices"), named("choices_that_are_best")), (choices, best));
        assert_eq!(named("independent_regrets"), choices - best);
        let mut searches = 0;
        for problem in problems {
            let candidates = count(&problem["candidates"]);
            assert_eq!(list(&problem["runs"]).len(), 2);
            let others = u64::try_from(list(&problem["runs_from_others"]).len()).expect("few");
            assert_eq!(others, 3.min(candidates - 1));
            assert_eq!(count(&problem["exhaustive_evaluations"]), 3 * candidates);
            let chosen = list(&problem["choices"]).iter().map(|choice| count(&choice["searches"]));
            assert_eq!(chosen.sum::<u64>(), 2 + others);
            searches += 2 + others;
            for measured in list(&problem["choices"]).iter().map(|choice| &choice["against_best"]) {
                assert!(measured.is_null() || count(&measured["pairs"]) == 3, "{measured}");
            }
        }
        assert_eq!(named("searches"), searches);
    }
}

#[test]
fn equal_choices_of_several_processes_are_counted() {
    let options = Options::parse_from([&LEAST[..], &["--kernel", "layer_norm"]].concat());
    let first = options.winners().expect("choices");
    assert_eq!(first.len(), 1);
    let mut other = first.clone();
    other[0].winner.largest_chunk /= 2;
    other[0].winner.launches = 2;
    other[0].winner.choice =
        serde_json::from_value(json!({"chunked": {"max_items": other[0].winner.largest_chunk}}))
            .expect("a choice");
    let same = first.clone();
    let document = options.compare(&[first, other, same]).expect("measured");
    assert_eq!((document.searches, document.equal, document.problems.len()), (3, 2, 1));
    assert_eq!(document.problems[0].choices.len(), 2);
    let nothing = options.compare(&[]).expect("measured");
    assert_eq!((nothing.searches, nothing.equal), (0, 0));
}

#[test]
fn problems_after_the_time_limit_are_counted_and_not_started() {
    let more = ["--kernel", "layer_norm", "--budget", "0s"];
    let (ended, document) = evaluate(&more, &mut Vec::new());
    assert!(!ended.expect("results"));
    assert_eq!((&document["left"], &document["problems"]), (&json!(1), &json!([])));
    let statistics = &document["summary"]["untuned_defaults"];
    assert_eq!((&statistics["searches"], &statistics["regret_worst"]), (&json!(0), &json!(null)));
}

#[test]
fn an_unknown_kernel_is_an_error() {
    let unknown = ["evaluate", "--device", "host", "--kernel", "norm"];
    let error = Options::parse_from(unknown).run(&mut Vec::new()).expect_err("unknown");
    assert_eq!(error.to_string(), "there is no problem of kernel norm");
}
