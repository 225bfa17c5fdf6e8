//! What is found in logs.

use gridguard_diagnose::{LogFinding, LogScanner, MAX_FINDINGS, MAX_LINE_BYTES, diagnose};
use proptest::prelude::*;

const SHOWN_BYTES: usize = 400;

fn findings(text: &str) -> Vec<LogFinding> {
    let mut log = LogScanner::new();
    log.read(text.as_bytes()).expect("memory can be read");
    log.findings()
}

#[test]
fn the_first_failure_comes_first_and_later_ones_are_its_consequences() {
    let found = findings(
        "step 1 ok\n\
         RuntimeError: CUDA error: an illegal memory access was encountered\n\
         RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm\n\
         RuntimeError: CUDA error: an illegal memory access was encountered\n\
         ncclUnhandledCudaError: Call to CUDA function failed.\n",
    );
    let shown: Vec<_> =
        found.iter().map(|it| (it.failure.entry().name, it.line, it.times)).collect();
    assert_eq!(
        shown,
        [
            ("CUDA_ERROR_ILLEGAL_ADDRESS", 2, 2),
            ("CUBLAS_STATUS_EXECUTION_FAILED", 3, 1),
            ("ncclUnhandledCudaError", 5, 1),
        ]
    );
    let first = found[0].failure;
    let after: Vec<_> = found.iter().map(|it| it.consequence_of).collect();
    assert_eq!(after, [None, Some(first), Some(first)]);
}

#[test]
fn a_failure_that_keeps_the_context_has_no_consequences() {
    let found = findings("CUDA error: out of memory\nCUDA error: invalid device ordinal\n");
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|finding| finding.consequence_of.is_none()));
}

#[test]
fn a_device_side_assert_is_explained_by_the_failed_assertion() {
    let found = findings(
        "IndexKernel.cu:92: operator(): block: [5,0,0], thread: [64,0,0] Assertion `-sizes[i] \
         <= index && index < sizes[i]` failed.\n\
         RuntimeError: CUDA error: device-side assert triggered\n",
    );
    assert_eq!((found.len(), found[0].times), (1, 2));
    let assertion = found[0].evidence.assertion.as_deref().expect("the line states it");
    assert!(assertion.contains("index < sizes[i]"), "{assertion}");
}

#[test]
fn facts_about_the_device_are_evidence_for_later_failures() {
    let found = findings(
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current \
         PyTorch installation.\n\
         The current PyTorch install supports CUDA capabilities sm_80 sm_86 sm_90.\n\
         RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
    );
    assert_eq!((found.len(), found[0].times), (1, 2));
    assert_eq!(found[0].evidence.architectures.len(), 3);
    assert!(found[0].evidence.capability.is_some());
}

#[test]
fn a_long_line_is_scanned_to_its_end_and_shown_truncated() {
    let long = "x ".repeat(MAX_LINE_BYTES);
    let found = findings(&format!("{long} CUDA error: 700\nCUDA error 2: out of memory"));
    let shown: Vec<_> = found.iter().map(|it| (it.line, it.failure.number(), it.times)).collect();
    assert_eq!(shown, [(1, Some(700), 1), (2, Some(2), 1)]);
    let found = findings(&format!("CUDA error: 700 \u{fc}{long} CUDA error: 700"));
    assert_eq!((found.len(), found[0].times), (1, 1));
    assert!(found[0].text.len() <= SHOWN_BYTES && found[0].text.ends_with('\u{2026}'));
}

#[test]
fn colors_progress_bars_and_utf_16_hide_nothing() {
    let found = findings(
        "  3 %|##\r  4 %|###\r\u{1b}[31mRuntimeError\u{1b}[0m: CUDA error: \u{1b}[1minvalid \
         argument\u{1b}[0m\r\nCUDA error: misaligned address\r\n",
    );
    let shown: Vec<_> = found.iter().map(|it| (it.line, it.text.as_str())).collect();
    let first = "RuntimeError: CUDA error: invalid argument";
    assert_eq!(shown, [(1, first), (2, "CUDA error: misaligned address")]);
    let wide = "\u{feff}ok\r\nCUDA error: out of memory\r\n".encode_utf16();
    let mut log = LogScanner::new();
    log.read(wide.flat_map(u16::to_le_bytes).collect::<Vec<u8>>().as_slice()).expect("memory");
    assert_eq!((log.lines(), log.findings()[0].line), (2, 2));
}

