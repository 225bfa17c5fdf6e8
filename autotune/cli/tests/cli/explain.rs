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
fn a_message_a_name_and_a_number_have_the_same_explanation() {
    let by_words = explain(&["CUDA error: invalid configuration argument"], b"");
    assert_eq!(by_words.code, Some(0));
    assert!(
        by_words
            .out
            .starts_with("cudaErrorInvalidConfiguration (9): \"invalid configuration argument\"\n")
    );
    by_words.prints("\n  not out of memory: ");
    assert!(by_words.out.ends_with("\nnext step\n  gridguard run -- COMMAND\n"));
    let alone = "\n  this message alone does not name the refused size or argument; to find out, run: gridguard run -- COMMAND\n";
    by_words.prints(alone);
    for text in [&["9"][..], &["cudaErrorInvalidConfiguration"], &["cudaError", "9"]] {
        assert_eq!(explain(text, b"").out, by_words.out, "{text:?}");
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
    assert!(piped.out.starts_with("line 2, reported 2 times: RuntimeError: "), "{}", piped.out);
    let second = "\nCUBLAS_STATUS_EXECUTION_FAILED (13)\n  probably a consequence of \
                  CUDA_ERROR_ILLEGAL_ADDRESS (700): fix that first\n";
    assert!(piped.out.ends_with(second), "{}", piped.out);
    assert_eq!(explain("-", log.as_bytes()).out, piped.out);
    assert_eq!(explain(&[log], b"").out, piped.out);
}

#[test]
fn json_has_lines_findings_and_their_diagnoses() {
    let found = json_of("-", b"hello\nCUDA error: invalid device ordinal\n");
    assert_eq!(found["lines"], 2);
    let finding = &found["findings"][0];
    assert_eq!((&finding["line"], &finding["times"]), (&json!(2), &json!(1)));
    assert_eq!(
        finding["diagnosis"]["failure"],
        json!({
            "origin": "driver", "name": "CUDA_ERROR_INVALID_DEVICE", "number": 101,
            "runtime_name": "cudaErrorInvalidDevice", "message": "invalid device ordinal",
        })
    );
    assert_eq!(finding["diagnosis"]["sticky"], false);
    assert!(finding["diagnosis"]["causes"][0]["remedy"].is_string());
}

#[test]
fn a_chosen_device_is_evidence() {
    let line = "The current PyTorch install supports CUDA capabilities sm_80 sm_86.\n\
                CUDA error: no kernel image is available for execution on the device\n";
    let ran = explain("--gpu h200 -", line.as_bytes());
    let why = "evidence: the device has compute capability 9.0, the program has code for sm_80, sm_86, \
               up to 8.6";
    ran.prints(why);
}

/// The last line, which is a command to paste.
fn next_step(ran: &Ran) -> &str {
    let (_, last) = ran.out.trim_end().rsplit_once("\nnext step\n").expect("one at the end");
    last.trim()
}

#[test]
fn the_driver_s_log_gives_rule_value_limit_and_remedy() {
    let log = "[12:00:00.1][42][CUDA][E] Grid Dimension Y of 65536 exceeds maximum value of 65535\n\
               [12:00:00.1][42][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLaunchKernel\n";
    let ran = explain("--gpu h200 -", log.as_bytes());
    expect_file!["screens/explain-driver-log.txt"].assert_eq(&ran.out);
}

#[test]
fn unknown_lines_of_the_driver_s_log_are_quoted_and_harmless_ones_are_not() {
    let log = "[1][2][CUDA][E] cudaVersion argument (13010) exceeds the driver version (13000)\n\
               [1][2][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuGetProcAddress_v2\n";
    assert_eq!(json_of("-", log.as_bytes())["findings"], json!([]));
    let odd = "[1][2][CUDA][E] the moon is in the wrong house\n\
               [1][2][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLaunchKernelEx\n";
    let found = json_of("-", format!("{log} {odd}").as_bytes());
    let quoted = &found["findings"][0]["diagnosis"]["driver_log"];
    assert_eq!(*quoted, json!(["the moon is in the wrong house"]));
}

#[test]
fn a_launch_in_the_text_is_checked_against_the_chosen_gpu_or_all_of_the_catalogue() {
    let text = "CUDA error: invalid argument, grid (1,65536,1) block (128,1,1)";
    let chosen = explain(&["--gpu", "t4", text], b"");
    chosen.prints("launch violates rule grid-dim-y\n").prints(" (Tesla T4)\n");
    let all = explain(&[text], b"");
    all.prints("launch violates rule grid-dim-y\n").prints(" (all ");
    assert_eq!(next_step(&all), "gridguard check --gpu any --grid 1,65536,1 --block 128,1,1");

    let shared = "with block dimensions: 128x1x1 and grid dimensions: 4x1x1 and shared memory size: \
                  131072: CUDA_ERROR_INVALID_VALUE: invalid argument";
    let some = explain(&[shared], b"");
    some.prints(" such GPUs of ");
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
    let legal = "\n  not the launch configuration: it was checked and violates no rule\n";
    fits.prints(legal);
    assert_eq!(next_step(&fits), "gridguard run -- COMMAND");
    // The text states a compute capability.
    let stated = format!(
        "A100 with CUDA capability sm_80 is not compatible with the current PyTorch installation\n\
         {text}\n"
    );
    let stated = explain("-", stated.as_bytes());
    stated.prints("launch violates rule grid-dim-y\n").prints(" (any sm_80)");
    assert!(stated.out.contains("gridguard check --gpu 'sm_80' --grid 1,65536,1 "));
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
    assert_eq!(json_of("hello", b"")["findings"], json!([]));
}

#[test]
fn half_remembered_messages_are_found_or_suggested() {
    let one = explain("illegal memory access", b"");
    assert_eq!(one.code, Some(0));
    assert!(
        one.out.starts_with(
            "CUDA_ERROR_ILLEGAL_ADDRESS (700), cudaErrorIllegalAddress in the runtime"
        ),
        "{}",
        one.out
    );
    let taken = "assuming that \"illegal memory access\" means CUDA_ERROR_ILLEGAL_ADDRESS (700)\n";
    assert_eq!(one.err, taken);
    let several = explain("oom", b"");
    assert_eq!((several.code, several.out.as_str()), (Some(1), ""));
    several.notes("\n  CUDA_ERROR_OUT_OF_MEMORY (2)\n  torch.");
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
    assert!(nothing.err.starts_with("no CUDA failure recognized in "), "{}", nothing.err);
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
        assert!(ran.err.starts_with("no CUDA failure recognized; "), "{}", ran.err);
    }
}

