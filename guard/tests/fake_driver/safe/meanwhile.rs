//! Captures that begin while a call runs: by another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstreamCaptureMode;
use gridguard::cuda::{Args, LaunchError, LaunchErrorKind};
use gridguard::{Axis, Guard};
use gridguard_test_support::fake_driver::{Driver, launches, with_each};

use super::{ITEMS, assert_ordered, write};
use crate::kernels::{
    assert_nothing_is_captured, context, guard, iota, items_along, kernel, launch_iota, plan_along,
    poisoned, read, with_guard,
};

const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
const SPLIT: u64 = 3 * 65_535;

fn stream(guard: &Guard) -> Arc<CudaStream> {
    context(guard).new_stream().expect("a stream")
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(launched: Result<T, LaunchError>) {
    let error = launched.expect_err("a capture began");
    assert!(matches!(error.kind(), LaunchErrorKind::Captured { .. }), "{error}");
}

/// Launches over memory of another stream, frees the memory, and then ends the capture.
fn launch_whole(guard: &Guard, on: &Arc<CudaStream>) {
    let kernel = kernel(guard, "fake_iota_y");
    let mut out = poisoned(&stream(guard), ITEMS);
    assert_refused(write(guard, &kernel, on, &mut out));
    drop(out);
    assert_nothing_is_captured(on);
}

#[test]
fn a_launch_before_or_after_which_another_thread_began_a_capture_is_refused_and_memory_waits() {
    let cases =
        [(("GRIDGUARD_FAKE_CAPTURE_BEFORE", "0"), ()), (("GRIDGUARD_FAKE_CAPTURE_AFTER", "1"), ())];
    with_each(Driver::Whole, &cases, |()| {
        let guard = guard();
        launch_whole(&guard, &stream(&guard));
    });
}

#[test]
fn memory_of_a_stream_that_nothing_tracks_waits_too() {
    with_guard(&[("GRIDGUARD_FAKE_CAPTURE_AFTER", "1")], |guard| {
        let stream = stream(&guard);
        let kernel = kernel(&guard, "fake_iota_y");
        // Memory of another object for the same context, which has no streams.
        let other = cudarc::driver::CudaContext::new(0).expect("the same primary context");
        let mut out = poisoned(&other.default_stream(), ITEMS);
        assert_refused(write(&guard, &kernel, &stream, &mut out));
        drop(out);
        assert_nothing_is_captured(&stream);
    });
}

fn launch_split(place: u64) {
    let guard = guard();
    let (on, owner) = (stream(&guard), stream(&guard));
    let kernel = kernel(&guard, "fake_iota_y");
    let mut out = poisoned(&owner, SPLIT);
    let plan = plan_along(&kernel, Axis::Y, SPLIT);
    let launched = launch_iota(&guard, &kernel, &plan, &on, &mut out);
    let error = launched.expect_err("a capture began");
    match error.kind() {
        LaunchErrorKind::Stopped(stopped) => {
            assert_eq!((stopped.chunk, stopped.source.code), (place, 900), "{stopped}");
        }
        LaunchErrorKind::Captured { .. } => assert_eq!(place, 3),
        other => panic!("{other}"),
    }
    drop(out);
    assert_nothing_is_captured(&on);
    let mut out = poisoned(&owner, ITEMS);
    assert_eq!(write(&guard, &kernel, &on, &mut out), Ok(1), "the stream works on");
    assert_eq!(read(&owner, &out), iota(ITEMS));
}

#[test]
fn a_split_launch_stops_where_another_thread_began_a_capture_or_after_a_captured_chunk() {
    let cases = [
        (("GRIDGUARD_FAKE_CAPTURE_AFTER", "1"), 1),
        (("GRIDGUARD_FAKE_CAPTURE_BEFORE", "1"), 2),
        (("GRIDGUARD_FAKE_CAPTURE_BEFORE", "2"), 3),
    ];
    with_each(Driver::Whole, &cases, |place| launch_split(*place));
}

#[test]
fn a_launch_with_a_workspace_stops_too() {
    with_guard(&[("GRIDGUARD_FAKE_CAPTURE_AFTER", "1")], |guard| {
        let on = stream(&guard);
        let kernel = kernel(&guard, "fake_spill_y");
        let mut out = poisoned(&stream(&guard), ITEMS);
        let (request, batch) = items_along(Axis::Y, ITEMS);
        let batch = batch.workspace(1000, 32_000);
        let mut args = Args::new(&on);
        args.write_items(&mut out, 1).offset().length().workspace();
        let run = guard.launch(&kernel, (&request, &batch), args);
        let error = run.expect_err("a capture began").to_string();
        assert!(error.contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"), "{error}");
        drop(out);
        assert_nothing_is_captured(&on);
    });
}

/// Launches over memory of another stream while another thread begins a capture, which it ends only after the memory
/// was freed.
fn launch_while_captured(guard: &Guard, begin: impl Fn(&Arc<CudaStream>) + Sync) {
    let on = stream(guard);
    let kernel = kernel(guard, "fake_iota_y");
    let mut out = poisoned(&stream(guard), ITEMS);
    let returned = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let wait = || thread::sleep(Duration::from_millis(1));
            while launches().is_empty() {
                wait();
            }
            begin(&on);
            while !returned.load(Ordering::Acquire) {
                wait();
            }
        });
        assert_refused(write(guard, &kernel, &on, &mut out));
        drop(out);
        returned.store(true, Ordering::Release);
    });
    assert_nothing_is_captured(&on);
}

#[test]
fn a_launch_does_not_wait_for_the_thread_that_captures_its_stream() {
    with_guard(&[("GRIDGUARD_FAKE_LAUNCH_UNTIL_CAPTURED", "1")], |guard| {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        launch_while_captured(&guard, |on| on.begin_capture(mode).expect("the stream is idle"));
    });
}

#[test]
fn a_launch_does_not_wait_for_the_stream_whose_capture_its_stream_joined() {
    with_guard(&[("GRIDGUARD_FAKE_LAUNCH_UNTIL_CAPTURED", "1")], |guard| {
        let origin = stream(&guard);
        launch_while_captured(&guard, |on| {
            origin.begin_capture(RELAXED).expect("it is idle");
            on.join(&origin).expect("it becomes part of the capture");
        });
        assert_nothing_is_captured(&origin);
    });
}

#[test]
fn memory_that_was_given_during_a_capture_is_not_used_after_it() {
    with_guard(&[], |guard| {
        let on = stream(&guard);
        let kernel = kernel(&guard, "fake_iota_y");
        let other = cudarc::driver::CudaContext::new(0).expect("the same primary context");
        let mut out = poisoned(&other.default_stream(), ITEMS);
        on.begin_capture(RELAXED).expect("the stream is idle");
        let mut args = Args::new(&on);
        // Nothing makes the stream wait for the memory's own stream now.
        args.write_items(&mut out, 1).offset().length();
        assert_nothing_is_captured(&on);
        let launched = guard.launch(&kernel, &plan_along(&kernel, Axis::Y, ITEMS), args);
        assert_refused(launched);
        drop(out);
        assert_ordered();
    });
}
