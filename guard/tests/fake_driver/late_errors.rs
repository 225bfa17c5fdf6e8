//! Errors of a launch that surface at a later call, and their suspects.
#![allow(unsafe_code, reason = "launches around the guard's own")]

use cudarc::driver::CudaStream;
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{
    Args, CudaErrorKind, DriverError, FaultSuspects, Kernel, LaunchError, LaunchErrorKind,
    RawLaunch,
};
use gridguard::{Axis, Choice, Dim3, Guard, LaunchRequest, Plan, RawArgs};
use gridguard_test_support::allocator::allocations_of;

use crate::kernels::{
    PTX, config, context, function, kernel, launch_iota, plan_along, poisoned, raw, with_kernel,
    with_stream,
};

/// Which launch is at fault: the fake driver accepts it, and every call after it fails.
pub(crate) const FAULT: &str = "GRIDGUARD_FAKE_FAULT_LAUNCH";
/// Which launch the fake driver refuses.
pub(crate) const FAIL: &str = "GRIDGUARD_FAKE_FAIL_LAUNCH";

/// Launches the kernel `idle`, on behalf of the caller.
#[track_caller]
pub(crate) fn idle(
    guard: &Guard,
    kernel: &Kernel,
    stream: &CudaStream,
) -> Result<u64, LaunchError> {
    let mut args = Args::new(stream);
    args.value(0_u64);
    let request = LaunchRequest::new(Dim3::new(8, 1, 1), Dim3::new(128, 1, 1));
    guard.launch(kernel, &request, args)
}

/// The driver's error behind a launch that stopped, and the chunk that it stopped at.
pub(crate) fn stopped(error: LaunchError) -> (u64, DriverError) {
    match error.kind() {
        LaunchErrorKind::Stopped(stopped) => (stopped.chunk, stopped.source.clone()),
        other => panic!("another error: {other:?}"),
    }
}

/// The suspects of `error`: kernel and chunk, the newest last.
pub(crate) fn suspects(error: &DriverError) -> Vec<(&str, u64)> {
    let suspects = error.suspects().expect("a sticky error");
    suspects.launches().iter().map(|launch| (&*launch.kernel, launch.chunk.index)).collect()
}

#[test]
fn the_suspects_of_a_fault_that_surfaces_at_a_chunk_are_the_launches_before_it() {
    with_stream(&[(FAULT, "3")], |guard, stream| {
        let (idler, kernel) = (kernel(&guard, "idle"), kernel(&guard, "fake_iota_y"));
        let mut out = poisoned(&stream, 131_071);
        let plan = plan_along(&kernel, Axis::Y, 131_071);
        idle(&guard, &idler, &stream).expect("no fault of its own");
        guard.synchronize(&stream).expect("so far all is well");
        let idle_line = line!() + 1;
        idle(&guard, &idler, &stream).expect("no fault of its own");
        let line = line!() + 1;
        let launched = launch_iota(&guard, &kernel, &plan, &stream, &mut out);
        let error = launched.expect_err("the fault of chunk 1");
        let text = error.to_string();
        assert_eq!(
            text,
            format!(
                "launch 2 of 3 was refused after 87380 of 131071 items: cuLaunchKernel returned \
                 CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered; not \
                 caused by this call; suspects: 3 launches since the last synchronisation: idle (grid \
                 8 x 1 x 1, {file}:{idle_line}:9), fake_iota_y (grid 1 x 43690 x 1, chunk 0 of 3, \
                 {file}:{line}:24), fake_iota_y (grid 1 x 43690 x 1, chunk 1 of 3, {file}:{line}:24)",
                file = file!(),
            )
        );
        let (chunk, error) = stopped(error);
        assert_eq!(chunk, 2);
        assert_eq!(suspects(&error), [("idle", 0), ("fake_iota_y", 0), ("fake_iota_y", 1)]);
        let suspects = error.suspects().expect("checked above");
        let last = suspects.launches().last().expect("three");
        assert_eq!((last.chunk.start, last.chunk.items, last.launches), (43_690, 43_690, 3));
        assert_eq!((last.block, last.stream), ([128, 1, 1], 0));
        assert_eq!(last.call_site.line(), line);
    });
}

#[test]
fn a_fault_that_surfaces_at_a_synchronisation_a_load_or_a_query_has_suspects_too() {
    with_kernel(&[(FAULT, "1")], "idle", |guard, kernel, _| {
        let stream = context(&guard).new_stream().expect("a stream");
        idle(&guard, &kernel, &stream).expect("accepted");
        idle(&guard, &kernel, &stream).expect("accepted, and at fault");
        let surfaced = guard.synchronize(&stream).expect_err("the fault surfaces here");
        let CudaErrorKind::Driver(error) = surfaced.kind() else {
            panic!("another error: {surfaced:?}");
        };
        assert_eq!((error.call, error.code), ("cuStreamSynchronize", 700));
        assert_eq!(suspects(error), [("idle", 0), ("idle", 0)]);
        let image = gridguard::cuda::Image::new(PTX).expect("PTX");
        let text = guard.load(&image).expect_err("the context is lost").to_string();
        assert!(text.contains("not caused by this call; suspects: 2 launches"), "{text}");
        let text = idle(&guard, &kernel, &stream).expect_err("it stays lost").to_string();
        assert!(text.contains("not caused by this call; suspects: 2 launches"), "{text}");
    });
}

