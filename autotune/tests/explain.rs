//! `gridguard explain` as its users call it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "command/piped.rs"]
mod piped;

use serde_json::{Value, json};

use piped::{Ran, with_input};

/// Runs the command with `input` on standard input.
fn explain(args: &[&str], input: &[u8]) -> Ran {
    with_input(&[&["explain"], args].concat(), input)
}

fn json_of(args: &[&str], input: &[u8]) -> Value {
    let ran = explain(&[args, &["--format", "json"]].concat(), input);
    serde_json::from_str(&ran.out).expect("one JSON document")
}

#[test]
fn a_message_a_name_and_a_number_are_explained_alike() {
    let by_words = explain(&["CUDA error: invalid configuration argument"], b"");
    assert_eq!(by_words.code, 0);
    assert!(
        by_words
            .out
            .starts_with("cudaErrorInvalidConfiguration (9): \"invalid configuration argument\"\n")
    );
    assert!(by_words.out.contains("\n  not out of memory: "), "{}", by_words.out);
    assert!(by_words.out.contains("gridguard check"), "{}", by_words.out);
    for text in [&["9"][..], &["cudaErrorInvalidConfiguration"], &["cudaError", "9"]] {
        assert_eq!(explain(text, b"").out, by_words.out, "{text:?}");
    }
}

#[test]
fn a_log_tells_its_first_failure_first_and_what_followed_from_it() {
    let log = "step 1\n\
               RuntimeError: CUDA error: an illegal memory access was encountered\n\
               CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm\n\
               RuntimeError: CUDA error: an illegal memory access was encountered\n";
    let piped = explain(&[], log.as_bytes());
    assert_eq!(piped.code, 0);
    assert!(piped.out.starts_with("line 2, told 2 times: RuntimeError: "), "{}", piped.out);
    let second = "\nprobably a consequence of CUDA_ERROR_ILLEGAL_ADDRESS (700): look at that one \
                  first\nCUBLAS_STATUS_EXECUTION_FAILED (13)";
    assert!(piped.out.contains(second), "{}", piped.out);
    assert_eq!(explain(&["-"], log.as_bytes()).out, piped.out);
    assert_eq!(explain(&[log], b"").out, piped.out);
}

#[test]
fn json_has_lines_findings_and_their_diagnoses() {
    let told = json_of(&["-"], b"hello\nCUDA error: invalid device ordinal\n");
    assert_eq!(told["lines"], 2);
    let finding = &told["findings"][0];
    assert_eq!((&finding["line"], &finding["times"]), (&json!(2), &json!(1)));
    assert_eq!(
        finding["diagnosis"]["subject"],
        json!({
            "origin": "driver", "name": "CUDA_ERROR_INVALID_DEVICE", "number": 101,
            "runtime_name": "cudaErrorInvalidDevice", "wording": "invalid device ordinal",
        })
    );
    assert_eq!(finding["diagnosis"]["sticky"], false);
    assert!(finding["diagnosis"]["causes"][0]["remedy"].is_string());
}

#[test]
fn a_device_adds_what_it_is() {
    let line = "The current PyTorch install supports CUDA capabilities sm_80 sm_86.\n\
                CUDA error: no kernel image is available for execution on the device\n";
    let ran = explain(&["--gpu", "h200", "-"], line.as_bytes());
    let why = "seen: the device has compute capability 9.0, the program has code for sm_80, sm_86, \
               up to 8.6";
    assert!(ran.out.contains(why), "{}", ran.out);
}

#[test]
fn what_is_not_recognised_is_exit_1_and_told_what_would_be() {
    for (args, input) in [(&["good", "morning"][..], ""), (&[], ""), (&["-"], "all is well\n")] {
        let ran = explain(args, input.as_bytes());
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{args:?}");
        assert!(ran.err.contains("CUDA_ERROR_INVALID_VALUE"), "{}", ran.err);
    }
    assert_eq!(json_of(&["hello"], b"")["findings"], json!([]));
}

#[test]
fn usage_is_exit_2_and_a_device_that_cannot_be_asked_is_exit_3() {
    assert_eq!(explain(&["700", "--gpu", "gtx-9000"], b"").code, 2);
    assert_eq!(explain(&["700", "--format", "yaml"], b"").code, 2);
    assert_eq!(explain(&["700", "--gpu", "h200", "--device", "0"], b"").code, 2);
    assert_eq!(explain(&["700", "--device", "4711"], b"").code, 3);
}

#[test]
fn binary_garbage_and_endless_lines_are_read_to_the_end() {
    let mut input = vec![0xff_u8; 1 << 20];
    input.extend_from_slice(b"\nCUDA error: misaligned address\n\0\x80\n");
    let told = json_of(&["-"], &input);
    assert_eq!(told["lines"], 3);
    assert_eq!(told["findings"][0]["line"], 2);
    assert_eq!(told["findings"][0]["diagnosis"]["subject"]["number"], 716);
}
