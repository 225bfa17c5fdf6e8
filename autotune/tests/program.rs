//! Tunes external programs: their output, their failures, and searches over them. No assertion depends on
//! real times.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gridguard::profile::{Named, StoredChoice};
use gridguard_autotune::{
    Budget, Candidate, FailureKind, Journal, MeasureFailure, Measurer, Portion, ProgramMeasurer,
    ProgramProblem, Resumed, Space, TuningOutcome, tune,
};

/// More than any program here takes, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(600);

/// A problem of 1,000 items whose program is `sh` with this script, with one parameter `fault`.
fn script(script: &str, values: &[u64]) -> ProgramProblem {
    assert!(!script.contains('\''));
    problem(&format!("sh -c '{script}' {{fault}}"), &[("fault", values)], &[])
}

fn problem(command: &str, parameters: &[(&str, &[u64])], chunks: &[u64]) -> ProgramProblem {
    let parameters = parameters.iter().map(|(name, values)| ((*name).to_owned(), values.to_vec()));
    let sizes = vec![("items".to_owned(), 1000)];
    ProgramProblem::new(command, sizes, parameters.collect(), chunks.to_vec()).expect("a problem")
}

fn only(problem: &ProgramProblem) -> Candidate {
    problem.candidates().into_iter().next().expect("a candidate")
}

/// How the only candidate of this script fails.
fn failure(text: &str) -> MeasureFailure {
    failure_within(text, LIMIT)
}

fn failure_within(text: &str, limit: Duration) -> MeasureFailure {
    let problem = script(text, &[0]);
    let candidate = only(&problem);
    ProgramMeasurer::new(problem, limit).check(&candidate).expect_err(text)
}

fn time_ns(measurer: &mut ProgramMeasurer<'_>, candidate: &Candidate) -> f64 {
    measurer.sample(candidate, Portion::Sequence).expect("a time").time_ns
}

#[test]
fn the_times_of_a_process_are_used_before_the_next_is_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let started = folder.path().join("started");
    let text = format!(
        "echo x >> {}; echo loading; echo \"{{{{\\\"ms\\\": [0.01, 0.02]}}}}\"; \
         echo \"{{{{\\\"ms\\\": 0.03, \\\"check\\\": \\\"ok\\\"}}}}\"; echo done",
        started.display()
    );
    let problem = script(&text, &[0]);
    let candidate = only(&problem);
    let mut measurer = ProgramMeasurer::new(problem, LIMIT);
    let processes = || fs::read_to_string(&started).expect("started").lines().count();
    measurer.check(&candidate).expect("correct");
    for (time, expected) in [(1e4, 1), (2e4, 1), (3e4, 1), (1e4, 2), (2e4, 2)] {
        assert_eq!((time_ns(&mut measurer, &candidate), processes()), (time, expected));
    }
    let failure = measurer.sample(&candidate, Portion::LargestLaunch).expect_err("the whole only");
    assert_eq!(failure.message, "a program times all of its launches together");
}

#[test]
fn a_failing_program_fails_its_candidate_with_its_message() {
    use FailureKind::{Crash, Launch, Mismatch};
    for (text, kind, message) in [
        (":", Launch, "the program printed no line with a time"),
        ("echo garbage; exit 0", Launch, "the last line is \"garbage\""),
        ("head -c 100000 /dev/urandom", Launch, "the program printed no line with a time"),
        ("echo \"{{\\\"ms\\\": NaN}}\"", Launch, "expected value"),
        ("echo \"{{\\\"ms\\\": 0}}\"", Launch, "the program printed \"0\" as ms"),
        ("echo \"{{\\\"ms\\\": -0.5}}\"", Launch, "the program printed \"-0.5\" as ms"),
        ("echo \"{{\\\"ms\\\": [1e-3, null]}}\"", Launch, "the program printed \"null\" as ms"),
        // An hour each: no test takes that long.
        ("echo \"{{\\\"ms\\\": [3.6e6]}}\"", Launch, "the program printed times of 3600000.000 ms"),
        (
            "echo \"{{\\\"ms\\\": 0.01, \\\"check\\\": \\\"3 of 7 differ\\\"}}\"",
            Mismatch,
            "check found \"\\\"3 of 7 differ\\\"\"",
        ),
        (
            "echo \"{{\\\"ms\\\": 0.01}}\"; echo trace >&2; echo \"no memory\" >&2; exit 3",
            Launch,
            "the program failed (exit status: 3): no memory\ntrace",
        ),
        ("exit 4", Launch, "the program failed (exit status: 4)"),
        ("echo \"{{\\\"ms\\\": 0.01}}\"; kill -9 $$", Crash, "the program died (signal: 9"),
        ("kill -SEGV $$", Crash, "the program died (signal: 11"),
    ] {
        let found = failure(text);
        assert_eq!(found.kind, kind, "{text}: {found}");
        assert!(found.message.contains(message), "{text}: {found}");
    }
}

