//! What the guard's own errors are diagnosed as.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(unsafe_code, reason = "the fake driver's kernels need somebody to promise their contract")]

use gridguard::cuda::{Args, CudaErrorKind, Image, LaunchError, LaunchErrorKind};
use gridguard::{
    ComputeCapability, ContextState, Dim3, Guard, KernelLimits, LaunchLimits, LaunchRequest,
    OccupancyLimits, Parameter, Rule, catalog, validate, validate_co_resident,
};
use gridguard_diagnose::{Diagnosis, Evidence, FailureId, LogScanner, diagnose};
use gridguard_report::{Diagnose, device_evidence, launch_config, violated_rules};
use gridguard_test_support::corpus;
use gridguard_test_support::fake_driver::with_fake;

#[test]
fn the_violated_rule_is_the_first_cause() {
    for row in corpus() {
        let gpu = catalog::gpu("h200").expect("listed");
        let request = row.request.request;
        let limits = row.request.limits(&gpu.limits);
        let Err(violations) = validate(&request, &limits) else {
            continue;
        };
        let found = violations.diagnosis().expect("CUDA rejects it");
        let first = violations.iter().next().expect("not empty").to_string();
        assert!(first.starts_with(&found.causes[0].what), "{}: {first}", row.report);
        assert!(found.causes[0].why_likely.is_some(), "{}", row.report);
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
        let first = violations.iter().next().expect("not empty").to_string();
        let found = LaunchError::from(violations).diagnosis().expect("CUDA rejects it");
        assert_eq!(found.failure.number(), Some(number));
        let why = format!("the launch violates rule {rule}");
        assert_eq!(found.causes[0].why_likely.as_deref(), Some(why.as_str()));
        assert!(first.starts_with(&found.causes[0].what), "{found}");
    }
}

#[test]
fn launch_device_and_violations_are_evidence() {
    let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
    let device = &catalog::gpu("h200").expect("listed").limits;
    let limits = LaunchLimits::new(device.clone(), KernelLimits::unknown("attention"));
    let violations = validate(&request, &limits).expect_err("too many blocks on y");
    let evidence = Evidence {
        launch: Some(launch_config(&request)),
        violated_rules: Some(violated_rules(&violations)),
        ..device_evidence(device)
    };
    let found = diagnose(&FailureId::from_code(1), &evidence);
    let cause = &found.causes[0];
    assert_eq!(violations.to_string(), format!("{}: {} [grid-dim-y]", cause.what, cause.remedy));
    assert_eq!(
        found.commands[0],
        "gridguard check --gpu 'NVIDIA H200' --grid 1,76800,1 --block 128,1,1"
    );
    let legal = Evidence { violated_rules: Some(Vec::new()), ..Evidence::default() };
    let not = diagnose(&FailureId::from_code(1), &legal).not;
    assert_eq!(not[1], "the launch configuration: it was checked and violates no rule");
}

