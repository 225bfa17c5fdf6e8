//! What the guard's own errors are diagnosed as.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(unsafe_code, reason = "the fake driver's kernels need somebody to promise their contract")]

use gridguard::cuda::{Args, CudaErrorKind, Image, LaunchError, LaunchErrorKind};
use gridguard::{
    ComputeCapability, ContextState, Dim3, Guard, KernelLimits, LaunchLimits, LaunchRequest,
    OccupancyLimits, Parameter, Rule, catalog, validate, validate_co_resident,
};
use gridguard_diagnose::{Failure, Known, LogScanner};
use gridguard_report::{Diagnose, of_code, violated_rules};
use gridguard_test_support::corpus;
use gridguard_test_support::fake_driver::with_fake;

/// The deciding failure of an error.
fn first_of(error: &impl Diagnose) -> Failure {
    error.diagnosis().expect("a failure of CUDA").failures.remove(0)
}

/// The remarks that are not of a log.
fn remarks(failure: &Failure) -> Vec<&str> {
    failure.evidence.iter().filter(|it| it.line == 0).map(|it| it.text.as_str()).collect()
}

#[test]
fn the_violated_rule_is_the_first_cause() {
    for row in corpus() {
        let gpu = catalog::gpu("h200").expect("listed");
        let request = row.request.request;
        let limits = row.request.limits(&gpu.limits);
        let Err(violations) = validate(&request, &limits) else {
            continue;
        };
        let found = first_of(&violations);
        let first = violations.iter().next().expect("not empty");
        assert_eq!(found.id, first.rule.to_string(), "{}", row.report);
        assert!(found.cause.starts_with(&first.problem()), "{}: {found:?}", row.report);
    }
}

#[test]
fn too_few_co_resident_blocks_are_the_first_cause() {
    let device = &catalog::gpu("h200").expect("listed").limits;
    let limits = LaunchLimits::new(device.clone(), KernelLimits::unknown("attention"));
    let request = LaunchRequest::new(Dim3::new(272, 1, 1), Dim3::new(1024, 1, 1));
    let occupancy = OccupancyLimits { blocks: Some(264), cluster_blocks: Some(4) };
    for (request, number, rule) in [
        (request.cooperative(), 720, Rule::CooperativeResidency),
        (request.cluster(Dim3::new(8, 1, 1)), 912, Rule::ClusterResidency),
    ] {
        let violations = validate_co_resident(&request, &limits, &occupancy).expect_err("too many");
        let found = first_of(&LaunchError::from(violations));
        assert_eq!((found.code, found.id), (Some(number), rule.to_string()));
    }
}

#[test]
fn violated_rules_are_the_cause_and_a_legal_launch_is_none() {
    let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
    let device = &catalog::gpu("h200").expect("listed").limits;
    let limits = LaunchLimits::new(device.clone(), KernelLimits::unknown("attention"));
    let violations = validate(&request, &limits).expect_err("too many blocks on y");
    let known = Known::default().rules(violated_rules(&violations));
    let found = of_code(1, &known).failures.remove(0);
    let first = violations.iter().next().expect("one");
    assert_eq!(found.cause, format!("{} [grid-dim-y]", first.problem()));
    assert_eq!(found.remedy, first.remedy.to_string());
    let legal = of_code(1, &Known::default().rules(Vec::new())).failures.remove(0);
    assert_eq!(remarks(&legal), ["the launch configuration was checked: it violates no rule"]);
}

#[test]
fn outcomes_of_the_corpus_are_recognized() {
    let texts = [("launch out of resources", 701), ("invalid value", 1)];
    for (text, number) in texts {
        let rows = corpus();
        assert!(rows.iter().any(|row| row.outcome == text), "{text} is in no row");
        let mut log = LogScanner::for_question();
        log.line(text);
        let found = log.diagnosis(&Known::default()).failures;
        assert_eq!((found.len(), found[0].code), (1, Some(number)), "{text}");
    }
}

#[test]
fn an_error_without_a_cuda_code_has_no_diagnosis() {
    let error = LaunchError::from(LaunchErrorKind::OtherKernel { kernel: "attention".into() });
    assert_eq!(error.diagnosis(), None);
    assert_eq!(gridguard::Error::from(error).diagnosis(), None);
}

#[test]
fn an_image_for_another_architecture_names_both_architectures() {
    let error = CudaErrorKind::WrongArchitecture {
        image: "sm_120a".into(),
        device: "NVIDIA H200".into(),
        capability: ComputeCapability::new(9, 0),
    };
    let found = first_of(&error);
    assert_eq!(found.id, "no-code-for-architecture");
    assert!(found.cause.contains("9.0") && found.cause.contains("sm_120a"), "{found:?}");
}

