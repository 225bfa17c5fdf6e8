//! Checked launches: each is synchronised at once, so that an error names the faulting one.
#![allow(unsafe_code, reason = "cudarc's event tracking is switched unsafely, and raw launches")]

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use gridguard::cuda::{FaultSuspects, capture_launches};
use gridguard::{Axis, Guard};
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{context, guard, kernel, launch_iota, plan_along, poisoned};
use crate::late_errors::{FAULT, idle, stopped, suspects};

#[test]
fn a_checked_launch_names_the_faulting_chunk_and_launches_nothing_after_it() {
    with_fake(&[(FAULT, "2")], || {
        let guard = guard().with_checked_launches(true);
        names_chunk_1(&guard);
    });
}

#[test]
fn the_environment_turns_checked_launches_on() {
    with_fake(&[(FAULT, "2"), ("GRIDGUARD_SYNC", "1")], || names_chunk_1(&guard()));
}

/// Launches. The third, chunk 1 of the second plan, is at fault.
fn names_chunk_1(guard: &Guard) {
    let (idler, kernel) = (kernel(guard, "idle"), kernel(guard, "fake_iota_y"));
    let stream = context(guard).new_stream().expect("a stream");
    let mut out = poisoned(&stream, 131_071);
    let plan = plan_along(&kernel, Axis::Y, 131_071);
    idle(guard, &idler, &stream).expect("no fault of its own");
    let error = launch_iota(guard, &kernel, &plan, &stream, &mut out).expect_err("chunk 1");
    let text = error.to_string();
    let start = "launch 1 of 3 was refused after 43690 of 131071 items: cuStreamIsCapturing \
                 returned CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was \
                 encountered; the faulting launch is fake_iota_y (grid 1 x 43690 x 1, chunk 1 of 3, ";
    assert!(text.starts_with(start), "{text}");
    let (chunk, error) = stopped(error);
    assert_eq!(chunk, 1);
    assert!(matches!(error.suspects(), Some(FaultSuspects::Launch(_))), "{:?}", error.suspects());
    assert_eq!(launches().len(), 3, "chunk 2 was not launched");
    assert_eq!((guard.counts().checked, guard.counts().unchecked_in_capture), (2, 0));
}

#[test]
fn with_unchecked_launches_pending_a_check_names_all_suspects() {
    with_fake(&[(FAULT, "1")], || {
        let (plain, checked) = (guard(), guard().with_checked_launches(true));
        let kernel = kernel(&plain, "idle");
        let stream = context(&plain).default_stream();
        let other = context(&plain).new_stream().expect("a stream");
        idle(&plain, &kernel, &other).expect("under way on another stream");
        let (_, error) = stopped(idle(&checked, &kernel, &stream).expect_err("it surfaces"));
        assert_eq!(suspects(&error).len(), 2);
        assert!(matches!(error.suspects(), Some(FaultSuspects::OneOf { forgotten: 0, .. })));
    });
}

#[test]
fn captured_launches_are_counted_instead_of_synchronised() {
    with_fake(&[], || {
        let guard = guard().with_checked_launches(true);
        let kernel = kernel(&guard, "fake_iota_y");
        // SAFETY: everything happens on one stream, in order.
        unsafe { context(&guard).disable_event_tracking() };
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out = poisoned(&stream, 76_800);
        let plan = plan_along(&kernel, Axis::Y, 76_800);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        stream.begin_capture(mode).expect("the stream is idle");
        let capture = || launch_iota(&guard, &kernel, &plan, &stream, &mut out);
        // SAFETY: the graph never runs.
        assert_eq!(unsafe { capture_launches(capture) }, Ok(2));
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).expect("it is valid");
        assert!(graph.is_some());
        assert_eq!(launch_iota(&guard, &kernel, &plan, &stream, &mut out), Ok(2));
        assert_eq!((guard.counts().checked, guard.counts().unchecked_in_capture), (2, 2));
    });
}
