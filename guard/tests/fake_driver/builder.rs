//! cudarc's launch builder with validation.
#![allow(unsafe_code, reason = "cudarc's launches are unsafe")]

use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig};
use gridguard::cuda::{LaunchError, LaunchErrorKind, MAX_KEPT_FUNCTIONS, forget_functions};
use gridguard::{Counts, Dim3, Guard, LaunchRequest, Rule};
use gridguard_test_support::fake_driver::{Driver, launches, races, with_driver, with_fake};

use crate::kernels::{POISON, function, guard_of, iota, loaded_by_cudarc, on_y, poisoned, read};

/// Launches `fake_iota_y` over `out` through the guarded builder.
fn launch_iota(
    guard: &Guard,
    stream: &CudaStream,
    function: &CudaFunction,
    out: &mut CudaSlice<u64>,
    config: LaunchConfig,
) -> Result<(), LaunchError> {
    let (first, items) = (0_u64, u64::from(config.grid_dim.1));
    let mut launch = guard.builder(stream, function);
    launch.arg(out).arg(&first).arg(&items);
    // SAFETY: the function takes these three, and the fake driver checks the memory.
    unsafe { launch.launch(config) }.map(|launched| assert_eq!(launched, 1))
}

/// As with cudarc's builder: waiting for the memory's per-thread stream would synchronise the context.
#[test]
fn launches_of_a_function_wait_only_for_cudarc_s_events() {
    with_fake(&[], || {
        let (context, guard, _, function) = loaded_by_cudarc("fake_iota_y");
        let mut out = poisoned(&context.per_thread_stream(), 100);
        let mut launch = || {
            let stream = context.per_thread_stream();
            launch_iota(&guard, &stream, &function, &mut out, on_y(100)).expect("legal");
        };
        launch();
        thread::scope(|scope| scope.spawn(launch).join()).expect("it launches");
        assert_ne!(races(), Vec::<String>::new());
    });
}

#[test]
fn a_legal_launch_runs_as_with_cudarc_and_an_overflow_is_explained_and_launches_nothing() {
    with_fake(&[], || {
        let (_, guard, stream, function) = loaded_by_cudarc("fake_iota_y");
        let mut out = poisoned(&stream, 65_536);
        let mut launch = |blocks| launch_iota(&guard, &stream, &function, &mut out, on_y(blocks));
        let error = launch(65_536).expect_err("one block too many");
        assert!(matches!(error.kind(), LaunchErrorKind::Invalid(v) if v.contains(Rule::GridDimY)));
        assert_eq!(launches(), Vec::<String>::new());
        launch(65_535).expect("legal");
        assert_eq!(launches().len(), 1);
        let written = read(&stream, &out);
        assert_eq!((&written[..65_535], written[65_535]), (&*iota(65_535), POISON));
    });
}

#[test]
fn a_launch_is_validated_although_the_driver_has_no_names() {
    with_driver(Driver::Old, &[], || {
        let (_, guard, stream, function) = loaded_by_cudarc("wide");
        let mut launch = guard.builder(&stream, &function);
        assert_eq!(launch.kernel().expect("known").name(), "<unnamed>");
        let wide = LaunchConfig { block_dim: (257, 1, 1), ..on_y(1) };
        // SAFETY: the function takes nothing.
        let error = unsafe { launch.launch(wide) }.expect_err("too many registers");
        assert!(
            matches!(error.kind(), LaunchErrorKind::Invalid(v) if v.contains(Rule::RegistersPerBlock))
        );
    });
}

#[test]
fn launches_and_rejections_are_counted_by_the_guard() {
    with_fake(&[("GRIDGUARD_FAKE_FAIL_LAUNCH", "2")], || {
        let (context, guard, stream, function) = loaded_by_cudarc("fake_iota_y");
        let mut out = poisoned(&stream, 65_536);
        let mut launch = |config| launch_iota(&guard, &stream, &function, &mut out, config);
        launch(on_y(8)).expect("legal");
        launch(on_y(8)).expect("legal");
        launch(on_y(65_536)).expect_err("one block too many");
        launch(LaunchConfig { block_dim: (2048, 1, 1), ..on_y(0) }).expect_err("breaks more");
        launch(on_y(8)).expect_err("the driver refuses the third");
        let counts = guard.counts();
        assert_eq!((counts.plans, counts.launches, counts.refused_by_driver), (3, 2, 1));
        let rejections = counts.rejections;
        assert!(rejections.contains(&(Rule::GridDimY, 1)), "{rejections:?}");
        assert!(rejections.contains(&(Rule::GridDimZero, 1)), "{rejections:?}");
        assert!(rejections.contains(&(Rule::ThreadsPerBlock, 1)), "{rejections:?}");
        // Another guard of the context counts its own launches.
        assert_eq!(guard_of(&context).counts(), Counts::default());
    });
}

#[test]
fn forgotten_functions_are_queried_again() {
    with_fake(&[], || {
        let (_, guard, stream, function) = loaded_by_cudarc("fake_iota_y");
        let mut out = poisoned(&stream, 8);
        let limits = |stream: &CudaStream| {
            let launch = guard.builder(stream, &function);
            launch.kernel().expect("known").limits().clone()
        };
        let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
        let before = limits(&stream);
        let launch = gridguard::validate(&request, &before).expect("legal");
        assert!(launch.is_for(&limits(&stream)), "kept");
        forget_functions();
        assert!(!launch.is_for(&limits(&stream)), "forgotten");
        launch_iota(&guard, &stream, &function, &mut out, on_y(8)).expect("legal");
        assert_eq!(read(&stream, &out), iota(8));
    });
}

