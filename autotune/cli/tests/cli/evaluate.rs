//! `gridguard evaluate` on the host: its problems, and the counts that it reports.

use std::fs::{self, OpenOptions};

use crate::command::{Ran, command, run};
use serde_json::{Value, json};

/// As little as makes a result.
const LEAST: [&str; 10] = [
    "evaluate",
    "--device",
    "host",
    "--policy",
    "hot-eager",
    "--samples",
    "3",
    "--pairs",
    "3",
    "--output=e.json",
];

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no count: {value}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

#[test]
fn each_search_and_each_distinct_choice_is_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = ["--kernel", "passes", "--kernel", "transpose", "--runs", "2", "--starts", "3"];
    let ran = run(folder.path(), &[&LEAST[..], &more].concat()).exits(0);
    assert!(ran.out.contains("problems whose defaults nobody tuned\n"), "{}", ran.out);
    let text = fs::read_to_string(folder.path().join("e.json")).expect("written");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&document["left"], &document["failed"]), (&json!(0), &json!([])));
    assert_eq!(list(&document["problems"]).len(), 2);
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
fn results_are_stored_where_standard_output_is_full() {
    let folder = tempfile::tempdir().expect("a folder");
    for format in ["text", "json"] {
        let args = [&LEAST[..], &["--kernel", "transpose", "--format", format]].concat();
        let full = OpenOptions::new().write(true).open("/dev/full").expect("a full device");
        let output = command(folder.path(), &args).stdout(full).output().expect("the command runs");
        let ran = Ran::from(output).exits(3);
        assert!(ran.err.contains("writing the result"), "{}", ran.err);
        let path = folder.path().join("e.json");
        let text = fs::read_to_string(&path).expect("written");
        let document: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(list(&document["problems"]).len(), 1);
        fs::remove_file(path).expect("removed");
    }
}

#[test]
fn problems_after_the_time_limit_are_counted_and_not_begun() {
    let folder = tempfile::tempdir().expect("a folder");
    let more = ["--kernel", "transpose", "--budget", "0s", "--format", "json"];
    let document = run(folder.path(), &[&LEAST[..], &more].concat()).exits(1).json();
    assert_eq!((&document["left"], &document["problems"]), (&json!(1), &json!([])));
    let statistics = &document["summary"]["untuned_defaults"];
    assert_eq!((&statistics["searches"], &statistics["regret_worst"]), (&json!(0), &json!(null)));
}
