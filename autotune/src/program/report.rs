//! Reads the times that a program prints as lines of JSON.

use serde_json::{Map, Value};

use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::lines::shown;

/// The times of a program in nanoseconds, in the order of its output; at least one.
///
/// A line with a JSON object may have `ms`, one time in milliseconds or a list, and `check`, which is `"ok"`
/// if the output is correct. Other lines are ignored.
pub(super) fn times_ns(printed: &str) -> Measured<Vec<f64>> {
    let (mut times, mut broken) = (Vec::new(), None);
    for line in printed.lines().map(str::trim).filter(|line| line.starts_with('{')) {
        let object: Map<String, Value> = match serde_json::from_str(line) {
            Ok(object) => object,
            Err(error) => {
                broken = Some((line, error));
                continue;
            }
        };
        if let Some(found) = object.get("check").filter(|found| **found != "ok") {
            let message = format!("the program's own check found {}", shown(&found.to_string()));
            return Err(MeasureFailure::new(FailureKind::Mismatch, message));
        }
        match object.get("ms") {
            Some(Value::Array(several)) => {
                for one in several {
                    times.push(time_ns(one)?);
                }
            }
            Some(one) => times.push(time_ns(one)?),
            None => {}
        }
    }
    if !times.is_empty() {
        return Ok(times);
    }
    let message = match (broken, printed.lines().rfind(|line| !line.trim().is_empty())) {
        (Some((line, error)), _) => {
            format!("{NO_TIME}: {error}, in the line {}", shown(line))
        }
        (None, Some(line)) => format!("{NO_TIME}; the last line is {}", shown(line)),
        (None, None) => format!("{NO_TIME}, and nothing else"),
    };
    Err(failure(message))
}

/// Converts milliseconds to nanoseconds.
fn time_ns(ms: &Value) -> Measured<f64> {
    let invalid = || {
        let ms = shown(&ms.to_string());
        failure(format!("the program printed {ms} as ms: a time is a number of at least 0.000001"))
    };
    let ns = ms.as_f64().ok_or_else(invalid)? * NS_PER_MS;
    // A profile stores whole nanoseconds.
    if ns.is_finite() && ns >= 1.0 { Ok(ns) } else { Err(invalid()) }
}

fn failure(message: String) -> MeasureFailure {
    MeasureFailure::new(FailureKind::Launch, message)
}

const NO_TIME: &str = "the program printed no line with a time, such as {\"ms\": 0.36}";
const NS_PER_MS: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_taken_from_all_json_lines_in_order() {
        let times = |text: &str| times_ns(text).expect("times");
        assert_eq!(times("{\"ms\": 0.5}"), [500_000.0]);
        assert_eq!(times("{\"ms\":[1, 2.5e0],\"check\":\"ok\",\"gbps\":3}\n"), [1e6, 2.5e6]);
        let several = "loading\n  {\"ms\": 1}\r\n[1]\n{\"note\": 7}\n{broken\n{\"ms\": 2}\ndone";
        assert_eq!(times(several), [1e6, 2e6]);
        assert_eq!(times("{\"ms\": 0.000001}"), [1.0]);
    }

    #[test]
    fn output_without_a_valid_time_is_a_failure_that_quotes_it() {
        let message = |text: &str| {
            let failure = times_ns(text).expect_err(text);
            assert_eq!(failure.kind, FailureKind::Launch, "{text}");
            failure.message
        };
        for time in ["0", "-1", "1e-7", "\"0.5\"", "null", "true", "[1, -2]", "[[1]]", "{}"] {
            let message = message(&format!("{{\"ms\": {time}}}"));
            assert!(
                message.ends_with("as ms: a time is a number of at least 0.000001"),
                "{message}"
            );
        }
        for (text, end) in [
            ("", ", and nothing else"),
            (" \n\n", ", and nothing else"),
            ("hello\nworld\n", "; the last line is \"world\""),
            ("{\"ms\": []}", "; the last line is \"{\\\"ms\\\": []}\""),
        ] {
            assert_eq!(message(text), format!("{NO_TIME}{end}"));
        }
        for broken in ["{\"ms\": NaN}", "{\"ms\": 1e999}", "{\"ms\": 1", "{'ms': 1}", "{ms: 1}"] {
            let message = message(&format!("{broken}\nlast"));
            assert!(message.contains(", in the line \"{"), "{message}");
        }
        let long = message(&"x".repeat(1000));
        assert!(long.ends_with("x\"...") && long.len() < 200, "{long}");
        // Deeper than a recursive reader may go.
        message(&format!("{{\"ms\": {}", "[".repeat(100_000)));
    }

    #[test]
    fn a_failed_check_is_a_mismatch_with_any_time() {
        for (check, shown) in [
            ("\"3 of 640 elements differ\"", r#""\"3 of 640 elements differ\"""#),
            ("false", "\"false\""),
            ("null", "\"null\""),
        ] {
            let failure = times_ns(&format!("{{\"ms\": 1, \"check\": {check}}}"));
            let failure = failure.expect_err("wrong");
            assert_eq!(failure.kind, FailureKind::Mismatch);
            assert_eq!(failure.message, format!("the program's own check found {shown}"));
        }
    }
}