#[test]
fn a_missing_device_is_the_first_cause() {
    let hidden =
        CudaErrorKind::NoDevice { cuda_visible_devices: Some(String::new()), driver_version: None };
    let missing = CudaErrorKind::NoSuchDevice { ordinal: 4, count: 4 };
    assert_eq!(first_of(&hidden).id, "no-visible-device");
    assert_eq!(first_of(&missing).id, "device-ordinal-too-high");
}

#[test]
fn another_driver_library_is_a_stub() {
    let error = CudaErrorKind::OtherLibrary { ours: "libcuda.so.1".into() };
    assert_eq!(first_of(&error).id, "stub-libcuda-loaded");
}

#[test]
fn guard_and_diagnoses_agree_on_what_loses_a_context() {
    let mut agreed = 0;
    for number in 1..1000 {
        let is_lost = ContextState::after(number) == ContextState::Lost;
        let found = of_code(number, &Known::default()).failures.remove(0);
        // Else it is a number of an old runtime, which no driver returns.
        if found.code == Some(i64::from(number)) {
            assert_eq!(found.is_sticky, is_lost, "{number}");
        }
        agreed += usize::from(is_lost);
    }
    assert_eq!(agreed, 15);
}

/// Launches a kernel of the fake driver until a launch fails, `times` times at most, and waits. Returns the diagnosis of
/// the error, and the last launch as a message names it.
fn diagnosis_of_launches(times: usize) -> (Failure, String) {
    const PTX: &str = "// fake stacked local=65536 params=8\n.version 8.0\n.target sm_90\n\
                       .address_size 64\n.visible .entry stacked(\n)\n";
    let guard = Guard::cuda(0).expect("the fake driver has a device");
    let module = guard.load(&Image::new(PTX).expect("PTX")).expect("the fake driver takes it");
    // SAFETY: the fake driver's kernel does nothing.
    let kernel = unsafe { module.kernel("stacked", &[Parameter::of::<u64>()]) };
    let kernel = kernel.expect("it is in the PTX");
    let stream = guard.context().expect("of CUDA").default_stream();
    let request = LaunchRequest::new(Dim3::new(8, 1, 1), Dim3::new(128, 1, 1));
    let mut named = String::new();
    for _ in 0..times {
        let mut args = Args::new(&stream);
        args.value(0_u64);
        named = format!("stacked (grid 8 x 1 x 1, {}:{}:35)", file!(), line!() + 1);
        if let Err(error) = guard.launch(&kernel, &request, args) {
            return (first_of(&error), named);
        }
    }
    let error = guard.synchronize(&stream).expect_err("a launch failed");
    (first_of(&error), named)
}

const FAULT: &str = "GRIDGUARD_FAKE_FAULT_LAUNCH";

#[test]
fn an_error_of_a_later_launch_names_the_launch_that_may_have_caused_it() {
    with_fake(&[(FAULT, "0")], || {
        let (found, named) = diagnosis_of_launches(2);
        assert!(found.is_late);
        assert_eq!(remarks(&found), [format!("recent launches, newest last: {named}")]);
    });
}

#[test]
fn an_error_of_a_wait_counts_the_launches_that_it_does_not_name() {
    with_fake(&[(FAULT, "10")], || {
        let (found, _) = diagnosis_of_launches(11);
        let why = remarks(&found)[0];
        assert!(why.starts_with("recent launches, newest last: 3 others, stacked (grid"), "{why}");
        assert_eq!(why.matches("stacked").count(), 8);
    });
}

#[test]
fn the_error_of_a_checked_launch_names_the_launch() {
    with_fake(&[(FAULT, "0"), ("GRIDGUARD_SYNC", "1")], || {
        let (found, named) = diagnosis_of_launches(1);
        assert_eq!(remarks(&found), [format!("the faulting launch is {named}")]);
    });
}

#[test]
fn a_refused_launch_quotes_the_driver_and_excludes_its_configuration() {
    let settings = [
        ("GRIDGUARD_FAKE_FAIL_LAUNCH", "0"),
        ("GRIDGUARD_FAKE_FAIL_CODE", "1"),
        ("GRIDGUARD_FAKE_DRIVER_LOG", "gridDimY is 65536"),
    ];
    with_fake(&settings, || {
        let (found, _) = diagnosis_of_launches(1);
        assert_eq!(found.code, Some(1));
        let legal = "the launch configuration was checked: it violates no rule";
        assert_eq!(remarks(&found), [legal, "the driver's log: gridDimY is 65536"]);
    });
}

#[test]
fn a_launch_out_of_memory_names_the_local_memory_of_all_resident_threads() {
    with_fake(&[("GRIDGUARD_FAKE_ALLOC_LIMIT", "2147483648")], || {
        let (found, _) = diagnosis_of_launches(1);
        assert_eq!(found.id, "local-memory-of-resident-threads");
        assert!(found.cause.contains("270336 threads"), "{found:?}");
    });
}
