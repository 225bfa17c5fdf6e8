//! What is found in logs, also in bad ones.

use gridguard_diagnose::{Diagnosis, Known, LogScanner, MAX_LINE_BYTES};
use proptest::prelude::*;

fn diagnosis(text: &str) -> Diagnosis {
    let mut log = LogScanner::new();
    log.read(text.as_bytes()).expect("memory can be read");
    log.diagnosis(&Known::default())
}

#[test]
fn consequences_follow_the_failure_that_explains_them_once() {
    let found = diagnosis(
        "step 1 ok\n\
         RuntimeError: CUDA error: an illegal memory access was encountered\n\
         RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm\n\
         RuntimeError: CUDA error: an illegal memory access was encountered\n",
    );
    let [failure] = &found.failures[..] else { panic!("{found}") };
    assert_eq!((failure.code, failure.times, failure.evidence[0].line), (Some(700), 2, 2));
    assert_eq!(failure.consequences.iter().map(|it| it.line).collect::<Vec<_>>(), [3]);
    assert!(!found.is_decided());
}

#[test]
fn a_size_serves_no_launch_that_it_does_not_belong_to() {
    let far = format!("grid=(1, 70000, 1) block=(32, 1, 1)\n{}", "step\n".repeat(80));
    let near = "grid=(1, 70000, 1) block=(32, 1, 1)\n";
    let launch = |log: &str| {
        let found = diagnosis(&format!("{log}CUDA_ERROR_INVALID_VALUE\n"));
        found.failures[0].launch.clone()
    };
    assert_eq!(launch(&far), None);
    assert_eq!(launch(near).and_then(|it| it.grid), Some([1, 70_000, 1]));
}

#[test]
fn lines_about_something_else_explain_no_failure() {
    const LOGS: &str = "\
cuda-1: Loading blocks: 0/24; CUDA error: invalid argument
cuda-1: num_blocks: 0%; CUDA error: invalid argument
cuda-1: # GPU blocks: 0, # CPU blocks: 512; CUDA error: invalid argument
cuda-1: grid size: 0.25; CUDA error: invalid argument
cuda-1: Processing blocks 0 to 15; CUDA error: invalid argument
cuda-1: smem_bytes=49152; smem_bytes=1024; CUDA error: invalid argument
cuda-1: dim3 origin(0, 0, 0); CUDA error: invalid argument
cuda-1: Allocated shared_memory: 64 GiB; CUDA error: invalid argument
operator-copy-arguments: grid=(1,70000,1); cudaMemcpy failed: CUDA error: invalid argument
registers-too-many: Used 255 registers; Used 32 registers; small<<<64, 512>>>; add<<<64, 256>>>; launch out of resources
registers-too-many: dynamic shared memory: 65536; too many resources requested for launch
cuda-700: features.shape: (3000000, 1024); x.shape: (32, 1024); an illegal memory access was encountered
cuda-700: NCCL version 2.21.5; failed to connect to api.wandb.ai port 443: Connection timed out; CUDA error 700
cuda-710: 7.0 GiB allocated by tensors, memory limit 7.5 GiB of cgroup v2; device-side assert triggered
access-invalid: PM: suspend exit; unspecified launch failure; Invalid __global__ write of size 4 bytes
cuda-100: thunderbolt 0-3: keyboard hub disconnected; no CUDA-capable device is detected";
    for line in LOGS.lines() {
        let (id, log) = line.split_once(": ").expect("an id and a log");
        assert_eq!(diagnosis(&log.replace("; ", "\n")).failures[0].id, id, "{log}");
    }
}

#[test]
fn a_long_line_is_scanned_to_its_end_and_shown_truncated() {
    let long = "x ".repeat(MAX_LINE_BYTES);
    let found = diagnosis(&format!("{long} CUDA error: 700 \u{fc}{long}"));
    let line = &found.failures[0].evidence[0];
    assert_eq!((found.failures.len(), line.line), (1, 1));
    assert!(line.text.len() <= 400 && line.text.ends_with('\u{2026}'), "{line:?}");
}

#[test]
fn colors_progress_bars_and_utf_16_hide_nothing() {
    let found = diagnosis(
        "  3 %|##\r  4 %|###\r\u{1b}[31mRuntimeError\u{1b}[0m: CUDA error: \u{1b}[1mmisaligned \
         address\u{1b}[0m\r\nok\r\n",
    );
    assert_eq!(found.failures[0].evidence[0].text, "RuntimeError: CUDA error: misaligned address");
    let wide = "\u{feff}ok\r\nCUDA error: misaligned address\r\n".encode_utf16();
    let mut log = LogScanner::new();
    log.read(wide.flat_map(u16::to_le_bytes).collect::<Vec<u8>>().as_slice()).expect("memory");
    let found = log.diagnosis(&Known::default());
    assert_eq!((found.lines, found.failures[0].evidence[0].line), (2, 2));
}

#[test]
fn a_harmless_mention_is_no_failure() {
    let found =
        diagnosis("test \"CUDA out of memory\" passed\nif (e == cudaErrorNotReady) return;\n");
    assert!(!found.is_decided(), "{found}");
    assert!(found.failures.iter().all(|it| it.code.is_none()), "{found}");
}

#[test]
fn a_piece_of_all_words_is_searched_for_a_bounded_number_of_patterns() {
    let words: Vec<&str> = include_str!("messages.txt").split_whitespace().collect();
    let line = words.join(" ").repeat(20);
    let mut log = LogScanner::new();
    log.read(line.as_bytes()).expect("memory can be read");
    // Each piece of the line is searched for at most 512 patterns, and advances by 56 KiB.
    let pieces = line.len().div_ceil(56 * 1024);
    let times: u64 = log.diagnosis(&Known::default()).failures.iter().map(|it| it.times).sum();
    assert!(times > 0 && times <= 512 * u64::try_from(pieces).expect("few"), "{times}");
}

proptest! {
    #[test]
    fn random_bytes_are_read_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..4096),
    ) {
        let mut log = LogScanner::for_question();
        log.read(bytes.as_slice()).expect("memory can be read");
        let _ = log.diagnosis(&Known::default());
    }

    #[test]
    fn fragments_of_messages_are_read_without_a_panic(
        fragments in proptest::collection::vec(
            prop::sample::select(vec![
                "CUDA", "error", ":", " ", "(", ")", "Xid", "NVRM", "9", "18446744073709551616",
                "out of memory", "Tried to allocate ", "1.", ".5", "GiB", "\u{1f600}", "\n",
                "File \"a.py\", line 1, in <module>", "grid=(", ",", "<<<", ">>>", "sm_", "0x",
                "Assertion `", "failed", "block: [", "]", "found version ", "nccl", "\0",
            ]),
            0..64,
        )
    ) {
        let found = diagnosis(&fragments.concat());
        prop_assert!(found.failures.iter().all(|it| !it.cause.is_empty()));
        prop_assert!(found.to_string().lines().count() <= 14);
    }
}