#[test]
fn a_fault_with_no_launch_on_record_was_caused_by_a_launch_around_the_guard() {
    with_kernel(
        &[(FAIL, "0"), ("GRIDGUARD_FAKE_FAIL_CODE", "700")],
        "idle",
        |guard, kernel, stream| {
            let text = idle(&guard, &kernel, &stream).expect_err("refused").to_string();
            let end = "; not caused by this call, but by a launch that is not on record";
            assert!(text.ends_with(end), "{text}");
        },
    );
}

#[test]
fn an_error_of_the_call_itself_has_no_suspects() {
    with_kernel(
        &[(FAIL, "1"), ("GRIDGUARD_FAKE_FAIL_CODE", "701")],
        "idle",
        |guard, kernel, stream| {
            idle(&guard, &kernel, &stream).expect("accepted");
            let (_, error) = stopped(idle(&guard, &kernel, &stream).expect_err("refused"));
            assert_eq!((error.suspects(), error.driver_log()), (None, None));
        },
    );
}

#[test]
fn launches_beyond_the_record_are_counted_and_the_last_ones_named() {
    with_kernel(&[(FAULT, "99")], "idle", |guard, kernel, stream| {
        for _ in 0..100 {
            idle(&guard, &kernel, &stream).expect("accepted");
        }
        let (_, error) = stopped(idle(&guard, &kernel, &stream).expect_err("it surfaces"));
        let text = error.to_string();
        let some = "suspects: 100 launches since the last synchronisation, the last 8 on record: \
                    idle (grid 8 x 1 x 1, ";
        assert!(text.contains(some), "{text}");
        assert_eq!(text.matches("idle (").count(), 8);
        let Some(FaultSuspects::OneOf { launches, forgotten: 36, .. }) = error.suspects() else {
            panic!("{:?}", error.suspects());
        };
        assert_eq!(launches.len(), 64);
    });
}

#[test]
fn recent_launches_of_guards_builders_and_handles_are_listed_newest_first() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        let context = context(&guard);
        let stream = context.default_stream();
        let handles = || {
            let function = context.load_module(Ptx::from_src(PTX)).expect("PTX");
            function.load_function("wide").expect("it is in the PTX")
        };
        idle(&guard, &kernel, &stream).expect("through the guard");

        let function = handles();
        let mut launch = guard.builder(&stream, &function);
        let built = line!() + 2;
        // SAFETY: the function takes nothing.
        unsafe { launch.launch(config((2, 1, 1), 64)) }.expect("through a builder");

        let raw = raw(&guard, &function, Some("by handle"));
        let request = LaunchRequest::new(Dim3::new(3, 1, 1), Dim3::new(32, 2, 1));
        let plan = Plan::new(&request, None, raw.limits(), Choice::AUTOMATIC).expect("legal");
        // SAFETY: null is the default stream, and the function takes nothing.
        unsafe {
            guard.launch_raw(&raw, std::ptr::null_mut(), RawLaunch::Plan(&plan, &RawArgs::new()))
        }
        .expect("by handle");

        let recent = guard.recent_launches();
        let listed: Vec<_> =
            recent.iter().map(|one| (&*one.kernel, one.grid[0], one.block)).collect();
        let expected =
            [("by handle", 3, [32, 2, 1]), ("wide", 2, [64, 1, 1]), ("idle", 8, [128, 1, 1])];
        assert_eq!(listed, expected);
        assert_eq!((recent[1].call_site.file(), recent[1].call_site.line()), (file!(), built));
        assert!(recent.iter().all(|one| one.age.as_secs() < 60));
        assert!(Guard::host(guard.limits().clone()).recent_launches().is_empty());
    });
}

#[test]
fn a_built_launch_is_a_suspect_of_a_fault_that_surfaces_while_its_events_are_recorded() {
    with_kernel(&[(FAULT, "1")], "fake_iota_y", |guard, kernel, _| {
        let context = context(&guard);
        let stream = context.new_stream().expect("a stream");
        let (mut out, mut other) = (poisoned(&stream, 8), poisoned(&stream, 8));
        let plan = plan_along(&kernel, Axis::Y, 8);
        launch_iota(&guard, &kernel, &plan, &stream, &mut out).expect("no fault of its own");
        let function = function(context, "fake_iota_y");
        let mut launch_again = || {
            let mut launch = guard.builder(&stream, &function);
            launch.arg(&mut other).arg(&0_u64).arg(&4_u64);
            // SAFETY: the function takes these three, and writes four elements.
            unsafe { launch.launch(config((1, 4, 1), 64)) }
        };
        launch_again().expect("its events fail, the launch does not");
        for _ in 0..3 {
            let error = launch_again().expect_err("the fault");
            let LaunchErrorKind::Driver(error) = error.kind() else { panic!("{error:?}") };
            let suspects = error.suspects().expect("a sticky error").launches();
            let grids: Vec<_> = suspects.iter().map(|launch| launch.grid).collect();
            assert_eq!(grids, [[1, 8, 1], [1, 4, 1]], "{error}");
        }
    });
}

#[test]
fn recording_a_launch_allocates_nothing() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        let plan = plan_along(&kernel, Axis::Y, 131_071);
        // The first launch on a stream gives it its record.
        let streams = [(); 20].map(|()| context(&guard).new_stream().expect("a stream"));
        let (launched, allocations) = allocations_of(|| {
            streams.iter().all(|stream| {
                let mut args = Args::new(stream);
                args.value(0_u64);
                idle(&guard, &kernel, stream).is_ok() && guard.launch(&kernel, &plan, args).is_ok()
            })
        });
        assert!(launched);
        assert_eq!(allocations, 0);
        assert_eq!(guard.counts().launches, 20 * 4);
        assert_eq!(guard.counts().sharing_a_record, 5 * 4);
    });
}
