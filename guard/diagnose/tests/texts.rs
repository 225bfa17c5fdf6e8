//! The exact text of the most important diagnoses, in `texts.txt`.

use expect_test::expect_file;
use gridguard_diagnose::{
    Capability, CudaVersion, Diagnosis, Evidence, FailureId, LaunchConfig, LogScanner,
    ViolatedRule, diagnose,
};

#[test]
fn the_most_important_diagnoses_have_exactly_their_texts() {
    let texts: Vec<String> = diagnoses().iter().map(ToString::to_string).collect();
    let texts = texts.join("\n\n") + "\n";
    assert!(texts.lines().all(|line| !line.ends_with('.')));
    expect_file!["texts.txt"].assert_eq(&texts);
}

fn diagnoses() -> Vec<Diagnosis> {
    let mut all = launches();
    all.extend(memory());
    all.extend(devices());
    all.extend(environment());
    all
}

fn launches() -> Vec<Diagnosis> {
    let too_large = Evidence {
        device_name: Some("NVIDIA H200".into()),
        launch: Some(LaunchConfig {
            grid: [1, 76_800, 1],
            block: [128, 1, 1],
            ..LaunchConfig::default()
        }),
        violated_rules: Some(vec![ViolatedRule {
            id: "grid-dim-y".into(),
            what: "grid.y is 76800 blocks, the limit is 65535 (NVIDIA H200)".into(),
            remedy: "split axis y into 2 launches of 38400, or fold it into x".into(),
            codes: &[1, 9],
        }]),
        ..Evidence::default()
    };
    let legal = Evidence { violated_rules: Some(Vec::new()), ..Evidence::default() };
    let recent_launches = vec!["embed".into(), "attention".into()];
    let after_two = Evidence { recent_launches, ..Evidence::default() };
    vec![
        of_code(1, &too_large),
        of_code(1, &legal),
        of_name("cudaErrorInvalidConfiguration", &Evidence::default()),
        of_code(701, &Evidence::default()),
        of_code(700, &after_two),
        of_line("block: [5,0,0], thread: [64,0,0] Assertion `index < sizes[i]` failed."),
    ]
}

fn memory() -> Vec<Diagnosis> {
    let pytorchs = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 \
                    has a total capacity of 79.15 GiB of which 9.50 GiB is free. Including \
                    non-PyTorch memory, this process has 69.00 GiB memory in use. Of the allocated \
                    memory 40.00 GiB is allocated by PyTorch, and 28.00 GiB is reserved by PyTorch \
                    but unallocated.";
    let (requested_bytes, free_bytes) = (Some(1 << 30), Some(100 << 30));
    let plenty = Evidence { requested_bytes, free_bytes, ..Evidence::default() };
    vec![
        of_code(2, &plenty),
        of_line(pytorchs),
        of_name("CUBLAS_STATUS_NOT_INITIALIZED", &Evidence::default()),
    ]
}

fn devices() -> Vec<Diagnosis> {
    let too_new = Evidence {
        capability: Some(Capability(12, 0)),
        architectures: vec![Capability(8, 0), Capability(8, 6), Capability(9, 0)],
        ..Evidence::default()
    };
    let (driver_cuda, program_cuda) = (Some(CudaVersion(12_080)), Some(CudaVersion(13_000)));
    let old_driver = Evidence { driver_cuda, program_cuda, ..Evidence::default() };
    let hidden = Evidence { visible_devices: Some(0), ..Evidence::default() };
    let (ordinal, visible_devices) = (Some(4), Some(4));
    let beyond = Evidence { ordinal, visible_devices, ..Evidence::default() };
    vec![
        of_code(209, &too_new),
        of_code(222, &old_driver),
        of_code(100, &hidden),
        of_code(101, &beyond),
        of_line("AssertionError: Torch not compiled with CUDA enabled"),
        of_line("The NVIDIA driver on your system is too old (found version 11040)."),
        of_code(802, &Evidence::default()),
        of_line("NVRM: Xid (PCI:0000:06:00): 79, pid='<unknown>', GPU has fallen off the bus."),
        of_code(4711, &Evidence::default()),
    ]
}

/// What frameworks, the loader, NVML and containers print.
fn environment() -> Vec<Diagnosis> {
    vec![
        of_line("E cuda_driver.cc:313] failed call to cuInit: UNKNOWN ERROR (303)"),
        of_line(
            "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        ),
        of_line(
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.",
        ),
        of_line("[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"),
        of_line("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        of_line("Failed to initialize NVML: Unknown Error"),
        of_line(
            "Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]]",
        ),
    ]
}

fn of_code(code: i32, evidence: &Evidence) -> Diagnosis {
    diagnose(&FailureId::from_code(code), evidence)
}

fn of_name(name: &str, evidence: &Evidence) -> Diagnosis {
    diagnose(&FailureId::from_name(name).expect("listed"), evidence)
}

fn of_line(line: &str) -> Diagnosis {
    let mut log = LogScanner::new();
    log.line(line);
    let findings = log.findings();
    assert_eq!(findings.len(), 1, "{line}");
    diagnose(&findings[0].failure, &findings[0].evidence)
}