#[test]
fn a_program_that_cannot_be_started_fails_its_candidate() {
    for (command, message) in [
        ("./no/such/program {n}", "cannot start ./no/such/program: "),
        ("/ {n}", "cannot start /: "),
        ("/etc/passwd {n}", "cannot start /etc/passwd: "),
    ] {
        let problem = problem(command, &[("n", &[1])], &[]);
        let candidate = only(&problem);
        let failure = ProgramMeasurer::new(problem, LIMIT).check(&candidate).expect_err(command);
        assert_eq!(failure.kind, FailureKind::Launch);
        assert!(failure.message.starts_with(message), "{failure}");
    }
}

#[test]
fn an_endless_program_times_out_whatever_it_prints() {
    // No machine makes these end.
    for endless in ["sleep 100000", "yes", "trap : TERM INT HUP; while :; do sleep 1000; done"] {
        let failure = failure_within(endless, Duration::from_secs(1));
        assert_eq!(failure.kind, FailureKind::Timeout, "{failure}");
        assert_eq!(failure.message, "the program did not end within 1s");
    }
}

#[test]
fn the_end_of_a_large_output_is_kept() {
    let peak_kb = || -> u64 {
        let status = fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    };
    let before = peak_kb();
    let problem = script(
        "head -c 1073741824 /dev/zero; echo; echo \"{{\\\"ms\\\": 0.01}}\"; head -c 30000 /dev/zero",
        &[0],
    );
    let candidate = only(&problem);
    let mut measurer = ProgramMeasurer::new(problem, LIMIT);
    measurer.check(&candidate).expect("correct");
    assert_eq!(time_ns(&mut measurer, &candidate).to_bits(), 1e4_f64.to_bits());
    assert!(peak_kb() - before < 200 * 1024, "{} KB", peak_kb() - before);
    // A line that is cut off is none, though its rest might look like one.
    let cut =
        "printf x; head -c 70000 /dev/zero | tr \"\\\\0\" \" \"; echo \"{{\\\"ms\\\": 0.01}}\"";
    assert_eq!(failure(cut).kind, FailureKind::Launch);
}

#[test]
fn an_interrupt_ends_the_program_and_its_children_and_fails_no_candidate() {
    let folder = tempfile::tempdir().expect("a folder");
    let pid_file = folder.path().join("pid");
    let text =
        format!("sleep 100000 & echo $! > {0}.new; mv {0}.new {0}; wait", pid_file.display());
    let problem = script(&text, &[0, 1]);
    let interrupt = AtomicBool::new(false);
    let mut space = Space::listed(problem.candidates());
    let mut measurer = ProgramMeasurer::new(problem, LIMIT).interrupt(&interrupt);
    let budget = Budget { interrupt: Some(&interrupt), ..Budget::default() };
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            wait_until(|| pid_file.exists());
            interrupt.store(true, Ordering::Relaxed);
        });
        tune(&mut measurer, &mut space, Default::default(), &budget, &mut ())
    });
    let outcome = outcome.expect("an outcome");
    assert!(!outcome.complete);
    assert_eq!(outcome.failures().count(), 0);
    let pid = fs::read_to_string(&pid_file).expect("written");
    let stat = format!("/proc/{}/stat", pid.trim());
    // It may stay a zombie where nobody reaps orphans.
    wait_until(|| {
        fs::read_to_string(&stat).map_or(true, |stat| {
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
        })
    });
}

fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "the condition never holds");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A program whose synthetic time is least for a block of 64 and chunks of 250. It refuses a block of 96, dies
/// with 512, is wrong with 32, and counts its processes.
const MODEL: &str = r#"
import json, os, sys
block, chunk, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
open(os.path.join(folder, "started"), "a").write("x")
if block == 96:
    sys.exit("block 96 does not divide 64")
if block == 512:
    os.abort()
ms = 1e-3 * (1 + abs(block - 64) / 64 + abs(chunk - 250) / 1000)
print("measuring", block)
print(json.dumps({"ms": [ms] * 3, "check": "wrong" if block == 32 else "ok"}))
"#;

fn model(folder: &Path) -> ProgramProblem {
    let program = folder.join("model.py");
    fs::write(&program, MODEL).expect("written");
    let command = format!("python3 {} {{block}} {{chunk}} {}", program.display(), folder.display());
    problem(&command, &[("block", &[256, 128, 96, 64, 512, 32])], &[1000, 500, 250, 125])
}

fn named(block: u64) -> Named {
    vec![("block".to_owned(), block)]
}

fn search(
    measurer: &mut dyn Measurer,
    budget: &Budget<'_>,
    problem: &ProgramProblem,
) -> TuningOutcome {
    let mut space = Space::listed(problem.candidates());
    tune(measurer, &mut space, Default::default(), budget, &mut ()).expect("the default runs")
}

#[test]
fn a_search_finds_the_fastest_combination_and_excludes_failures() {
    let folder = tempfile::tempdir().expect("a folder");
    let problem = model(folder.path());
    let mut measurer = ProgramMeasurer::new(problem.clone(), LIMIT);
    let outcome = search(&mut measurer, &Budget::default(), &problem);
    assert!(outcome.complete);
    assert_eq!(outcome.default.parameters, named(256));
    assert_eq!(outcome.default.choice, StoredChoice::Whole);
    let winner = &outcome.winner;
    assert_eq!((&winner.parameters, winner.largest_chunk, winner.launches), (&named(64), 250, 4));
    assert_eq!((outcome.chosen.median_ns, outcome.baseline.median_ns), (1000, 4750));
    let failures: Vec<(u64, FailureKind)> = outcome
        .failures()
        .map(|(candidate, failure)| (candidate.parameters[0].1, failure.kind))
        .collect();
    let expected =
        [(96, FailureKind::Launch), (512, FailureKind::Crash), (32, FailureKind::Mismatch)];
    for (block, kind) in expected {
        assert_eq!(failures.iter().filter(|found| **found == (block, kind)).count(), 4);
    }
    assert_eq!(failures.len(), 12);
}

#[test]
fn an_interrupted_search_resumes_from_its_journal_without_repeating_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let problem = model(folder.path());
    let processes = || fs::read(folder.path().join("started")).map_or(0, |bytes| bytes.len());
    let journal = Journal::default();
    let mut first = Resumed::new(ProgramMeasurer::new(problem.clone(), LIMIT), journal);
    let budget = Budget { evaluations: Some(20), ..Budget::default() };
    let outcome = search(&mut first, &budget, &problem);
    assert!(!outcome.complete && processes() > 0);
    let journal = first.into_parts().1;
    assert_eq!(outcome.evaluations, 20);

    let before = processes();
    let mut replayed = Resumed::new(ProgramMeasurer::new(problem.clone(), LIMIT), journal.clone());
    assert!(!search(&mut replayed, &budget, &problem).complete);
    assert_eq!(processes(), before, "everything is in the journal");
    let mut second = Resumed::new(ProgramMeasurer::new(problem.clone(), LIMIT), journal);
    let outcome = search(&mut second, &Budget::default(), &problem);
    assert!(outcome.complete && processes() > before);
    assert_eq!((outcome.winner.parameters, outcome.winner.largest_chunk), (named(64), 250));
}