#[test]
fn former_numbers_are_explained_and_invalid_ones_are_not() {
    let old = explain("77", b"");
    let start = "77 is the number of this failure in the runtime before CUDA 10.1\nCUDA_ERROR_ILLEGAL_ADDRESS (700)";
    assert!(old.code == Some(0) && old.out.starts_with(start), "{}", old.out);
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
fn attention_in_pytorch_ends_in_the_installation() {
    let log = "File \"a.py\", line 3, in scaled_dot_product_attention\nRuntimeError: CUDA error: invalid argument\n";
    let end = "\nnext step\n  pip install gridguard\nand in the program, before the model runs\n  \
               import gridguard.torch\n  gridguard.torch.install()\n";
    let ran = explain("-", log.as_bytes());
    assert!(ran.out.ends_with(end), "{}", ran.out);
    let unaligned = explain("-", b"x\nRuntimeError: attn_bias is not correctly aligned\n");
    assert!(unaligned.out.ends_with(end), "{}", unaligned.out);
}

#[test]
fn wrong_values_may_be_asked_for_by_name() {
    for question in ["nan", "wrong values", "NaN or wrong values"] {
        let answer = run_with_input(&["explain", question], b"").exits(0);
        assert!(answer.out.starts_with("NaN or wrong values: "), "{}", answer.out);
        answer.prints("a 32-bit index overflows");
        assert!(
            answer.out.ends_with("next step\n  gridguard run --index -- PROGRAM\n"),
            "{}",
            answer.out
        );
    }
}
