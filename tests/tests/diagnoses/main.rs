//! The exact text of the diagnoses that people need most, in `texts.txt`, and what the guard's own
//! errors are explained as.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use gridguard::cuda::{CudaError, DriverUnavailable, LaunchError, LoadError};
use gridguard::diagnose::{CudaVersion, Diagnosis, Evidence, Log, Subject, diagnose};
use gridguard::{
    ComputeCapability, Dim3, KernelLimits, LaunchLimits, LaunchRequest, OccupancyLimits, Rule,
    Violations, catalog, validate, validate_co_resident,
};

const TEXTS: &str = include_str!("texts.txt");

#[test]
fn the_most_important_diagnoses_have_exactly_their_texts() {
    let texts: Vec<String> = diagnoses().iter().map(ToString::to_string).collect();
    assert_eq!(texts.join("\n\n") + "\n", TEXTS);
}

#[test]
fn no_line_of_a_diagnosis_ends_with_a_full_stop() {
    for line in TEXTS.lines() {
        assert!(!line.ends_with('.'), "{line}");
    }
}

#[test]
fn the_very_rule_that_a_launch_breaks_is_the_first_cause() {
    for row in catalog::corpus().expect("the corpus parses") {
        let gpu = catalog::gpu("h200").expect("catalogued");
        let request = row.request.request();
        let limits = row.request.limits(&gpu.limits);
        let Err(violations) = validate(&request, &limits) else {
            continue;
        };
        let found = LaunchError::from(violations.clone()).diagnosis().expect("CUDA refuses it");
        let first = violations.iter().next().expect("not empty").to_string();
        assert!(first.starts_with(&found.causes[0].what), "{}: {first}", row.report);
        assert!(found.causes[0].why_likely.is_some(), "{}", row.report);
    }
}

#[test]
fn too_little_room_at_once_is_the_first_cause() {
    let device = &catalog::gpu("h200").expect("catalogued").limits;
    let limits = LaunchLimits::new(device.clone(), KernelLimits::unknown("attention"));
    let request = LaunchRequest::new(Dim3::new(272, 1, 1), Dim3::new(1024, 1, 1));
    let room = OccupancyLimits { blocks: Some(264), cluster_blocks: Some(4) };
    for (request, number, rule) in [
        (request.cooperative(), 720, Rule::CooperativeResidency),
        (request.cluster(Dim3::new(8, 1, 1)), 912, Rule::ClusterResidency),
    ] {
        let violations = validate_co_resident(&request, &limits, &room).expect_err("no room");
        let found = LaunchError::from(violations).diagnosis().expect("CUDA refuses it");
        assert_eq!(found.subject.number(), Some(number));
        let why = format!("the launch breaks the rule {rule}");
        assert_eq!(found.causes[0].why_likely.as_deref(), Some(why.as_str()));
        assert!(found.causes[0].what.contains("there is room for"), "{found}");
    }
}

#[test]
fn failures_that_the_corpus_tells_of_are_recognised() {
    let texts = [("launch out of resources", 701), ("invalid value", 1)];
    for (text, number) in texts {
        let rows = catalog::corpus().expect("the corpus parses");
        assert!(rows.iter().any(|row| row.outcome == text), "{text} is in no row");
        let mut log = Log::asked();
        log.line(text);
        let findings = log.findings();
        assert_eq!(findings.len(), 1, "{text}");
        assert_eq!(findings[0].subject.number(), Some(number));
    }
}

#[test]
fn an_error_that_is_none_of_cudas_has_no_diagnosis() {
    let error = LaunchError::OtherKernel { kernel: "attention".into() };
    assert_eq!(error.diagnosis(), None);
    assert_eq!(gridguard::Error::from(error).diagnosis(), None);
}

#[test]
fn the_guards_own_refusal_of_an_image_names_both_architectures() {
    let error = LoadError::WrongArchitecture {
        image: "sm_120a".into(),
        device: "NVIDIA H200".into(),
        capability: ComputeCapability::new(9, 0),
    };
    let found = CudaError::from(error).diagnosis().expect("a failure of CUDA");
    assert_eq!(found.subject.number(), Some(209));
    let why = "the device has compute capability 9.0, the program has code for sm_120, up to 12.0";
    assert_eq!(found.causes[0].why_likely.as_deref(), Some(why));
}

fn diagnoses() -> Vec<Diagnosis> {
    let mut all = launches();
    all.extend(memory());
    all.extend(devices());
    all.extend(around());
    all
}

/// What programs above CUDA and the machine below it say.
fn around() -> Vec<Diagnosis> {
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

fn launches() -> Vec<Diagnosis> {
    let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
    let device = &catalog::gpu("h200").expect("catalogued").limits;
    let limits = LaunchLimits::new(device.clone(), KernelLimits::unknown("attention"));
    let too_large = Evidence {
        device: Some(device.clone()),
        request: Some(request),
        violations: Some(validate(&request, &limits).expect_err("too many blocks on y")),
        ..Evidence::default()
    };
    let legal = Evidence { violations: Some(Violations::default()), ..Evidence::default() };
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
        capability: Some(ComputeCapability::new(12, 0)),
        architectures: [(8, 0), (8, 6), (9, 0)].map(ComputeCapability::from).to_vec(),
        ..Evidence::default()
    };
    let (driver_cuda, program_cuda) = (Some(CudaVersion(12_080)), Some(CudaVersion(13_000)));
    let old_driver = Evidence { driver_cuda, program_cuda, ..Evidence::default() };
    let hidden = DriverUnavailable::NoDevice {
        cuda_visible_devices: Some(String::new()),
        driver_version: None,
    };
    vec![
        of_code(209, &too_new),
        of_code(222, &old_driver),
        hidden.diagnosis().expect("a failure of CUDA"),
        CudaError::NoSuchDevice { ordinal: 4, count: 4 }.diagnosis().expect("a failure of CUDA"),
        of_line("AssertionError: Torch not compiled with CUDA enabled"),
        of_line("The NVIDIA driver on your system is too old (found version 11040)."),
        of_code(802, &Evidence::default()),
        of_line("NVRM: Xid (PCI:0000:06:00): 79, pid='<unknown>', GPU has fallen off the bus."),
        of_code(4711, &Evidence::default()),
    ]
}

fn of_code(code: i32, evidence: &Evidence) -> Diagnosis {
    diagnose(&Subject::of_code(code), evidence)
}

fn of_name(name: &str, evidence: &Evidence) -> Diagnosis {
    diagnose(&Subject::of_name(name).expect("listed"), evidence)
}

fn of_line(line: &str) -> Diagnosis {
    let mut log = Log::new();
    log.line(line);
    let findings = log.findings();
    assert_eq!(findings.len(), 1, "{line}");
    diagnose(&findings[0].subject, &findings[0].evidence)
}
