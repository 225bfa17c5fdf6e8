//! `gridguard explain` as its users call it.

use std::fs;

use expect_test::expect_file;
use serde_json::{Value, json};

use crate::command::{Ran, Words, run, run_with_input};

/// Runs the command with `input` on standard input.
fn explain(args: &(impl Words + ?Sized), input: &[u8]) -> Ran {
    run_with_input(&[&["explain"], &*args.words()].concat(), input)
}

fn json_of(args: &str, input: &[u8]) -> Value {
    let ran = explain(&format!("{args} --format json"), input);
    serde_json::from_str(&ran.out).expect("one JSON document")
}

#[test]
fn a_message_a_name_and_a_number_are_the_same_failure() {
    let by_words = explain(&["CUDA error: invalid configuration argument"], b"");
    assert_eq!(by_words.code, Some(0));
    expect_file!["screens/explain-code.txt"].assert_eq(&by_words.out);
    for text in [&["9"][..], &["cudaErrorInvalidConfiguration"], &["cudaError", "9"]] {
        let ran = explain(text, b"");
        assert!(
            ran.out.starts_with("cudaErrorInvalidConfiguration (9)\n"),
            "{text:?}: {}",
            ran.out
        );
    }
}

#[test]
fn a_log_is_explained_from_its_first_failure_with_the_consequences() {
    let log = "step 1\n\
               RuntimeError: CUDA error: an illegal memory access was encountered\n\
               CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm\n\
               RuntimeError: CUDA error: an illegal memory access was encountered\n";
    let piped = explain(&[], log.as_bytes());
    assert_eq!(piped.code, Some(0));
    assert!(piped.out.starts_with("line 2, 2 times: RuntimeError: "), "{}", piped.out);
    assert!(piped.out.ends_with("\n  consequences: line 3\n"), "{}", piped.out);
    assert_eq!(explain("-", log.as_bytes()).out, piped.out);
    assert_eq!(explain(&[log], b"").out, piped.out);
}

#[test]
fn the_first_failure_has_14_lines_of_80_columns_and_the_others_come_with_all() {
    let log = "CUDA error: invalid configuration argument\n\
               CUDA error: invalid channel descriptor\n";
    let first = explain("-", log.as_bytes()).out;
    let is_short = |line: &str| line.chars().count() <= 80;
    assert!(first.lines().count() <= 14 && first.lines().all(is_short), "{first}");
    assert!(first.ends_with("1 more failure: --all\n"), "{first}");
    explain("- --all", log.as_bytes()).prints("cudaErrorInvalidChannelDescriptor (20)");
}

#[test]
fn json_is_the_diagnosis() {
    let found =
        json_of("-", b"hello\nAmount of dynamic shared memory exceeds device limit (100.000 KiB > 48.000 KiB).\n");
    assert_eq!((&found["lines"], &found["platform"]), (&json!(2), &json!("cuda")));
    let failure = &found["failures"][0];
    let fields = ["id", "confidence", "fault", "memory", "times", "is_sticky"];
    let expected = json!(["shared-memory-stated", "constraint", "launch", "shared", 1, false]);
    assert_eq!(json!(fields.map(|field| &failure[field])), expected);
    assert_eq!(failure["captures"], json!({"need": "100.000 KiB", "limit": "48.000 KiB"}));
    assert_eq!(failure["evidence"][0]["line"], 2);
}

#[test]
fn a_chosen_device_is_a_fact() {
    let log = b"found 1 devices\nCUDA_ERROR_INVALID_DEVICE of device ordinal 3\n";
    let ran = explain("--gpu h200 -", log);
    ran.prints("Device 3 was requested, of 1 visible");
}

#[test]
fn the_driver_s_log_gives_value_limit_and_remedy() {
    let log = "[12:00:00.1][42][CUDA][E] Grid Dimension Y of 65536 exceeds maximum value of 65535\n\
               [12:00:00.1][42][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLaunchKernel\n";
    let ran = explain("--gpu h200 -", log.as_bytes());
    expect_file!["screens/explain-driver-log.txt"].assert_eq(&ran.out);
    let expected = "[1][2][CUDA][E] cudaVersion argument (13010) exceeds the driver version (13000)\n\
                    [1][2][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuGetProcAddress_v2\n";
    assert_eq!(json_of("-", expected.as_bytes())["failures"], json!([]));
}

/// The command that the explanation ends with, before its consequences.
fn next_step(ran: &Ran) -> &str {
    let line = ran.out.lines().find_map(|line| line.strip_prefix("  run: "));
    line.expect("a command")
}

