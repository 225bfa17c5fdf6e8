//! `gridguard explain` on what logs say besides sizes: reports of compute-sanitizer, the machine, launches in source.

use serde_json::{Value, json};

use crate::command::{Ran, run_with_input};

fn diagnosis(log: &str) -> Value {
    let input = format!("a log\n{log}\n");
    let ran = run_with_input(&["explain", "-", "--format", "json"], input.as_bytes());
    let report: Value = serde_json::from_str(&ran.out).expect("one JSON document");
    report["findings"][0]["diagnosis"].clone()
}

/// The id of the cause in this place, or the beginning of its text.
fn cause(diagnosis: &Value, place: usize) -> String {
    let cause = &diagnosis["causes"][place];
    let text = cause["id"].as_str().or(cause["what"].as_str());
    text.unwrap_or_default().to_owned()
}

const AFTER: &str = "\
========= Invalid __global__ write of size 8 bytes
=========     at scale(double *, int)+0xb0
=========     by thread (96,0,0) in block (3,0,0)
=========     Access at 0x7f698ba00320 is out of bounds
=========     and is 33 bytes after the nearest allocation at 0x7f698ba00000 of size 800 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cudaLaunchKernel [0x83cb7] in main";

#[test]
fn an_access_in_a_report_of_compute_sanitizer_is_the_cause() {
    let found = diagnosis(AFTER);
    assert_eq!(found["failure"]["number"], 700);
    assert_eq!((cause(&found, 0).as_str(), &found["kernel"]), ("out-of-bounds", &"scale".into()));
    let text = found.to_string();
    for says in [
        "scale, thread (96,0,0) of block (3,0,0), writes 8 bytes of global memory out of bounds: 33 bytes after the \
         nearest allocation, of 800 bytes",
        "compute-sanitizer reports the access at 0x7f698ba00320",
        "check the index against the number of elements in scale",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
    for other in ["earlier kernel", "compute-sanitizer PROGRAM", "CUDA_LAUNCH_BLOCKING"] {
        assert!(!text.contains(other), "{other}: {text}");
    }
    assert_eq!(found["late"], false);
    let shared = diagnosis(&AFTER.replace("__global__", "__shared__"));
    assert_eq!(
        (&shared["failure"]["number"], cause(&shared, 0).as_str()),
        (&719.into(), "out-of-bounds")
    );
}

#[test]
fn a_misaligned_access_is_that_failure_and_an_api_error_none() {
    let report = "\
========= Invalid __global__ read of size 16
=========     at 0x00000070 in copy.cu:12:copy(float4 *)
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x7f698ba00004 is misaligned";
    let found = diagnosis(report);
    assert_eq!(
        (&found["failure"]["number"], cause(&found, 0).as_str()),
        (&716.into(), "misaligned")
    );
    assert!(found.to_string().contains("copy, thread (1,0,0) of block (0,0,0), reads 16 bytes"));
    let call = diagnosis(
        "========= Program hit cudaErrorInvalidValue (error 1) due to \"invalid argument\" on CUDA API call to cudaMemcpy.",
    );
    assert_eq!(call["failure"]["number"], 1);
    assert!(!call.to_string().contains("out-of-bounds"), "{call}");
}

#[test]
fn races_uninitialized_reads_and_barriers_name_the_kernel() {
    for (line, name, remedy) in [
        (
            "Error: Race reported between Write access at f(int *)+0x10",
            "racecheck hazard",
            "__syncthreads()",
        ),
        ("Uninitialized __global__ memory read of size 4 bytes", "initcheck error", "cudaMemset"),
        (
            "Barrier error detected. Divergent thread(s) in block.",
            "synccheck error",
            "all threads run",
        ),
    ] {
        let found = diagnosis(&format!("========= {line}\n=========     at f(int *)+0x70"));
        assert_eq!(
            (&found["failure"]["name"], &found["kernel"]),
            (&name.into(), &"f".into()),
            "{line}"
        );
        assert!(
            found["causes"][0]["remedy"].as_str().is_some_and(|it| it.contains(remedy)),
            "{found}"
        );
    }
}

#[test]
fn pinned_memory_is_limited_in_wsl() {
    let failed = "CUDA error 2 at ggml-cuda.cu:359: out of memory";
    for machine in
        ["root@DESKTOP-1:~# ./main", "cd /mnt/e/models", "Linux 5.15-microsoft-standard-WSL2"]
    {
        let found = diagnosis(&format!("{machine}\n{failed}"));
        let text = found.to_string();
        assert_eq!(cause(&found, 0), "host-memory", "{text}");
        let says = [
            "GGML_CUDA_NO_PINNED=1",
            ".wslconfig",
            "does not tell memory of the GPU from memory of the host",
        ];
        assert!(says.iter().all(|it| text.contains(it)), "{text}");
    }
    let host = diagnosis("cd /mnt/e/models\ncudaMallocHost failed: out of memory");
    assert!(cause(&host, 0) == "host-memory" && host.to_string().contains(".wslconfig"), "{host}");
    for other in [
        format!("cd /mnt/data/models\n{failed}"),
        "/mnt/c/x\ncudaMalloc failed: out of memory".into(),
    ] {
        assert!(!diagnosis(&other).to_string().contains(".wslconfig"), "{other}");
    }
}

#[test]
fn a_gpu_that_is_older_than_a_function_is_named() {
    for status in [
        "CUBLAS_STATUS_ARCH_MISMATCH",
        "CUDNN_STATUS_ARCH_MISMATCH",
        "CUSPARSE_STATUS_NOT_SUPPORTED",
    ] {
        let found = diagnosis(&format!("Device Tesla K40m\nerror: {status}"));
        assert_eq!(
            (&found["failure"]["name"], cause(&found, 0).as_str()),
            (&status.into(), "gpu-age")
        );
        assert!(found.to_string().contains("Tesla K40m, compute capability 3.5"), "{found}");
    }
    let new = diagnosis("NVIDIA H100, compute capability 9.0\nerror: CUBLAS_STATUS_NOT_SUPPORTED");
    assert_ne!(cause(&new, 0), "gpu-age");
}

#[test]
fn an_empty_input_comes_first_and_unknown_sizes_are_named() {
    let failed = "CUDA error: invalid configuration argument";
    for empty in
        ["Image size = 0x0", "loaded 0 points", "n = 0", "list of size 0", "element count: 0"]
    {
        let found = diagnosis(&format!("{empty}\n{failed}"));
        assert_eq!(cause(&found, 0), "empty-batch", "{empty}");
        assert!(found.to_string().contains(empty), "{found}");
    }
    for other in ["device count: 0", "image 640x480", "shared memory size: 0"] {
        assert_eq!(cause(&diagnosis(&format!("{other}\n{failed}")), 0), "launch-size", "{other}");
    }
    let long_ago = format!("loaded 0 points\n{}{failed}", "step\n".repeat(70));
    assert_eq!(cause(&diagnosis(&long_ago), 0), "launch-size");
    for (log, says) in [
        (
            format!("{failed} in step.cu:12\nstep<<<blocks, dim3(n, 2)>>>(x)"),
            "print blocks and dim3(n, 2) before step.cu:12",
        ),
        (
            format!("{failed}\n# 3  own::reorder(int)"),
            "print grid and block of the launch in own::reorder",
        ),
    ] {
        let remedy = diagnosis(&log)["causes"][0]["remedy"].clone();
        assert!(remedy.as_str().is_some_and(|it| it.contains(says)), "{log}: {remedy}");
    }
}

#[test]
fn what_a_kernel_needs_is_told_with_the_limit_of_the_gpu() {
    let found = diagnosis(
        "OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
    );
    let says = "a block needs 131072 bytes of shared memory, and a block of this GPU has 101376, the most of compute \
                capability 8.6, 8.9 and 12.0";
    assert!(found["causes"][0]["why_likely"].as_str().is_some_and(|it| it == says), "{found}");
}

/// The reply to a log with a failure, after a launch of `launch` blocks on y, if given.
fn explain_rows(failure: &str, launch: Option<u32>, args: &[&str]) -> Ran {
    let folder = tempfile::tempdir().expect("a folder");
    let ptx = folder.path().join("rows.ptx");
    std::fs::write(&ptx, crate::ptx::ROWS).expect("a file");
    let launch =
        launch.map(|rows| format!("rows<<<dim3(1, {rows}, 1), dim3(32, 1, 1)>>>(out, pitch)\n"));
    let log = format!("a log\n{}{failure}\n", launch.unwrap_or_default());
    let ptx = ptx.to_str().expect("text");
    let args = [&["explain", "-", "--ptx", ptx, "--format", "json"], args].concat();
    run_with_input(&args, log.as_bytes())
}

const FAILURES: [&str; 3] = [
    "CUDA error: an illegal memory access was encountered",
    "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
    "AssertionError: Tensor-likes are not close!",
];

#[test]
fn an_illegal_access_and_wrong_values_name_the_index_that_wraps_in_the_launch() {
    for failure in FAILURES {
        let wraps = explain_rows(failure, Some(40_000), &["--param", "pitch=65536"]).exits(0);
        let document: Value = serde_json::from_str(&wraps.out).expect("JSON");
        let cause = &document["findings"][0]["diagnosis"]["causes"][0];
        let what = "a 32-bit index wraps: pitch * blockIdx.y reaches 2621374464 (line 8, column 2)";
        assert_eq!(
            (&cause["id"], &cause["what"]),
            (&json!("index-wrap"), &json!(what)),
            "{failure}"
        );
        let remedy = "compile the kernel with 64-bit indices, or launch chunks of at most 32768 blocks on y, each with \
                      pointers to its own items";
        assert_eq!(cause["remedy"], remedy, "{failure}");
        for (rows, pitch) in [(40_000, "pitch=4096"), (32_768, "pitch=65536")] {
            let safe = explain_rows(failure, Some(rows), &["--param", pitch]).exits(0);
            assert!(!safe.out.contains("a 32-bit index wraps"), "{}", safe.out);
        }
    }
    let unknown = explain_rows(FAILURES[0], Some(1), &["--param", "pitches=1"]).exits(2);
    assert!(unknown.err.contains("no such parameter: rows has out, pitch"), "{}", unknown.err);
}

#[test]
fn wrong_values_may_be_asked_for_by_name() {
    for question in ["nan", "wrong values", "NaN or wrong values"] {
        let answer = run_with_input(&["explain", question], b"").exits(0);
        assert!(answer.out.starts_with("NaN or wrong values: "), "{}", answer.out);
        assert!(answer.out.contains("a 32-bit index overflows"), "{}", answer.out);
        assert!(
            answer.out.ends_with("next step\n  gridguard run --index -- PROGRAM\n"),
            "{}",
            answer.out
        );
    }
}

#[test]
fn the_launch_may_be_given_as_arguments_and_an_open_parameter_is_asked_for() {
    for failure in FAILURES {
        let given = ["--kernel", "rows", "--grid", "1,40000", "--block", "32"];
        let open = explain_rows(failure, Some(1), &given).exits(0);
        assert!(!open.out.contains("a 32-bit index wraps"), "{}", open.out);
        let asks = "a 32-bit index of rows may wrap: pitch * blockIdx.y, if pitch * gridDim.y - pitch > 2147483647; \
                    --grid, --block and --param decide it";
        assert!(open.err.contains(asks), "{}", open.err);
        let other =
            explain_rows(failure, None, &["--grid", "1,40000", "--kernel", "other"]).exits(0);
        assert!(other.err.is_empty(), "{}", other.err);
        let all = [&given[2..], &["--param", "pitch=65536"]].concat();
        let wraps = explain_rows(failure, None, &all).exits(0);
        assert!(wraps.out.contains("reaches 2621374464"), "{}", wraps.out);
    }
}
