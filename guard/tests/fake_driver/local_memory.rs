//! Kernels with much local memory: none of their launches is legal, or one runs out of memory.
#![allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]

use cudarc::nvrtc::Ptx;
use expect_test::expect;
use gridguard::cuda::{Args, DriverError, Image, Kernel, LaunchError, LaunchErrorKind};
use gridguard::{Dim3, Guard, LaunchRequest, LocalMemory, Rule, validate};
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{config, context, guard, with_guard};

const PTX: &str = "\
// fake stacked local=65536
// fake small local=1024
// fake too_large local=524288
.version 8.0
.target sm_90
.address_size 64
.visible .entry stacked()
{ ret; }
.visible .entry small()
{ ret; }
.visible .entry too_large()
{ ret; }
";

/// Free memory: 2 GiB.
const LITTLE: (&str, &str) = ("GRIDGUARD_FAKE_ALLOC_LIMIT", "2147483648");
const ONE: LaunchRequest = LaunchRequest::new(Dim3::ONE, Dim3::ONE);

fn kernel(guard: &Guard, name: &str) -> Kernel {
    let module = guard.load(&Image::new(PTX).expect("PTX")).expect("loads");
    // SAFETY: the kernel does nothing.
    unsafe { module.kernel(name, &[]) }.expect("a kernel")
}

fn launch(guard: &Guard, name: &str) -> Result<u64, LaunchError> {
    let stream = context(guard).default_stream();
    guard.launch(&kernel(guard, name), &ONE, Args::new(&stream))
}

/// Launches `name` through cudarc's builder.
fn launch_built(guard: &Guard, name: &str) -> Result<(), LaunchError> {
    let module = context(guard).load_module(Ptx::from_src(PTX)).expect("loads");
    let function = module.load_function(name).expect("a function");
    let stream = context(guard).default_stream();
    // SAFETY: the function takes nothing.
    unsafe { guard.builder(&stream, &function).launch(config((1, 1, 1), 1)) }.map(drop)
}

fn driver_error(error: LaunchError) -> DriverError {
    error.driver().unwrap_or_else(|| panic!("another error: {error:?}")).clone()
}

#[test]
fn half_a_mebibyte_per_thread_never_reaches_the_driver() {
    with_guard(&[], |guard| {
        for error in [
            launch(&guard, "too_large").expect_err("the driver rejects it"),
            launch_built(&guard, "too_large").expect_err("the driver rejects it"),
        ] {
            let LaunchErrorKind::Invalid(violations) = error.kind() else {
                panic!("another error: {error:?}");
            };
            let rules: Vec<Rule> = violations.iter().map(|violation| violation.rule).collect();
            assert_eq!((rules, violations.driver_code()), (vec![Rule::LocalMemory], Some(1)));
        }
        let kernel = kernel(&guard, "too_large");
        let code =
            |request| validate(&request, kernel.limits()).expect_err("too large").driver_code();
        assert_eq!(code(ONE.cooperative()), None);
        let no_cluster =
            LaunchRequest::new(Dim3::new(9, 1, 1), Dim3::ONE).cluster(Dim3::new(2, 1, 1));
        assert_eq!(code(no_cluster), Some(912));
        assert_eq!(code(ONE.dynamic_shared_bytes(60_000)), Some(1));
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_launch_out_of_memory_names_the_local_memory_of_all_resident_threads() {
    with_guard(&[LITTLE], |guard| {
        let all = LocalMemory { bytes_per_thread: 65_536, resident_threads: 132 * 2048 };
        assert_eq!(all.total_bytes(), 17_716_740_096);
        for error in [
            launch(&guard, "stacked").expect_err("2 GiB are free"),
            launch_built(&guard, "stacked").expect_err("2 GiB are free"),
        ] {
            let error = driver_error(error);
            assert_eq!((error.code, error.local_memory()), (2, Some(all)));
            expect![
                "cuLaunchKernel returned CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; the kernel's \
                 local memory takes 65536 bytes x 270336 resident threads = 17716740096 bytes"
            ]
            .assert_eq(&error.to_string());
        }
        assert_eq!(launch(&guard, "small"), Ok(1), "as much as every context has");
    });
}

#[test]
fn another_error_of_a_launch_does_not_name_local_memory() {
    let other = [("GRIDGUARD_FAKE_FAIL_LAUNCH", "0"), ("GRIDGUARD_FAKE_FAIL_CODE", "999")];
    with_fake(&other, || {
        let error = driver_error(launch(&guard(), "stacked").expect_err("it fails"));
        assert_eq!((error.code, error.local_memory()), (999, None));
    });
}

#[test]
fn a_kernel_that_needs_no_more_than_every_context_has_is_not_to_blame() {
    let no_memory = [("GRIDGUARD_FAKE_FAIL_LAUNCH", "0"), ("GRIDGUARD_FAKE_FAIL_CODE", "2")];
    with_fake(&no_memory, || {
        let error = driver_error(launch(&guard(), "small").expect_err("it fails"));
        assert_eq!((error.code, error.local_memory()), (2, None));
    });
}