#[test]
fn a_launch_in_the_text_is_checked_against_the_chosen_gpu_or_all_of_the_catalogue() {
    let text = "CUDA error: invalid argument, grid (1,65536,1) block (128,1,1)";
    let chosen = explain(&["--gpu", "t4", text], b"");
    chosen.prints(" (Tesla T4) [grid-dim-y]");
    let all = explain(&[text], b"");
    all.prints(" [grid-dim-y]");
    assert_eq!(next_step(&all), "gridguard check --gpu any --grid 1,65536,1 --block 128,1,1");

    let shared = "with block dimensions: 128x1x1 and grid dimensions: 4x1x1 and shared memory size: \
                  131072: CUDA_ERROR_INVALID_VALUE: invalid argument";
    let some = explain(&[shared], b"");
    // The next step can be pasted: here with a name that needs its quotes.
    let args = next_step(&some).strip_prefix("gridguard ").expect("a command of ours");
    let args: Vec<&str> = args
        .split('\'')
        .flat_map(|part| match part.contains("--") {
            true => part.split_whitespace().collect(),
            false => vec![part],
        })
        .collect();
    assert_eq!(run_with_input(&args, b"").code, Some(1), "{args:?}");
    let fits = explain(&["--gpu", "h200", &shared.replace("131072", "1024")], b"");
    let legal = "the launch configuration was checked: it violates no rule";
    fits.prints(legal);
    // The text states a compute capability.
    let stated = format!(
        "A100 with CUDA capability sm_80 is not compatible with the current PyTorch installation\n\
         {text}\n"
    );
    let stated = explain("-", stated.as_bytes());
    assert!(stated.out.contains("gridguard check --gpu sm_80 --grid 1,65536,1 "), "{}", stated.out);
    // Without the block, a legal grid excludes nothing.
    assert!(!explain(&["CUDA error: invalid argument, grid (1,2,3)"], b"").out.contains(legal));
}

#[test]
fn unrecognized_text_is_exit_1_and_the_help_lists_what_is_accepted() {
    for (args, input) in [(&["good", "morning"][..], ""), (&[], ""), (&["-"], "all is well\n")] {
        let ran = explain(args, input.as_bytes());
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{args:?}");
        ran.notes("CUDA_ERROR_INVALID_VALUE");
    }
    assert_eq!(json_of("hello", b"")["failures"], json!([]));
}

#[test]
fn half_remembered_messages_are_found_or_suggested() {
    let one = explain("illegal memory access", b"");
    assert_eq!(one.code, Some(0));
    assert!(one.out.starts_with("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{}", one.out);
    let taken = "assuming that \"illegal memory access\" means CUDA_ERROR_ILLEGAL_ADDRESS\n";
    assert_eq!(one.err, taken);
    let several = explain("capturing stream", b"");
    assert_eq!((several.code, several.out.as_str()), (Some(1), ""));
    let success = explain("0", b"");
    assert_eq!((success.code, success.err.as_str()), (Some(1), "0 is success: nothing failed\n"));
}

#[test]
fn a_file_is_read_as_a_log_even_if_its_name_is_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = "ok\nCUDA error: misaligned address\n";
    for name in ["training.log", "700", "grid-dim-y"] {
        fs::write(folder.path().join(name), log).expect("a file");
        let ran = run(folder.path(), &["explain", name]);
        assert!(ran.out.starts_with("line 2: CUDA error: misaligned address\n"), "{}", ran.out);
        assert_eq!(ran.code, Some(0), "{name}");
    }
    let nothing = explain("Cargo.toml", b"");
    assert_eq!((nothing.code, nothing.out.as_str()), (Some(1), ""));
    assert!(nothing.err.starts_with("no failure recognized in "), "{}", nothing.err);
    assert!(nothing.err.ends_with(" lines of Cargo.toml\n"), "{}", nothing.err);
}

#[test]
fn a_misspelt_path_is_no_log_without_a_failure() {
    for name in ["trainig.log", "logs/1", "/nowhere/log"] {
        let ran = explain(&[name, "--format", "json"], b"").exits(2);
        assert_eq!((&*ran.out, ran.err), ("", format!("error: {name}: no such file\n")));
    }
    let ran = explain("src", b"").exits(2);
    assert_eq!(ran.err, "error: src: is a folder, not a file\n");
    // These are messages.
    for text in ["it failed. why?", "hello", "1 / 2"] {
        let ran = explain(&[text], b"").exits(1);
        assert!(ran.err.starts_with("no failure recognized; "), "{}", ran.err);
    }
}

#[test]
fn former_numbers_are_explained_and_invalid_ones_are_not() {
    let old = explain("77", b"");
    assert!(old.code == Some(0) && old.out.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{}", old.out);
    for text in ["-1", "-700", "99999999999", "exit code 9"] {
        let ran = explain(&[text], b"");
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{text}");
    }
}

#[test]
fn invalid_usage_is_exit_2_and_an_unavailable_device_is_exit_3() {
    assert_eq!(explain("700 --gpu gtx-9000", b"").code, Some(2));
    assert_eq!(explain(&["  "], b"").code, Some(2));
    assert_eq!(explain("700 --format yaml", b"").code, Some(2));
    assert_eq!(explain("700 --gpu h200 --device 0", b"").code, Some(2));
    assert_eq!(explain("700 --device 4711", b"").code, Some(3));
}

#[test]
fn wrong_values_may_be_asked_for_by_name() {
    let answer = run_with_input(&["explain", "NaN or wrong values"], b"").exits(0);
    assert!(answer.out.starts_with("NaN or wrong values"), "{}", answer.out);
    answer.prints("gridguard run --index -- ");
}
