//! What the guard's own errors are diagnosed as.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use gridguard::cuda::{CudaError, LaunchError, LibraryUnavailable, LoadError};
use gridguard::diagnose::{Evidence, FailureId, LogScanner, diagnose};
use gridguard::{
    ComputeCapability, Dim3, KernelLimits, LaunchLimits, LaunchRequest, OccupancyLimits, Rule,
    Violations, catalog, validate, validate_co_resident,
};
use gridguard_test_support::corpus;

#[test]
fn the_violated_rule_is_the_first_cause() {
    for row in corpus() {
        let gpu = catalog::gpu("h200").expect("listed");
        let request = row.request.request;
        let limits = row.request.limits(&gpu.limits);
        let Err(violations) = validate(&request, &limits) else {
            continue;
        };
        let found = LaunchError::from(violations.clone()).diagnosis().expect("CUDA rejects it");
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
        launch: Evidence::from(&request).launch,
        violated_rules: Evidence::from(&violations).violated_rules,
        ..Evidence::from(&**device)
    };
    let found = diagnose(&FailureId::from_code(1), &evidence);
    let cause = &found.causes[0];
    assert_eq!(violations.to_string(), format!("{}: {} [grid-dim-y]", cause.what, cause.remedy));
    assert_eq!(
        found.commands[0],
        "gridguard check --gpu 'NVIDIA H200' --grid 1,76800,1 --block 128,1,1"
    );
    let legal = Evidence::from(&Violations::default());
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
    let error = LaunchError::OtherKernel { kernel: "attention".into() };
    assert_eq!(error.diagnosis(), None);
    assert_eq!(gridguard::Error::from(error).diagnosis(), None);
}

#[test]
fn an_image_for_another_architecture_names_both_architectures() {
    let error = LoadError::WrongArchitecture {
        image: "sm_120a".into(),
        device: "NVIDIA H200".into(),
        capability: ComputeCapability::new(9, 0),
    };
    let found = CudaError::from(error).diagnosis().expect("CUDA rejects it");
    assert_eq!(found.failure.number(), Some(209));
    let why = "the device has compute capability 9.0, the program has code for sm_120, up to 12.0";
    assert_eq!(found.causes[0].why_likely.as_deref(), Some(why));
}

#[test]
fn a_missing_device_is_the_first_cause() {
    let hidden = LibraryUnavailable::NoDevice {
        cuda_visible_devices: Some(String::new()),
        driver_version: None,
    };
    let missing = CudaError::NoSuchDevice { ordinal: 4, count: 4 };
    for (found, number, why) in [
        (hidden.diagnosis(), 100, "the driver reports 0 devices"),
        (missing.diagnosis(), 101, "device 4 was requested, 4 devices are visible"),
    ] {
        let found = found.expect("CUDA has a code for it");
        assert_eq!(found.failure.number(), Some(number));
        assert_eq!(found.causes[0].why_likely.as_deref(), Some(why));
    }
}