#[test]
fn a_reused_handle_has_the_limits_of_its_new_function_on_every_thread() {
    with_fake(&[("GRIDGUARD_FAKE_REUSE", "1")], || {
        /// Too many for `wide`, not for `idle`.
        const BLOCK: (u32, u32, u32) = (512, 1, 1);
        let context = CudaContext::new(0).expect("a device");
        let guard = guard_of(&context);
        let stream = context.default_stream();
        let large = LaunchConfig { block_dim: BLOCK, ..on_y(8) };
        let launch_idle = |function: &CudaFunction| {
            let mut launch = guard.builder(&stream, function);
            launch.arg(&0_u64);
            // SAFETY: the function takes a number.
            unsafe { launch.launch(large) }.map(drop)
        };
        let launch_wide = |function: &CudaFunction| {
            // SAFETY: the function takes nothing.
            unsafe { guard.builder(&stream, function).launch(large) }.map(drop)
        };
        let (functions, given) = std::sync::mpsc::channel::<CudaFunction>();
        let (done, results) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                for function in given {
                    let result = (launch_idle(&function), launch_wide(&function));
                    drop(function);
                    done.send(result).expect("the test waits");
                }
            });
            for _ in 0..3 {
                let idle = function(&context, "idle");
                let handle = idle.cu_function();
                launch_idle(&idle).expect("legal");
                functions.send(idle).expect("the thread waits");
                let (as_idle, as_wide) = results.recv().expect("it returns");
                assert_eq!(as_idle, Ok(()));
                assert!(matches!(as_wide.expect_err("no").kind(), LaunchErrorKind::Args(_)));
                forget_functions();

                let wide = function(&context, "wide");
                assert_eq!(wide.cu_function(), handle, "the driver uses it anew");
                functions.send(wide.clone()).expect("the thread waits");
                let (as_idle, as_wide) = results.recv().expect("it returns");
                for result in [as_idle, as_wide, launch_wide(&wide)] {
                    let of_wide = |broken: &gridguard::Violations| {
                        broken.contains(Rule::RegistersPerBlock)
                            || broken.contains(Rule::KernelThreadsPerBlock)
                    };
                    let error = result.expect_err("too wide");
                    assert!(error.violations().is_some_and(of_wide), "{error}");
                }
                drop(wide);
                forget_functions();
            }
            drop(functions);
        });
    });
}

#[test]
fn a_context_with_a_reused_handle_has_no_recent_launches() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let function = function(&context, "wide");
        let stream = context.default_stream();
        // SAFETY: the function takes nothing.
        unsafe { guard_of(&context).builder(&stream, &function).launch(on_y(8)) }.expect("legal");
        let recent = || {
            let guard = Guard::with_context(Arc::clone(&context)).expect("its limits");
            guard.recent_launches().len()
        };
        assert_eq!(recent(), 1);
        // This thread has seen the kernel, which holds the launches; nobody has the context's.
        forget_functions();
        assert_eq!(recent(), 0);
    });
}

#[test]
fn a_function_is_held_until_it_is_forgotten() {
    with_fake(&[], || {
        let (context, guard, stream, function) = loaded_by_cudarc("wide");
        let kernel = guard.builder(&stream, &function).kernel().expect("known").clone();
        let owners = || Arc::strong_count(&context);
        let before = owners();
        drop((function, kernel));
        assert_eq!(owners(), before, "the table holds module and context, and the module its own");
        forget_functions();
        assert_eq!(owners(), before - 2, "both are gone");
    });
}

#[test]
fn the_context_of_a_stream_is_held_as_long_as_a_kernel_that_was_queried_there() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let guard = guard_of(&context);
        let function = function(&context, "wide");
        let other = CudaContext::new_non_primary(0, 0).expect("a context beside the primary one");
        let stream = other.default_stream();
        let kernel = guard.builder(&stream, &function).kernel().expect("known");
        forget_functions();
        let held = Arc::downgrade(&other);
        drop((stream, other));
        let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE).cooperative();
        assert!(kernel.occupancy(&request).is_ok(), "it is asked in that context");
        drop(kernel);
        assert_eq!(held.strong_count(), 0);
    });
}

#[test]
fn a_program_that_loads_functions_without_end_does_not_keep_them_all() {
    with_fake(&[], || {
        let context = CudaContext::new(0).expect("a device");
        let guard = guard_of(&context);
        let stream = context.default_stream();
        let before = Arc::strong_count(&context);
        let mut most = 0;
        for _ in 0..MAX_KEPT_FUNCTIONS + 8 {
            let function = function(&context, "wide");
            guard.builder(&stream, &function).kernel().expect("known");
            most = most.max(Arc::strong_count(&context));
        }
        assert!(most <= before + 2 * (MAX_KEPT_FUNCTIONS + 1), "{most}");
        assert!(Arc::strong_count(&context) <= before + 2 * 8, "forgotten when full");
    });
}