#[test]
fn the_line_below_may_state_the_free_memory() {
    let found = findings(
        "cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\n\
         cuda_dnn.cc:443] Memory usage: 2147483648 bytes free, 17179869184 bytes total.\n",
    );
    assert_eq!(found[0].evidence.free_bytes, Some(2 << 30));
    let diagnosis = diagnose(&found[0].failure, &found[0].evidence);
    assert_eq!(diagnosis.not, ["too little free memory: 2.00 GiB were free"]);
}

#[test]
fn a_failed_rank_explains_failures_of_other_ranks_and_nothing_else() {
    let found = findings(
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n\
         [rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n\
         [rank1]: CUDA error: an illegal memory access was encountered\n\
         [rank2]: CUDA error: invalid device ordinal\n\
         [rank1]: CUDA error: driver shutting down\n",
    );
    let after: Vec<_> = found.iter().map(|it| it.consequence_of).collect();
    let [memory, access] = [0, 2].map(|place| Some(found[place].failure));
    assert_eq!(after, [None, memory, None, None, access]);
}

#[test]
fn a_number_whose_meaning_changed_has_a_note() {
    let note = |text: &str| {
        let mut log = LogScanner::for_question();
        log.line(text);
        let found = log.findings().remove(0);
        (found.failure.number(), found.note)
    };
    let old =
        |number| format!("{number} is the number of this failure in the runtime before CUDA 10.1");
    assert_eq!(note("77"), (Some(700), Some(old(77))));
    let other = "the runtime before CUDA 10.1 returns 10 for CUDA_ERROR_INVALID_DEVICE (101)";
    assert_eq!(note("10"), (Some(10), Some(other.to_owned())));
    assert_eq!(note("700"), (Some(700), None));
    assert_eq!(note("cuda runtime error (30) : unknown error").0, Some(999));
    assert_eq!(note("failed call to cuInit: UNKNOWN ERROR (303)"), (Some(303), None));
}

#[test]
fn a_log_of_nothing_but_failures_needs_bounded_memory() {
    let lines = (1..10_000).map(|number| format!("NVRM: Xid (PCI:0000:06:00): {number}, x\n"));
    let found = findings(&lines.collect::<String>());
    assert_eq!(found.len(), MAX_FINDINGS);
}

#[test]
fn failures_beyond_the_maximum_are_counted() {
    let mut log = LogScanner::new();
    let numbers = 1..=u64::try_from(MAX_FINDINGS).expect("few") + 3;
    numbers.for_each(|number| log.line(&format!("NVRM: Xid (PCI:0000:06:00): {number}, x")));
    assert_eq!((log.findings().len(), log.dropped()), (MAX_FINDINGS, 3));
}

proptest! {
    #[test]
    fn random_bytes_are_read_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..4096),
    ) {
        let mut log = LogScanner::for_question();
        log.read(bytes.as_slice()).expect("memory can be read");
        prop_assert!(log.findings().len() <= MAX_FINDINGS);
    }

    #[test]
    fn fragments_of_messages_are_read_without_a_panic(
        fragments in proptest::collection::vec(
            prop::sample::select(vec![
                "CUDA", "error", ":", " ", "(", ")", "Xid", "NVRM", "9", "18446744073709551616",
                "out of memory", "tried to allocate ", "1.", ".5", "GiB", "\u{1f600}", "\n",
                "total capacity of ", " free", "cuda capability sm_", "supports CUDA capabilities ",
                "Assertion `", "failed", "thread: [", "gpu ", "found version ", "nccl", "\0",
            ]),
            0..64,
        )
    ) {
        let text = fragments.concat();
        for mut log in [LogScanner::new(), LogScanner::for_question()] {
            log.read(text.as_bytes()).expect("memory can be read");
            for finding in log.findings() {
                let diagnosis = diagnose(&finding.failure, &finding.evidence);
                prop_assert!(!diagnosis.causes.is_empty() || !diagnosis.not.is_empty());
            }
        }
    }
}