#[test]
fn outcomes_of_the_corpus_are_recognized() {
    let texts = [("launch out of resources", 701), ("invalid value", 1)];
    for (text, number) in texts {
        let rows = corpus();
        assert!(rows.iter().any(|row| row.outcome == text), "{text} is in no row");
        let mut log = LogScanner::for_question();
        log.line(text);
        let findings = log.findings();
        assert_eq!(findings.len(), 1, "{text}");
        assert_eq!(findings[0].failure.number(), Some(number));
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
    let found = error.diagnosis().expect("CUDA rejects it");
    assert_eq!(found.failure.number(), Some(209));
    let why = "the device has compute capability 9.0, the program has code for sm_120, up to 12.0";
    assert_eq!(found.causes[0].why_likely.as_deref(), Some(why));
}

#[test]
fn a_missing_device_is_the_first_cause() {
    let hidden =
        CudaErrorKind::NoDevice { cuda_visible_devices: Some(String::new()), driver_version: None };
    let missing = CudaErrorKind::NoSuchDevice { ordinal: 4, count: 4 };
    for (found, number, why) in [
        (hidden.diagnosis(), 100, "the driver reports 0 devices"),
        (missing.diagnosis(), 101, "device 4 was requested, 4 devices are visible"),
    ] {
        let found = found.expect("CUDA has a code for it");
        assert_eq!(found.failure.number(), Some(number));
        assert_eq!(found.causes[0].why_likely.as_deref(), Some(why));
    }
}

#[test]
fn another_driver_library_is_a_stub() {
    let error = CudaErrorKind::OtherLibrary { ours: "libcuda.so.1".into() };
    assert_eq!(error.diagnosis().expect("a failure of CUDA").failure.number(), Some(34));
}

#[test]
fn guard_and_diagnoses_agree_on_what_loses_a_context() {
    let mut agreed = 0;
    for number in 1..1000 {
        let diagnosis = diagnose(&FailureId::from_code(number), &Evidence::default());
        // Former numbers of the runtime are other failures of the driver.
        if diagnosis.failure.number() == Some(number) {
            let is_lost = ContextState::after(number) == ContextState::Lost;
            assert_eq!(diagnosis.sticky, is_lost, "{number}");
            agreed += usize::from(is_lost);
        }
    }
    assert_eq!(agreed, 15);
}

/// Launches a kernel of the fake driver until a launch fails, `times` times at most, and waits. Returns the diagnosis of
/// the error, and the last launch as a message names it.
fn diagnosis_of_launches(times: usize) -> (Diagnosis, String) {
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
            return (error.diagnosis().expect("a failure of CUDA"), named);
        }
    }
    let error = guard.synchronize(&stream).expect_err("a launch failed");
    (error.diagnosis().expect("a failure of CUDA"), named)
}

const FAULT: &str = "GRIDGUARD_FAKE_FAULT_LAUNCH";

#[test]
fn an_error_of_a_later_launch_names_the_launch_that_may_have_caused_it() {
    with_fake(&[(FAULT, "0")], || {
        let (found, named) = diagnosis_of_launches(2);
        let cause = &found.causes[0];
        let what = "an earlier kernel failed; the call that reports the error is not at fault";
        let why = format!("recent launches, newest last: {named}");
        assert_eq!((cause.what.as_str(), cause.why_likely.as_deref()), (what, Some(&*why)));
    });
}

#[test]
fn an_error_of_a_wait_counts_the_launches_that_it_does_not_name() {
    with_fake(&[(FAULT, "10")], || {
        let (found, _) = diagnosis_of_launches(11);
        let why = found.causes[0].why_likely.as_ref().expect("the launches");
        assert!(why.starts_with("recent launches, newest last: 3 others, stacked (grid"), "{why}");
        assert_eq!(why.matches("stacked").count(), 8);
    });
}

#[test]
fn the_error_of_a_checked_launch_names_the_launch() {
    with_fake(&[(FAULT, "0"), ("GRIDGUARD_SYNC", "1")], || {
        let (found, named) = diagnosis_of_launches(1);
        let why = format!("the faulting launch is {named}");
        assert_eq!(found.causes[0].why_likely, Some(why));
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
        assert_eq!(found.failure.number(), Some(1));
        assert_eq!(found.driver_log, ["gridDimY is 65536"]);
        assert_eq!(found.not[1], "the launch configuration: it was checked and violates no rule");
    });
}

#[test]
fn a_launch_out_of_memory_names_the_local_memory_of_all_resident_threads() {
    with_fake(&[("GRIDGUARD_FAKE_ALLOC_LIMIT", "2147483648")], || {
        let (found, _) = diagnosis_of_launches(1);
        let first = &found.causes[0];
        assert!(first.what.contains("local memory"), "{first:?}");
        let why = "the kernel's 65536 bytes per thread x 270336 resident threads = 16.50 GiB";
        assert_eq!(first.why_likely.as_deref(), Some(why));
    });
}
